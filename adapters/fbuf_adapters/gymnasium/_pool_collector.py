"""What every collector over many workers does: it has them make chunks, and adds what comes.

A worker is a process, or an actor of Ray.
"""

from __future__ import annotations

import contextlib
import secrets
import types
import weakref
from collections.abc import Generator
from typing import Any, Literal, Protocol, Self, get_args

import cloudpickle
import numpy as np

from fbuf.checks import values as check
from fbuf.runtime.interrupts import uninterrupted
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._chunk_writer import Target
from fbuf_adapters.gymnasium._episodes import Episodes
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import Asked, Info
from fbuf_adapters.gymnasium._messages import Filled
from fbuf_adapters.gymnasium._progress import bar
from fbuf_adapters.gymnasium._shared_chunks import Room
from fbuf_adapters.gymnasium._trees import map_leaves
from fbuf_adapters.gymnasium._worker_pool import Crew, Worker

Mode = Literal["free", "barrier"]
"""Whether workers run on while you learn, or make the steps that you ask for."""


class Published(Protocol):
    """The newest weights, where workers find them."""

    @property
    def version(self) -> int:
        """Theirs. It counts from 0."""
        ...

    def publish(self, tree: Any) -> int:
        """Replace them, and return the version of the new ones."""
        ...


class CrewCollector:
    """The methods of `ProcessCollector` and of Ray's `Collector`, which make the workers.

    Args:
        crew: The workers, which have started.
        room: Where they put chunks.
        weights: What `publish` replaces, if anything.
        blank: Fields that nobody fills, see `blank_specs`.
        mode: As for `ProcessCollector`.
        progress: As for `ProcessCollector`.
    """

    def __init__(
        self,
        crew: Crew,
        room: Room,
        weights: Published | None,
        blank: dict[str, Any],
        *,
        mode: Mode,
        seed: int,
        progress: bool | None,
    ) -> None:
        self._crew = crew
        self._seed = seed
        self._finalizer = weakref.finalize(self, crew.close)
        self._num_envs = room.envs
        self._chunk = room.steps
        self._slot_count = room.slots
        self._mode: Mode = mode
        self._weights = weights
        self._progress = progress
        try:
            self._target = Target(crew.spec, blank, self.options, self._chunk, crew.owner)
        except ValueError:  # the policy fills a field that is to be blank
            crew.close()
            raise
        self._episodes = Episodes(self._num_envs, "same_step")
        self._cut = np.zeros(self._num_envs, np.bool_)
        """Whose newest steps were dropped, so that those to come do not follow what was added."""
        self._running = False
        self._failure: CollectorError | None = None
        self._left: Any = None
        self._steps = 0
        self._rates = np.zeros((len(crew.workers), 2))
        self._environments_waited = 0.0
        self._newest_version = 0

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`."""
        return self._target.item

    @property
    def seed(self) -> int:
        """The seed that was given, or drawn: with it the same environments can be made again."""
        return self._seed

    @property
    def options(self) -> dict[str, Any]:
        """What else `fbuf.init` needs: `num_envs`, `autoreset` and, if `"free"`, `lockstep`."""
        own = {"num_envs": self._num_envs, "autoreset": "same_step"}
        return own if self._mode == "barrier" else {**own, "lockstep": False}

    def collect(self, state: Any, steps: int) -> Any:
        """Have all environments make `steps` steps with the newest weights, and add them.

        Args:
            state: The buffer, a `fbuf.State` or a `fbuf.sharded.ShardedState`. It is consumed. A
                `HostStore` is changed in place.
            steps: How many. All numbers share a few compiled programs.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: If a worker cannot go on, or if the collector is closed or has
                `mode="free"`.
            TypeError: If `state` is no buffer.
            RuntimeError: If `state` has been consumed.
            ValueError: If the buffer was made for other rows or environments.
        """
        self._open("collect", "barrier")
        check.integer(f"{self._crew.owner}.collect", "steps", steps)
        lengths = [self._chunk] * (steps // self._chunk)
        lengths += [steps % self._chunk] if steps % self._chunk else []
        with self._adding(state, "collect"), bar("collect", steps, self._progress) as shown:
            self._drop()
            with uninterrupted():  # a command that is noted must have been sent
                for number, length in enumerate(lengths[: self._slot_count]):
                    self._command(number, length, newest=number == 0)
            for number, length in enumerate(lengths):
                while not all(worker.filled for worker in self._crew.workers):
                    self._crew.listen(wait=True)
                self._add(self._crew.workers)
                shown.update(length)
                if number + self._slot_count < len(lengths):
                    with uninterrupted():
                        self._command(number, lengths[number + self._slot_count], newest=False)
        return self._taken()

    def drain(self, state: Any, *, at_least: int = 0) -> Any:
        """Add what the workers have made. The first call starts them.

        Args:
            state: The buffer, as for `collect`.
            at_least: Wait until this many steps of each environment have come, on average.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: As `collect`, for `mode="barrier"`.
            ValueError: As `collect`.
        """
        self._open("drain", "free")
        check.integer(f"{self._crew.owner}.drain", "at_least", at_least, smallest=0)
        wanted = self._steps + at_least * self._num_envs
        with self._adding(state, "drain"), bar("drain", at_least, self._progress) as shown:
            with uninterrupted():
                for slot in range(0 if self._running else self._slot_count):
                    self._command(slot, self._chunk, newest=True)
                self._running = True
            while True:
                self._crew.listen(wait=self._steps < wanted)
                before = self._steps
                self._add_all()
                shown.update((self._steps - before) / self._num_envs)
                if self._steps >= wanted:
                    break
        return self._taken()

    def recover(self) -> Any:
        """The buffer, after `collect` or `drain` raised: with all whole chunks that have come.

        You may have lost it otherwise, for the state that you passed is consumed by the first
        chunk. Environments that step together need a chunk of each. It works after `close`, too.
        If a worker could not go on, all open episodes are truncated.

        Returns:
            The buffer.

        Raises:
            CollectorError: If the last call did not raise.
        """
        if self._left is None:
            raise CollectorError(
                f"{self._crew.owner}.recover: the last call did not raise; use its result"
            )
        if self._mode == "free":
            self._add_all()
        while all(worker.filled for worker in self._crew.workers):
            self._add(self._crew.workers)
        if self._failure is not None:
            with uninterrupted():
                self._left = self._target.end_episode(self._left)
        return self._taken()

    def publish(self, weights: Any) -> int:
        """Hand all copies of the policy new weights, by `policy.load(weights)`.

        With `mode="barrier"` they act with them from the next `collect` on, with `"free"` from
        their next chunk on.

        Args:
            weights: A tree like the `weights` that the collector was made with. They are copied
                now, so you may go on to change them; the policies get NumPy arrays.

        Returns:
            The version of these weights. It counts from 1; `weights` were version 0.

        Raises:
            CollectorError: If the collector was made without `weights`, if these are of another
                tree, shape or dtype, or if the collector is closed.
        """
        self._open("publish", self._mode)
        if self._weights is None:
            raise CollectorError(
                f"{self._crew.owner}.publish: the collector was made without weights; make it with "
                "weights=, a tree of arrays like those you publish, so that there is room for them"
            )
        with uninterrupted():  # half of them would be read by nobody
            return self._weights.publish(weights)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the collector was made.

        Returns:
            A dict as that of `Collector.stats`. `environments_waited` is a sum over workers.
        """
        made, worked = self._rates.T
        return {
            "steps": self._steps,
            "steps_per_second": float(np.sum(made / np.where(worked > 0, worked, 1))),
            "queue_depth": sum(len(worker.filled) for worker in self._crew.workers),
            "learner_waited": self._crew.waited,
            "environments_waited": self._environments_waited,
            "policy_version": self._newest_version,
            "policy_age": (self._weights.version if self._weights else 0) - self._newest_version,
            **self._episodes.stats(),
        }

    def close(self) -> None:
        """End the workers. What waits in slots is dropped.

        It returns within seconds: workers that do not close their environments are killed.
        """
        self._crew.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _open(self, function: str, mode: Mode) -> None:
        if self._failure is not None:
            raise CollectorError(
                f"{self._crew.owner}.{function}: the collector is closed, as a "
                f"{self._crew.noun} could not go on; make another one"
            ) from self._failure
        if self._crew.closed:
            raise CollectorError(
                f"{self._crew.owner}.{function}: the collector is closed; make another one"
            )
        if mode != self._mode:
            other = {"free": "drain(state)", "barrier": "collect(state, steps)"}[self._mode]
            raise CollectorError(
                f"{self._crew.owner}.{function}: the collector was made with mode={self._mode!r}; "
                f"call collector.{other}, or make it with mode={mode!r}"
            )

    @contextlib.contextmanager
    def _adding(self, state: Any, function: str) -> Generator[None]:
        """Rows are added to this buffer. If a worker cannot go on, all are ended."""
        self._target.check(function, state)
        self._left = state
        try:
            yield
        except CollectorError as error:
            if not self._crew.closed:  # else another thread has closed it
                self._failure = error
            error.add_note(
                "The state that you passed may be consumed; collector.recover() returns the newest."
            )
            self._crew.close()
            raise

    def _command(self, number: int, steps: int, *, newest: bool) -> None:
        """Have all workers fill one of their slots."""
        for worker in self._crew.workers:
            self._crew.command(worker, number % self._slot_count, steps, newest)

    def _drop(self) -> None:
        """Forget chunks of a call before that did not come to its end."""
        while any(worker.commands for worker in self._crew.workers):
            self._crew.listen(wait=True)
        for worker in self._crew.workers:
            if worker.filled:
                worker.filled.clear()
                self._cut[worker.envs] = True

    def _add_all(self) -> None:
        """Add all that has come, whoever it is of."""
        while waiting := [worker for worker in self._crew.workers if worker.filled]:
            # Those whose oldest chunk is in the same slot are added together.
            slot = waiting[0].filled[0].slot
            self._add([worker for worker in waiting if worker.filled[0].slot == slot])

    def _add(self, group: list[Worker]) -> None:
        """Add the oldest chunk of some workers, all in one slot."""
        there, fresh = np.zeros(self._num_envs, np.bool_), self._cut.copy()
        versions = np.zeros(self._num_envs, np.int32)
        for worker in group:
            filled = worker.filled[0]
            there[worker.envs] = True
            fresh[worker.envs] |= filled.fresh
            versions[worker.envs] = filled.version
        steps = group[0].filled[0].steps
        rows = map_leaves(lambda a: a[:steps], self._crew.slots.read(group[0].filled[0].slot))
        chunk = Chunk(**rows, version=versions, fresh=fresh & there)
        with uninterrupted():
            # fbuf.add copies what it is given, so the slot is free when it returns.
            self._left = self._target.add(self._left, chunk, envs=there)
            self._cut &= ~there
            done = [(worker, worker.filled.popleft()) for worker in group]
            for worker, filled in done:
                self._count(worker, filled)
            try:
                for worker, _ in done:
                    self._episodes.see(chunk, worker.envs)
            finally:  # whatever that does, its rows are added once, and each worker goes on
                if self._mode == "free":
                    for worker, filled in done:
                        self._crew.command(worker, filled.slot, self._chunk, newest=True)

    def _count(self, worker: Worker, filled: Filled) -> None:
        rows = filled.steps * (worker.envs.stop - worker.envs.start)
        self._steps += rows
        self._rates[worker.number] += rows, filled.worked
        self._environments_waited += filled.waited
        self._newest_version = filled.version

    def _taken(self) -> Any:
        """The newest state, which belongs to the caller from now on."""
        state, self._left = self._left, None
        return state


def check_arguments(
    owner: str, mode: str, timeout: float, *, positive: dict[str, int], others: dict[str, int]
) -> None:
    """Refuse what is out of range: counts below one, and others below zero."""
    for least, group in ((1, positive), (0, others)):
        for name, value in group.items():
            check.integer(owner, name, value, smallest=least)
    check.choice(owner, "mode", mode, get_args(Mode))
    if not timeout > 0:
        raise ValueError(f"{owner}: timeout must be above 0 seconds, got {timeout!r}")


def some_seed(seed: int | None) -> int:
    """A seed for who gives none: two collectors must not make the same episodes."""
    return secrets.randbelow(2**30) if seed is None else seed


def check_loads(owner: str, policy: Any) -> None:
    """Refuse weights for a policy that cannot be given any."""
    if not callable(getattr(policy, "load", None)):
        raise CollectorError(
            f"{owner}: the policy ({type(policy).__name__}) has no method load(weights); "
            "give it one, or leave weights out"
        )


def payload(
    owner: str, make_env: Any, policy: Any, weights: Any, info: Asked, observe: Asked
) -> bytes:
    """What every worker opens its station with."""
    for argument, asked in (("info", info), ("observe", observe)):
        Info(argument, asked, 1)  # here, and not in each of them, it is found wrong
    for name, value in (("make_env", make_env), ("policy", policy)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise CollectorError(
                f"{owner}: {name} cannot be sent to another process ({error}); it holds "
                "something that only this process has, so make that when it is first needed"
            ) from error
    return cloudpickle.dumps((make_env, policy, weights, info, observe))
