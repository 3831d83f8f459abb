"""Making chunks with the newest weights, optionally ahead of the learner in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._stepper import Stepper

_POLL = 0.2
"""Seconds between two checks whether to stop."""


class Producer:
    """Makes chunks with the newest weights, in any thread."""

    def __init__(self, stepper: Stepper, policy: Any) -> None:
        self.stepper = stepper
        self.version = 0
        """The version of the newest weights published."""
        self.seconds = 0.0
        """The time spent on steps."""
        self.steps = 0
        """The number of steps made, of all environments together."""
        self._policy = policy
        self._lock = threading.Lock()
        self._weights: tuple[Any, int] | None = None

    def publish(self, weights: Any) -> int:
        """Use a copy of these weights for the next chunk and later ones."""
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

    def chunk(self, steps: int, stop: Callable[[], bool] = lambda: False) -> StepChunk:
        """Make steps."""
        weights = self._weights
        if weights is not None:
            self.stepper.load(*weights)
            with self._lock:
                if self._weights is weights:  # otherwise the next chunk has newer weights
                    self._weights = None
        began = time.perf_counter()
        chunk = self.stepper.chunk(steps, stop)
        self.seconds += time.perf_counter() - began
        self.steps += chunk.made
        return chunk


def _copied(leaf: Any) -> np.ndarray[Any, Any]:
    """Return a copy in host memory, as the learner changes its own weights."""
    if hasattr(leaf, "detach"):  # a tensor of PyTorch's
        leaf = leaf.detach().cpu()
    return np.array(leaf)


class Background:
    """Calls `make(stop)` again and again in a thread, until it raises or is to stop.

    Args:
        make: Returns a chunk, sooner if `stop()` is True.
        partial: Returns the whole steps of an interrupted chunk, or None.
        size: The most chunks that wait in the queue.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], StepChunk],
        partial: Callable[[], StepChunk | None],
        size: int,
    ) -> None:
        self._make = make
        self._partial = partial
        self._queue: queue.Queue[StepChunk | BaseException] = queue.Queue(size)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.full_seconds = 0.0
        """The time that the thread has waited for room in the queue."""
        self.empty_seconds = 0.0
        """The time that `get` has waited for a chunk."""

    @property
    def depth(self) -> int:
        """The number of chunks that wait."""
        return self._queue.qsize()

    def get(self, wait: bool) -> StepChunk | BaseException | None:
        """Return the oldest chunk, or the exception of the thread.

        Return None for an empty queue: at once, or with `wait` after a moment.
        """
        if self._thread is None:
            self._ended = threading.Event()  # the old thread may still set its own event
            given = (self._ended,)
            self._thread = threading.Thread(
                target=self._run, args=given, name="fbuf collector", daemon=True
            )
            self._thread.start()
        began = time.perf_counter()
        try:
            entry = self._queue.get(timeout=_POLL) if wait else self._queue.get_nowait()
        except queue.Empty:
            return None
        finally:
            self.empty_seconds += time.perf_counter() - began
        if isinstance(entry, BaseException):
            self._thread = None  # the next call starts another one
        return entry

    def close(self, seconds: float) -> bool:
        """Stop the thread, and drop waiting chunks; return False if it runs on after `seconds`."""
        self._stop.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        return self._ended.wait(seconds)  # an interrupted join would claim that it has

    def _run(self, ended: threading.Event) -> None:
        try:
            while not self._stop.is_set():
                self._put(self._make(self._stop.is_set))
        except BaseException as error:
            partial = self._partial()
            if partial is not None:
                self._put(partial)
            self._put(error)
        finally:
            ended.set()

    def _put(self, entry: StepChunk | BaseException) -> None:
        began = time.perf_counter()
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(entry, timeout=_POLL)
                break
        self.full_seconds += time.perf_counter() - began
