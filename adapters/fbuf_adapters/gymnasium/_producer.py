"""What makes chunks, in whatever thread: the stepper, the newest weights, and the time it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._stepper import Stepper


class Producer:
    """Makes chunks with the newest weights."""

    def __init__(self, stepper: Stepper, policy: Any) -> None:
        self.stepper = stepper
        self.version = 0
        """That of the newest weights published."""
        self.seconds = 0.0
        """How long it has stepped."""
        self.steps = 0
        """How many steps it has made, of each environment."""
        self._policy = policy
        self._lock = threading.Lock()
        self._weights: tuple[Any, int] | None = None

    def publish(self, weights: Any) -> int:
        """Have the chunks from the next one on made with a copy of these weights."""
        if not callable(getattr(self._policy, "load", None)):
            raise CollectorError(
                f"Collector.publish: the policy ({type(self._policy).__name__}) has no method "
                "load(weights); give it one, or change the policy's own weights between two calls"
            )
        copied = jax.tree.map(_copied, weights)
        with self._lock:
            self.version += 1
            self._weights = copied, self.version
            return self.version

    def chunk(self, steps: int, stop: Callable[[], bool] = lambda: False) -> Chunk:
        """Make steps."""
        weights = self._weights
        if weights is not None:
            self.stepper.load(*weights)
            with self._lock:
                if self._weights is weights:  # else there are newer ones, for the next chunk
                    self._weights = None
        begun = time.perf_counter()
        chunk = self.stepper.chunk(steps, stop)
        self.seconds += time.perf_counter() - begun
        self.steps += chunk.steps
        return chunk


def _copied(leaf: Any) -> np.ndarray[Any, Any]:
    """A copy in the host's memory: the learner goes on to write into its own weights."""
    if hasattr(leaf, "detach"):  # a tensor of PyTorch's
        leaf = leaf.detach().cpu()
    return np.array(leaf)
