"""Where each process is just now, in memory that outlives it.

So it can be said which environment hangs, or was at work when the process was killed.
"""

from __future__ import annotations

import time

from fbuf_adapters.gymnasium._memory import Memory

STARTING, WAITING, POLICY = -1, -2, -3
"""What a process does when it is in no environment: it starts, it waits for work, the policy."""


class Stopped(BaseException):
    """The collector has been closed, so the chunk is not wanted any more."""


class Board:
    """A time, a place and whether to stop, for each of some processes."""

    def __init__(self, memory: Memory) -> None:
        """Use this memory, of `SIZE` bytes for each process."""
        self._memory = memory
        self._times = memory.numbers("d")[0::3]
        self._places = memory.numbers("q")[1::3]
        self._stops = memory.numbers("q")[2::3]

    def at(self, process: int, place: int) -> None:
        """A process is at a place: the number of an environment, or one of those above."""
        self._places[process] = place
        self._times[process] = time.monotonic()  # one clock for all processes

    def check(self, process: int) -> None:
        """Raise `Stopped` if a process shall stop."""
        if self._stops[process]:
            raise Stopped

    def stop(self, process: int, wanted: bool) -> None:
        """Have a process stop at its next step, or not."""
        self._stops[process] = int(wanted)

    def since(self, process: int) -> float:
        """When the process got where it is."""
        return self._times[process]

    def where(self, process: int) -> int:
        """The place of a process."""
        return self._places[process]

    def __reduce__(self) -> tuple[type[Board], tuple[Memory]]:
        return Board, (self._memory,)


SIZE = 24
"""Bytes of a board for each process."""
