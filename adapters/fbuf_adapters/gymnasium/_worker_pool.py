"""The workers of a collector: their options, their messages, and new ones for those that ended."""

from __future__ import annotations

import abc
import collections
import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import cloudpickle

from fbuf.adapter_api import check, uninterrupted, warn
from fbuf_adapters._fields import blank_specs
from fbuf_adapters.gymnasium._base_collector import check_timeout
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import Asked, Info
from fbuf_adapters.gymnasium._messages import (
    IMPORTING,
    STARTING,
    Command,
    Failed,
    Filled,
    Ready,
    in_words,
)
from fbuf_adapters.gymnasium._shared_memory import SharedChunks

Mode = Literal["async", "sync"]
"""`"async"`: workers step while you learn; `"sync"`: they make the steps of each call."""

_RENAMED = {"free": "async", "barrier": "sync"}

_POLL = 0.5
"""Seconds between two checks for hanging workers."""

_PAUSED = 1.5
"""If a check is this many seconds late, the learner itself was paused."""

_PATIENCE = 1.5
"""Seconds for workers to close their environments."""

_START = 60.0
"""The least limit for the start of a worker, which imports the user's modules, in seconds."""


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """The checked arguments of a collector over workers.

    `owner` and `noun` are for errors: the name of the collector, and its name for a worker.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If `blank` is no dict of fields.
    """

    owner: str
    noun: Literal["process", "worker"]
    workers: int
    envs_per_worker: int
    chunk: int
    slots: int
    mode: Mode
    timeout: float
    restart: int
    given_seed: int | None
    blank: dict[str, Any] | None
    progress: bool | None
    seed: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        plural = "processes" if self.noun == "process" else "workers"
        # A random default seed: two collectors must not make the same episodes.
        seed = secrets.randbelow(2**30) if self.given_seed is None else self.given_seed
        counts = {plural: self.workers, f"envs_per_{self.noun}": self.envs_per_worker}
        for name, value in {**counts, "chunk": self.chunk, "slots": self.slots}.items():
            check.integer(self.owner, name, value)
        for name, value in {"seed": seed, "restart": self.restart}.items():
            check.integer(self.owner, name, value, smallest=0)
        if self.mode in _RENAMED:
            raise ValueError(
                f"{self.owner}: mode={self.mode!r} has another name now; give "
                f"mode={_RENAMED[self.mode]!r}"
            )
        check.choice(self.owner, "mode", self.mode, get_args(Mode))
        check_timeout(self.owner, self.timeout)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "blank", blank_specs(self.owner, self.blank))

    @property
    def num_envs(self) -> int:
        """The number of all environments."""
        return self.workers * self.envs_per_worker

    def payload(
        self, make_env: Any, policy: Any, weights: Any, info: Asked, observe: Asked
    ) -> bytes:
        """Return the bytes from which every worker makes its environments and policy."""
        for argument, asked in (("info", info), ("observe", observe)):
            Info(argument, asked, 1)  # raises here, and not in each worker
        for name, value in (("make_env", make_env), ("policy", policy)):
            try:
                cloudpickle.dumps(value)
            except Exception as error:
                raise CollectorError(
                    f"{self.owner}: {name} cannot be sent to another process ({error}); it holds "
                    "something that only this process has, so make that when it is first needed"
                ) from error
        return cloudpickle.dumps((make_env, policy, weights, info, observe))

    def published(self, kind: Callable[[Any, str], Any], policy: Any, weights: Any) -> Any:
        """Return the holder of the first weights, made by `kind`; None if there are none."""
        if weights is None:
            return None
        if not callable(getattr(policy, "load", None)):
            raise CollectorError(
                f"{self.owner}: the policy ({type(policy).__name__}) has no method load(weights); "
                "give it one, or leave weights out"
            )
        return kind(weights, self.owner)


class Ended(Exception):
    """A worker has failed. The arguments say how it ended, and where, if known."""


