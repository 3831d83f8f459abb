"""A thread that makes chunks ahead, as many as a queue has room for."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from fbuf_adapters.gymnasium._chunk import Chunk

_LOOK = 0.2
"""Seconds between two looks at whether somebody wants to stop."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """What the thread puts behind its last chunk when it ends by an exception."""

    error: BaseException


class Background:
    """Runs `make(stop)` again and again in a thread, until it raises or is to stop.

    Args:
        make: Returns a chunk, sooner if `stop()` is True.
        begun: Returns what there is of the chunk that raised, or None.
        room: How many chunks wait at most.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], Chunk],
        begun: Callable[[], Chunk | None],
        room: int,
    ) -> None:
        self._make = make
        self._begun = begun
        self._queue: queue.Queue[Chunk | Failed] = queue.Queue(room)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.full_seconds = 0.0
        """How long the thread has waited for room."""
        self.empty_seconds = 0.0
        """How long `get` has waited for a chunk."""

    @property
    def depth(self) -> int:
        """How many chunks wait."""
        return self._queue.qsize()

    def get(self, wait: bool) -> Chunk | Failed | None:
        """The oldest chunk; None if there is none, with `wait` after a moment."""
        if self._thread is None:
            self._ended = threading.Event()  # the thread before may still have to say so
            given = (self._ended,)
            self._thread = threading.Thread(
                target=self._run, args=given, name="fbuf collector", daemon=True
            )
            self._thread.start()
        begun = time.perf_counter()
        try:
            entry = self._queue.get(timeout=_LOOK) if wait else self._queue.get_nowait()
        except queue.Empty:
            return None
        finally:
            self.empty_seconds += time.perf_counter() - begun
        if isinstance(entry, Failed):
            self._thread = None  # the next one begins anew
        return entry

    def close(self, seconds: float) -> bool:
        """Stop the thread, and forget what waits. False if it has not ended after so long."""
        self._stop.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        return self._ended.wait(seconds)  # a join that was interrupted would say that it has

    def _run(self, ended: threading.Event) -> None:
        try:
            while not self._stop.is_set():
                self._put(self._make(self._stop.is_set))
        except BaseException as error:
            begun = self._begun()
            if begun is not None:
                self._put(begun)
            self._put(Failed(error))
        finally:
            ended.set()

    def _put(self, entry: Any) -> None:
        begun = time.perf_counter()
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(entry, timeout=_LOOK)
                break
        self.full_seconds += time.perf_counter() - begun
