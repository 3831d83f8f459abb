"""Buffers with the methods of brax's, and rows from brax's environments into any buffer."""

from fbuf_adapters.brax._collector import Collector as Collector
from fbuf_adapters.brax._queue import Queue as Queue
from fbuf_adapters.brax._replay_buffer import ReplayBuffer as ReplayBuffer
from fbuf_adapters.brax._sampling_queue import PrioritizedSamplingQueue as PrioritizedSamplingQueue
from fbuf_adapters.brax._sampling_queue import UniformSamplingQueue as UniformSamplingQueue
from fbuf_adapters.brax._state import ReplayBufferState as ReplayBufferState

__all__ = [
    "Collector",
    "PrioritizedSamplingQueue",
    "Queue",
    "ReplayBuffer",
    "ReplayBufferState",
    "UniformSamplingQueue",
]
__dir__ = __all__.copy  # `dir` shows the public names alone
