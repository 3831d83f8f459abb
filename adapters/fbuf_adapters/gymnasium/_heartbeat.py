"""Where each worker is just now, in memory that outlives a process.

So it can be said which environment hangs, or was at work when its process was killed.
"""

from __future__ import annotations

import time

from fbuf_adapters.gymnasium._shared_memory import Memory

STARTING, WAITING, POLICY = -1, -2, -3
"""What a worker does when it is in no environment: it starts, it waits for work, the policy."""


def in_words(place: int) -> str:
    """A place, for errors."""
    words = {STARTING: "while it started", WAITING: "while it waited", POLICY: "in the policy"}
    return words.get(place, f"in environment {place}")


class Stopped(BaseException):
    """The collector has been closed, so the chunk is not wanted any more."""


class Board:
    """A time, a place and whether to stop, for each of some workers."""

    def __init__(self, memory: Memory) -> None:
        """Use this memory, of `SIZE` bytes for each worker."""
        self._memory = memory
        self._times = memory.numbers("d")[0::3]
        self._places = memory.numbers("q")[1::3]
        self._stops = memory.numbers("q")[2::3]

    def at(self, seat: int, place: int) -> None:
        """A worker is at a place: the number of an environment, or one of those above."""
        self._places[seat] = place
        self._times[seat] = time.monotonic()  # one clock for all processes

    def check(self, seat: int) -> None:
        """Raise `Stopped` if a worker shall stop."""
        if self._stops[seat]:
            raise Stopped

    def stop(self, seat: int, wanted: bool) -> None:
        """Have a worker stop at its next step, or not."""
        self._stops[seat] = int(wanted)

    def since(self, seat: int) -> float:
        """When the worker got where it is."""
        return self._times[seat]

    def where(self, seat: int) -> int:
        """The place of a worker."""
        return self._places[seat]

    def __reduce__(self) -> tuple[type[Board], tuple[Memory]]:
        return Board, (self._memory,)


SIZE = 24
"""Bytes of a board for each worker."""
