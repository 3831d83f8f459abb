"""The messages between the learner and its workers, and the heartbeat of a worker."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from fbuf_adapters.gymnasium._shared_memory import SharedMemory

STARTING, WAITING, POLICY, IMPORTING = -1, -2, -3, -4
"""The places of a worker outside of its environments: starting, waiting, acting.

A new process first imports the user's script.
"""


def in_words(place: int) -> str:
    """Return a place as text, for errors."""
    words = {
        STARTING: "while it started",
        WAITING: "while it waited",
        POLICY: "in the policy",
        IMPORTING: "while it imported your script",
    }
    return words.get(place, f"in environment {place}")


class Ready(NamedTuple):
    """The worker has made its environments, and knows the spec of a row."""

    spec: Any


class Command(NamedTuple):
    """Fill a slot."""

    slot: int
    steps: int
    newest: bool  # take the newest weights first


class Filled(NamedTuple):
    """A slot has been filled."""

    slot: int
    steps: int
    version: int
    fresh: bool
    waited: float  # seconds that the worker waited for the command
    worked: float  # seconds that it took to fill the slot


class Failed(NamedTuple):
    """The worker has failed."""

    place: int
    reason: str
    trace: str


class Stopped(BaseException):
    """The collector has been closed, so the chunk is not needed."""


class Heartbeat:
    """The place of a worker, its time of arrival there, and a flag to stop.

    It lies in memory that outlives a process. So an error can name the environment that hangs, or
    that ran when the process was killed.
    """

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self._memory = SharedMemory(24) if memory is None else memory
        self._times = memoryview(self._memory.buffer).cast("d")  # the time, and two others
        self._numbers = memoryview(self._memory.buffer).cast("q")  # place, whether to stop

    def at(self, place: int) -> None:
        """Record the place of the worker: the number of an environment, or a constant above."""
        self._numbers[1] = place
        self._times[0] = time.monotonic()  # the same clock in all processes

    def check(self) -> None:
        """Raise `Stopped` if the flag is set."""
        if self._numbers[2]:
            raise Stopped

    def stop(self, wanted: bool) -> None:
        """Set or clear the flag that stops the worker at its next step."""
        self._numbers[2] = int(wanted)

    def where(self) -> tuple[int, float]:
        """Return the place of the worker, and its time of arrival."""
        return self._numbers[1], self._times[0]

    def __reduce__(self) -> tuple[type[Heartbeat], tuple[SharedMemory]]:
        return Heartbeat, (self._memory,)
