"""One actor, as the learner sees it."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, cast

import ray
from ray.exceptions import ActorDiedError, RayError

from fbuf_adapters.gymnasium._heartbeat import STARTING, WAITING, in_words
from fbuf_adapters.gymnasium._messages import Command, Failed, Filled, Ready
from fbuf_adapters.gymnasium._shared_chunks import Room, Slots
from fbuf_adapters.gymnasium._worker_pool import START, Ended
from fbuf_adapters.ray._stepping import CONTROL, Stepping
from fbuf_adapters.ray._weights import Weights

_Stepping: Any = cast(Any, ray.remote)(concurrency_groups={CONTROL: 1})(Stepping)

_ANSWER = 5.0
"""Seconds that an actor may take to say where it is: longer if a call holds Python's lock."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What an actor is given when it starts, and what it is started with."""

    number: int
    envs: slice
    seed: int
    payload: Any  # a reference to bytes
    options: dict[str, Any]
    environment: dict[str, str]


class Actor:
    """A `Worker` of a crew, whose chunks come through Ray's object store."""

    def __init__(self, job: Job, room: Room, weights: Weights | None, timeout: float) -> None:
        """Start it."""
        self.number = job.number
        self.envs = job.envs
        self.ready = False
        self.commands: collections.deque[Command] = collections.deque()
        self.filled: collections.deque[Filled] = collections.deque()
        self._job = job
        self._room = room
        self._slots: Slots | None = None
        self._spec: Any = None
        self._weights = weights
        self._timeout = timeout
        self._start()

    def _start(self) -> None:
        job = self._job
        self._heard = time.monotonic()
        """When it answered last, or was somewhere else than it is now."""
        self._question: Any = None
        self._asked = 0.0
        self._closing: Any = None
        self._actor: Any = _Stepping.options(**job.options).remote(job.environment)
        opened = self._actor.open.remote(job.payload, job.envs, job.seed, self._stamped)
        self._answers: collections.deque[Any] = collections.deque([opened])

    def resumed(self) -> None:
        """It may have been heard of, had anybody listened."""
        self._heard = time.monotonic()

    def restart(self) -> None:
        """Start it anew with other seeds, wherever there is room."""
        self.end()
        self.ready = False
        self._job = dataclasses.replace(self._job, seed=self._job.seed + self._room.envs)
        self._start()

    @property
    def waitable(self) -> list[Any]:
        """The oldest answer that has not come."""
        return [*list(self._answers)[:1], *([] if self._question is None else [self._question])]

    def command(self, command: Command) -> None:
        """Have it fill a slot, when it has started."""
        self.commands.append(command)
        if self.ready:
            self._send(command)

    def publish(self) -> None:
        """Tell it of new weights."""
        self._actor.publish.remote(self._stamped)

    @property
    def _stamped(self) -> Any:
        return None if self._weights is None else self._weights.stamped

    def _send(self, command: Command) -> None:
        if not self._answers:
            self._heard = time.monotonic()
        self._answers.append(self._actor.fill.remote(command, self._stamped))

    def listen(self) -> Any:
        """Take in what it has sent. Chunks are copied at once: its machine may be gone later."""
        while self._answers and _has_come(self._answers[0]):
            message = _got(self._answers.popleft())
            self._heard = time.monotonic()
            if message is None:  # it was stopped: another thread closes the collector
                return None
            if isinstance(message, Failed):
                raise Ended.by(message, "worker")
            if isinstance(message, Ready):
                self.ready, self._spec = True, message.spec
                for command in self.commands:  # of its life before
                    self._send(command)
                return message.spec
            done, chunk = message
            if self._slots is None:  # by now there is room for them
                self._slots = self._room.open(self._spec)
            self._slots.write(done.slot, self.envs, chunk)
            self.commands.popleft()
            self.filled.append(done)
        if self.commands or not self.ready:
            self._refuse_hanging()
        return None

    def _refuse_hanging(self) -> None:
        """Ask it where it is, if it has not been heard of for long."""
        now = time.monotonic()
        quiet = now - self._heard
        if quiet <= self._timeout:
            return
        if self._question is None:
            self._question, self._asked = self._actor.where.remote(), now
        elif _has_come(self._question):
            place, seconds = _got(self._question)
            self._question = None
            # If it waits, its answer is on the way, and Ray says so if it gets lost.
            self._heard = now if place == WAITING else now - seconds
            if place != WAITING and seconds > self._patience(place == STARTING):
                raise Ended(
                    f"hangs {in_words(place)}, for {seconds:.0f} s now (timeout={self._timeout:g})"
                )
        elif now - self._asked > _ANSWER and quiet > self._patience(not self.ready):
            if self.ready:
                raise Ended(
                    f"hangs and does not say where, for {quiet:.0f} s now "
                    f"(timeout={self._timeout:g})"
                )
            raise Ended(
                f"has not started for {quiet:.0f} s; it was to be placed with "
                f"{self._job.options}, and free in the cluster are {ray.available_resources()}"
            )

    def _patience(self, starting: bool) -> float:
        return max(self._timeout, START) if starting else self._timeout

    def stop(self) -> None:
        """Ask it to end."""
        if ray.is_initialized():  # or else it has ended with Ray
            self._actor.stop.remote()
            self._closing = self._actor.close.remote()

    def end(self, patience: float = 0.0) -> None:
        """Have it ended."""
        if ray.is_initialized():
            if self._closing is not None:
                ray.wait([self._closing], timeout=patience)
            ray.kill(self._actor)


def wait(answers: list[Any], seconds: float) -> None:
    """Return when one of these has come, or after so long."""
    if answers:
        ray.wait(answers, num_returns=1, timeout=seconds)


def _has_come(answer: Any) -> bool:
    return bool(ray.wait([answer], timeout=0)[0])


def _got(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except RayError as error:
        reason = "has died" if isinstance(error, ActorDiedError) else "was lost"
        raise Ended(reason, f"\n\nRay says:\n{error}") from error
