"""Replay memory for Stable-Baselines3, sb3-contrib, SBX and CleanRL, by one argument."""

try:
    # Imported only to see whether it is installed.
    import stable_baselines3  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as _error:
    if _error.name != "stable_baselines3":  # a package that it needs
        raise
    raise ImportError(
        'fbuf_adapters.sb3 needs Stable-Baselines3: pip install "fbuf[sb3]"'
    ) from _error

from fbuf_adapters.sb3._algorithms import PrioritizedDQN as PrioritizedDQN
from fbuf_adapters.sb3._algorithms import PrioritizedReplay as PrioritizedReplay
from fbuf_adapters.sb3._algorithms import PrioritizedSAC as PrioritizedSAC
from fbuf_adapters.sb3._algorithms import PrioritizedTD3 as PrioritizedTD3
from fbuf_adapters.sb3._checkpoint_callback import CheckpointCallback as CheckpointCallback
from fbuf_adapters.sb3._her import HerReplayBuffer as HerReplayBuffer
from fbuf_adapters.sb3._replay_buffer import ReplayBuffer as ReplayBuffer
from fbuf_adapters.sb3._samples import (
    PrioritizedReplayBufferSamples as PrioritizedReplayBufferSamples,
)

__all__ = [
    "CheckpointCallback",
    "HerReplayBuffer",
    "PrioritizedDQN",
    "PrioritizedReplay",
    "PrioritizedReplayBufferSamples",
    "PrioritizedSAC",
    "PrioritizedTD3",
    "ReplayBuffer",
]
__dir__ = __all__.copy  # `dir` shows the public names alone