class PoolWorker(abc.ABC):
    """The learner's handle of a process or an actor, which starts at once."""

    def __init__(
        self, options: PoolOptions, number: int, payload: Any, weights: Any, chunks: SharedChunks
    ) -> None:
        """Start the worker of this number, which gets the payload and the weights."""
        first = number * options.envs_per_worker
        self.number = number
        self.envs = slice(first, first + options.envs_per_worker)
        self.ready = False
        """The worker has sent the spec of a row."""
        self.commands: collections.deque[Command] = collections.deque()
        """The unanswered commands, the oldest first."""
        self.filled: collections.deque[Filled] = collections.deque()
        """Slots that wait for the learner."""
        self._options = options
        self._payload = payload
        self._weights = weights
        self._chunks = chunks
        self._seed = options.seed + first
        self._heard = time.monotonic()
        """The time from which on silence counts."""
        self._start()

    def resumed(self) -> None:
        """Restart the clock of its silence after a pause of the learner, such as a Ctrl-Z."""
        self._heard = time.monotonic()

    def restart(self) -> None:
        """Restart the worker with other seeds, as equal ones might repeat the failure."""
        self.end()
        self.ready = False
        self._seed += self._options.num_envs
        self._start()

    def command(self, command: Command) -> None:
        """Have the worker fill a slot, once it has started."""
        self.commands.append(command)
        if self.ready:
            self._send(command)

    def _take(self, message: Ready | Filled | Failed) -> Any:
        """Process a message; return the spec of a row if the worker has made its environments.

        Raises:
            Ended: If an exception has ended the worker.
        """
        if isinstance(message, Failed):
            trace = f"\n\nIn that {self._options.noun}:\n{message.trace}"
            raise Ended(f"failed {in_words(message.place)}: {message.reason}", trace)
        if isinstance(message, Filled):
            self.commands.popleft()
            self.filled.append(message)
            return None
        self.ready = True
        for command in self.commands:  # from before a restart
            self._send(command)
        return message.spec

    def _patience(self, starting: bool) -> float:
        """Return the seconds of silence that mean a hang."""
        return max(self._options.timeout, _START) if starting else self._options.timeout

    def _refuse_hanging(self, place: int, seconds: float) -> None:
        """Raise `Ended` if the worker has been in a place for too long."""
        if seconds > self._patience(place in (STARTING, IMPORTING)):
            timeout = f"timeout={self._options.timeout:g}"
            if place == IMPORTING:
                raise Ended(
                    f"has been importing your script for {seconds:.0f} s ({timeout}), as each new "
                    "process does; put what takes long, such as reading a data set, under\n\n"
                    '    if __name__ == "__main__":\n\n'
                    "or give a larger timeout",
                    "",
                )
            raise Ended(f"hangs {in_words(place)}, for {seconds:.0f} s now ({timeout})", "")

    @property
    @abc.abstractmethod
    def waitable(self) -> list[Any]:
        """The objects for the pool's `wait`: ready if the worker sends or ends."""

    @abc.abstractmethod
    def listen(self) -> Any:
        """Take the messages of the worker.

        Returns:
            The spec of a row, if the worker has just made its environments, or else None.

        Raises:
            Ended: If the worker has failed.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask the worker to end."""

    @abc.abstractmethod
    def end(self, patience: float = 0.0) -> None:
        """End the worker, after at most `patience` seconds."""

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the worker with its number, its environments and its seed."""

    @abc.abstractmethod
    def _send(self, command: Command) -> None:
        """Send the worker a command."""


class WorkerPool:
    """Workers that are started together and closed together.

    Args:
        options: The options of the collector.
        workers: The workers, made one by one, which starts them.
        wait: `wait(waitables, seconds)` returns when any of these is ready, or after the seconds.
        chunks: The memory of their chunks.
    """

    def __init__(
        self,
        options: PoolOptions,
        workers: Iterable[PoolWorker],
        wait: Callable[[list[Any], float], Any],
        chunks: SharedChunks,
    ) -> None:
        """Start them, and wait until all know the spec of a row."""
        self.spec: Any = None
        self.workers: list[PoolWorker] = []
        self.waited = 0.0
        """Seconds that the learner has waited for workers."""
        self.closed = False
        self._owner, self._noun = options.owner, options.noun
        self._restarts = 0
        self._process = os.getpid()
        self._wait = wait
        try:
            for worker in workers:
                self.workers.append(worker)
            while not all(worker.ready for worker in self.workers):
                self.listen(wait=True)
            chunks.allocate(self.spec)
        except BaseException:
            self.close()
            raise
        self._restarts = options.restart

    def command(self, worker: PoolWorker, slot: int, steps: int, newest: bool) -> None:
        """Have a worker fill a slot, unless all have been ended."""
        if not self.closed:
            worker.command(Command(slot, steps, newest))

    def listen(self, *, wait: bool) -> None:
        """Take the messages of all workers; with `wait`, wait a moment for one.

        Raises:
            CollectorError: If a worker has ended or hangs, and may not be started anew. All
                messages of all workers have been taken by then.
        """
        if wait:
            began = time.perf_counter()
            try:
                self._wait([end for worker in self.workers for end in worker.waitable], _POLL)
            except (OSError, ValueError):
                if not self.closed:
                    raise
            waited = time.perf_counter() - began
            self.waited += waited
            if waited > _POLL + _PAUSED:
                for worker in self.workers:
                    worker.resumed()
        failure: CollectorError | None = None
        with uninterrupted():  # a taken message does not come again
            for worker in self.workers:
                try:
                    spec = worker.listen()
                except Ended as ended:
                    failure = failure or self._failed(worker, ended)
                else:
                    if spec is not None:
                        self._agree(worker, spec)
        if self.closed:  # by another thread, meanwhile
            raise CollectorError(f"{self._owner}: the collector is closed; make another one")
        if failure is not None:
            raise failure

    def _failed(self, worker: PoolWorker, ended: Ended) -> CollectorError | None:
        """Restart a worker, or return the error that ends the collection."""
        first, last = worker.envs.start, worker.envs.stop - 1
        of = f"environment {first}" if first == last else f"environments {first} to {last}"
        reason, trace = ended.args
        said = f"{self._noun} {worker.number} ({of}) {reason}"
        if self._restarts and not self.closed:
            self._restarts -= 1
            worker.restart()
            warn(
                f"{self._owner}: {said}; it has been started anew, and may be {self._restarts} "
                f"more times{trace}",
                RuntimeWarning,
            )
            return None
        return CollectorError(f"{self._owner}: {said}{trace}")

    def _agree(self, worker: PoolWorker, spec: Any) -> None:
        """Refuse workers whose rows differ."""
        if self.spec is None:
            self.spec = spec
        elif spec != self.spec:
            raise CollectorError(
                f"{self._owner}: {self._noun} {worker.number} has rows of {spec}, and others have "
                f"{self.spec}; make_env and policy must give the same spaces and extras each time"
            )

    def close(self) -> None:
        """End all workers, also hanging ones."""
        if self.closed or os.getpid() != self._process:  # a forked process owns no worker
            return
        with uninterrupted():  # a second Ctrl-C would leave some running; this takes seconds
            self.closed = True
            for worker in self.workers:
                worker.stop()
            until = time.monotonic() + _PATIENCE
            for worker in self.workers:
                worker.end(max(0.0, until - time.monotonic()))
