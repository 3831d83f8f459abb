"""All workers of a collector: waiting for them, and what happens when one ends."""

from __future__ import annotations

import collections
import os
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fbuf.runtime.interrupts import uninterrupted
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._heartbeat import in_words
from fbuf_adapters.gymnasium._messages import Command, Failed, Filled
from fbuf_adapters.gymnasium._shared_chunks import Room, Slots

_LOOK = 0.5
"""Seconds between two looks at whether a worker hangs."""

_STOPPED = 1.5
"""A look that takes so many seconds longer has been stopped itself."""

_PATIENCE = 1.5
"""Seconds that workers have to close their environments."""

START = 60.0
"""Seconds that a worker may take at least to start: it imports what the user's functions import."""


class Worker(Protocol):
    """A process or an actor, as the learner sees it. It has been started when it is made."""

    number: int
    envs: slice
    ready: bool
    """It has said what a row is."""
    commands: collections.deque[Command]
    """Given, and not answered."""
    filled: collections.deque[Filled]
    """Slots that wait for the learner."""

    @property
    def waitable(self) -> list[Any]:
        """What a crew's `wait` waits for: it has sent something, or has ended."""
        ...

    def command(self, command: Command) -> None:
        """Have it fill a slot, when it has started."""
        ...

    def listen(self) -> Any:
        """Take in what it has sent.

        Returns:
            What a row of its environments is, if it has just made them, or else None.

        Raises:
            Ended: If it cannot go on.
        """
        ...

    def resumed(self) -> None:
        """The learner was stopped for a while, by a Ctrl-Z say, and it perhaps too."""
        ...

    def restart(self) -> None:
        """Start it anew with other seeds: with the same ones it might fail at the same step."""
        ...

    def stop(self) -> None:
        """Ask it to end."""
        ...

    def end(self, patience: float = 0.0) -> None:
        """Have it ended, after so many seconds at most."""
        ...


class Ended(Exception):
    """A worker cannot go on: how it ended, and what else is known of it."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.trace = trace

    @classmethod
    def by(cls, failed: Failed, noun: str) -> Ended:
        """By an exception of its own."""
        trace = f"\n\nIn that {noun}:\n{failed.trace}"
        return cls(f"failed {in_words(failed.place)}: {failed.reason}", trace)


class Crew:
    """Workers that are started together and closed together.

    Args:
        workers: They are started by being taken from this.
        wait: `wait(waitables, seconds)` returns when one of these is ready, or after so long.
        room: Where they put chunks.
        restarts: How many may be started anew, in all, once they have all started.
        owner: The collector, for errors.
        noun: What it calls a worker.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        wait: Callable[[list[Any], float], Any],
        room: Room,
        *,
        restarts: int,
        owner: str,
        noun: str,
    ) -> None:
        """Start them, and wait until all know what a row is."""
        self.owner = owner
        self.noun = noun
        self.spec: Any = None
        self.workers: list[Worker] = []
        self.waited = 0.0
        """Seconds that the learner has waited for them."""
        self.restarts = 0
        self.closed = False
        self._process = os.getpid()
        self._wait = wait
        try:
            for worker in workers:
                self.workers.append(worker)
            while not all(worker.ready for worker in self.workers):
                self.listen(wait=True)
            self.slots: Slots = room.make(self.spec)
        except BaseException:
            self.close()
            raise
        self.restarts = restarts

    def command(self, worker: Worker, slot: int, steps: int, newest: bool) -> None:
        """Have a worker fill a slot, unless all have been ended."""
        if not self.closed:
            worker.command(Command(slot, steps, newest))

    def listen(self, *, wait: bool) -> None:
        """Take in what the workers have sent; with `wait`, wait a moment for something.

        Raises:
            CollectorError: If a worker has ended or hangs, and may not be started anew. All
                messages of all workers have been taken in then.
        """
        if wait:
            began = time.perf_counter()
            try:
                self._wait([end for worker in self.workers for end in worker.waitable], _LOOK)
            except (OSError, ValueError):
                if not self.closed:
                    raise
            waited = time.perf_counter() - began
            self.waited += waited
            if waited > _LOOK + _STOPPED:
                for worker in self.workers:
                    worker.resumed()
        failure: CollectorError | None = None
        with uninterrupted():  # a message that was taken out comes no second time
            for worker in self.workers:
                try:
                    spec = worker.listen()
                except Ended as ended:
                    failure = failure or self._failed(worker, ended)
                else:
                    if spec is not None:
                        self._agree(worker, spec)
        if self.closed:  # by another thread, meanwhile
            raise CollectorError(f"{self.owner}: the collector is closed; make another one")
        if failure is not None:
            raise failure

    def _failed(self, worker: Worker, ended: Ended) -> CollectorError | None:
        """Start a worker anew, or say that it cannot go on."""
        first, last = worker.envs.start, worker.envs.stop - 1
        of = f"environment {first}" if first == last else f"environments {first} to {last}"
        said = f"{self.noun} {worker.number} ({of}) {ended.reason}"
        if self.restarts and not self.closed:
            self.restarts -= 1
            worker.restart()
            warnings.warn(
                f"{self.owner}: {said}; it has been started anew, and may be {self.restarts} "
                f"more times{ended.trace}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return CollectorError(f"{self.owner}: {said}{ended.trace}")

    def _agree(self, worker: Worker, spec: Any) -> None:
        """Refuse workers whose rows differ."""
        if self.spec is None:
            self.spec = spec
        elif spec != self.spec:
            raise CollectorError(
                f"{self.owner}: {self.noun} {worker.number} has rows of {spec}, and others have "
                f"{self.spec}; make_env and policy must give the same spaces and extras each time"
            )

    def close(self) -> None:
        """End all workers, hanging ones too."""
        if self.closed or os.getpid() != self._process:  # of a fork, whose workers these are not
            return
        with uninterrupted():  # a second Ctrl-C would leave some behind; it takes seconds at most
            self.closed = True
            for worker in self.workers:
                worker.stop()
            until = time.monotonic() + _PATIENCE
            for worker in self.workers:
                worker.end(max(0.0, until - time.monotonic()))
