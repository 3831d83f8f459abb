"""Steps environments in processes of their own, and adds what comes to a buffer."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any, Literal, get_args

import cloudpickle
import numpy as np

import fbuf
from fbuf.checks import values as check
from fbuf_adapters._blank import blank_specs
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._crew import Crew
from fbuf_adapters.gymnasium._episodes import Episodes
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._interrupts import uninterrupted
from fbuf_adapters.gymnasium._memory import Memory
from fbuf_adapters.gymnasium._place import SIZE, Board
from fbuf_adapters.gymnasium._process import Process
from fbuf_adapters.gymnasium._progress import bar
from fbuf_adapters.gymnasium._slots import Slots
from fbuf_adapters.gymnasium._spawn import end_if_unguarded
from fbuf_adapters.gymnasium._target import Target
from fbuf_adapters.gymnasium._trees import map_leaves
from fbuf_adapters.gymnasium._weights import Weights
from fbuf_adapters.gymnasium._worker import Filled, Job

Mode = Literal["free", "barrier"]
"""Whether processes run on while you learn, or make the steps that you ask for."""


class ProcessCollector:
    """Steps environments in several processes, and adds the steps to a buffer.

    Each process holds `envs_per_process` environments and a copy of the policy. Chunks of steps
    come in shared memory, with one `fbuf.add` for those of all processes. Rows are those of
    `Collector`, and so are `item`, `options`, `stats` and `recover`.

    With `mode="barrier"`, for PPO, `collect` has each process make exactly the steps you ask for,
    with the newest weights. With `mode="free"`, for IMPALA and replay, processes run on while you
    learn, as far as they have slots. `drain` adds what has come. Each takes the newest weights
    before each chunk. A field `version`, int32, in the buffer's item says which.

    Make it under `if __name__ == "__main__":`. Each process starts a new Python, which imports your
    script. Processes see no GPU (`CUDA_VISIBLE_DEVICES=""`, `JAX_PLATFORMS=cpu`), have
    `OMP_NUM_THREADS=1`, ignore Ctrl-C, and end with your process, even if that is killed.

    If an environment or the policy raises in a process, or if a process is killed or hangs, you get
    a `CollectorError` that names the process and the environment, and has its traceback. The
    collector is closed then. `recover` returns the buffer with all whole chunks that had come. With
    `restart`, the process is started anew instead, with a `RuntimeWarning`. The open episodes of
    its environments are truncated.

    Args:
        make_env: Returns one `gymnasium.Env`. Called in the processes. It may be a lambda.
        policy: As for `Collector`. Each process gets a copy, so it must be picklable (cloudpickle).
        processes: How many.
        envs_per_process: How many environments each has. They reset in the step that ends an
            episode.
        chunk: How many steps of each environment come at once.
        seed: Environment `i` of all is reset with `seed + i` first. Each process also seeds Python,
            NumPy and PyTorch, all differently. A generator of the policy's own is copied, and then
            acts alike in all processes, unless the policy has a method `seed(number)`: each process
            calls it before the first action, with a number of its own.
        mode: `"free"` or `"barrier"`.
        weights: A tree of arrays like those you will `publish`: of dicts, lists and tuples. Every
            process begins with `policy.load(weights)`, version 0. None: no weights are published.
        timeout: Seconds that a process may take for one step of one environment, or for one action.
            To start it may take a minute at least.
        restart: How many times a process that ended or hangs is started anew, in all.
        slots: How many chunks each process may be ahead.
        blank: As for `Collector`. No process fills these fields, so they cross nothing.
        progress: As for `Collector`.

    Raises:
        CollectorError: If a process cannot make its environments, if `make_env` or `policy` cannot
            be pickled, or if your script has no `__main__` guard.
        ValueError: If an argument is out of range, or if `blank` has a field that is filled.

    Cost: starting takes seconds, as each process imports what your script and functions import. The
    memory is `slots` chunks of all environments, with each observation twice.

    Examples:
        >>> import fbuf, gymnasium
        >>> from fbuf_adapters.gymnasium import ProcessCollector
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> policy = lambda observation: (observation[:, 2] > 0).astype(int)
        >>> with ProcessCollector(
        ...     make_env, policy, processes=1, envs_per_process=4, mode="barrier"
        ... ) as collector:
        ...     state = fbuf.init(collector.item, 1000, **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 400 of 1000 rows, 4 environments)
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        policy: Any,
        *,
        processes: int,
        envs_per_process: int,
        chunk: int = 64,
        seed: int = 0,
        mode: Mode = "free",
        weights: Any = None,
        timeout: float = 60.0,
        restart: int = 0,
        slots: int = 2,
        blank: dict[str, Any] | None = None,
        progress: bool | None = None,
    ) -> None:
        end_if_unguarded()
        for name, value, least in (
            ("processes", processes, 1),
            ("envs_per_process", envs_per_process, 1),
            ("chunk", chunk, 1),
            ("seed", seed, 0),
            ("restart", restart, 0),
            ("slots", slots, 1),
        ):
            check.integer("ProcessCollector", name, value, smallest=least)
        check.choice("ProcessCollector", "mode", mode, get_args(Mode))
        if not timeout > 0:
            raise ValueError(f"ProcessCollector: timeout must be above 0 seconds, got {timeout!r}")
        self._weights = None if weights is None else _published(policy, weights)
        self._num_envs = processes * envs_per_process
        self._chunk = chunk
        self._mode: Mode = mode
        self._slot_count = slots
        self._progress = progress
        blank = blank_specs("ProcessCollector", blank)
        board, memory = Board(Memory(SIZE * processes)), Memory()
        payload = _payload(make_env, policy, self._weights)
        jobs = [
            Job(
                number=number,
                envs=slice(number * envs_per_process, (number + 1) * envs_per_process),
                all_envs=self._num_envs,
                slots=slots,
                chunk=chunk,
                seed=seed + number * envs_per_process,
                die_with_parent=False,
                payload=payload,
                weights=None if self._weights is None else self._weights.memory,
                board=board,
                chunks=memory,
            )
            for number in range(processes)
        ]
        self._crew = Crew(jobs, timeout=timeout, restarts=restart)
        self._finalizer = weakref.finalize(self, self._crew.close)
        layout = (self._crew.spec, slots, chunk, self._num_envs)
        memory.grow(Slots.size(*layout))
        self._slots = Slots(memory, *layout)
        try:
            self._target = Target(self._crew.spec, blank, self.options, chunk, "ProcessCollector")
        except ValueError:  # the policy fills a field that is to be blank
            self._crew.close()
            raise
        self._episodes = Episodes(self._num_envs, "same_step")
        self._cut = np.zeros(self._num_envs, np.bool_)
        """Whose newest steps were dropped, so that those to come do not follow what was added."""
        self._running = False
        self._failure: CollectorError | None = None
        self._left: Any = None
        self._steps = 0
        self._rates = np.zeros((processes, 2))
        self._environments_waited = 0.0
        self._newest_version = 0

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`."""
        return self._target.item

    @property
    def options(self) -> dict[str, Any]:
        """What else `fbuf.init` needs: `num_envs`, `autoreset` and, if `"free"`, `lockstep`."""
        own = {"num_envs": self._num_envs, "autoreset": "same_step"}
        return own if self._mode == "barrier" else {**own, "lockstep": False}

    def collect(self, state: Any, steps: int) -> Any:
        """Have all environments make `steps` steps with the newest weights, and add them.

        Args:
            state: The buffer. It is consumed.
            steps: How many. A number that `chunk` does not divide compiles nothing new.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: If a process cannot go on, or if the collector is closed or has
                `mode="free"`.
            ValueError: If the buffer was made for other rows or environments.
        """
        self._open("collect", "barrier")
        check.integer("ProcessCollector.collect", "steps", steps)
        lengths = [self._chunk] * (steps // self._chunk)
        lengths += [steps % self._chunk] if steps % self._chunk else []
        with self._adding(state, "collect"), bar("collect", steps, self._progress) as shown:
            self._drop()
            for number, length in enumerate(lengths[: self._slot_count]):
                self._command(number, length, newest=number == 0)
            for number, length in enumerate(lengths):
                while not all(process.filled for process in self._crew.processes):
                    self._crew.listen(wait=True)
                self._add(self._crew.processes)
                shown.update(length)
                if number + self._slot_count < len(lengths):
                    self._command(number, lengths[number + self._slot_count], newest=False)
        return self._taken()

    def drain(self, state: Any, *, at_least: int = 0) -> Any:
        """Add what the processes have made. The first call starts them.

        Args:
            state: The buffer. It is consumed.
            at_least: Wait until this many steps of each environment have come, on average.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: As `collect`, for `mode="barrier"`.
            ValueError: As `collect`.
        """
        self._open("drain", "free")
        check.integer("ProcessCollector.drain", "at_least", at_least, smallest=0)
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
        If a process could not go on, all open episodes are truncated.

        Returns:
            The buffer.

        Raises:
            CollectorError: If the last call did not raise.
        """
        if self._left is None:
            raise CollectorError(
                "ProcessCollector.recover: the last call did not raise; use its result"
            )
        if self._mode == "free":
            self._add_all()
        while all(process.filled for process in self._crew.processes):
            self._add(self._crew.processes)
        if self._failure is not None:
            with uninterrupted():
                self._left = fbuf.end_episode(self._left)
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
                "ProcessCollector.publish: the collector was made without weights; make it with "
                "weights=, a tree of arrays like those you publish, so that there is room for them"
            )
        return self._weights.publish(weights)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the collector was made.

        Returns:
            A dict as that of `Collector.stats`. `environments_waited` is a sum over processes.
        """
        made, worked = self._rates.T
        return {
            "steps": self._steps,
            "steps_per_second": float(np.sum(made / np.where(worked > 0, worked, 1))),
            "queue_depth": sum(len(process.filled) for process in self._crew.processes),
            "learner_waited": self._crew.waited,
            "environments_waited": self._environments_waited,
            "policy_version": self._newest_version,
            "policy_age": (self._weights.version if self._weights else 0) - self._newest_version,
            **self._episodes.stats(),
        }

    def close(self) -> None:
        """End the processes. What waits in slots is dropped.

        It returns within seconds: processes that do not close their environments are killed.
        """
        self._crew.close()
        self._finalizer.detach()

    def __enter__(self) -> ProcessCollector:
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
                f"ProcessCollector.{function}: the collector is closed, as a process could not go "
                f"on; make another one"
            ) from self._failure
        if self._crew.closed:
            raise CollectorError(
                f"ProcessCollector.{function}: the collector is closed; make another one"
            )
        if mode != self._mode:
            other = {"free": "drain(state)", "barrier": "collect(state, steps)"}[self._mode]
            raise CollectorError(
                f"ProcessCollector.{function}: the collector was made with mode={self._mode!r}; "
                f"call collector.{other}, or make it with mode={mode!r}"
            )

    @contextlib.contextmanager
    def _adding(self, state: Any, function: str) -> Generator[None]:
        """Rows are added to this buffer. If a process cannot go on, all are ended."""
        self._target.check(function, state)
        self._left = state
        try:
            yield
        except CollectorError as error:
            self._failure = error
            error.add_note(
                "The state that you passed may be consumed; collector.recover() returns the newest."
            )
            self._crew.close()
            raise

    def _command(self, number: int, steps: int, *, newest: bool) -> None:
        """Have all processes fill one of their slots."""
        for process in self._crew.processes:
            self._crew.command(process, number % self._slot_count, steps, newest)

    def _drop(self) -> None:
        """Forget chunks of a call before that did not come to its end."""
        while any(process.commands for process in self._crew.processes):
            self._crew.listen(wait=True)
        for process in self._crew.processes:
            if process.filled:
                process.filled.clear()
                self._cut[process.envs] = True

    def _add_all(self) -> None:
        """Add all that has come, whoever it is of."""
        while waiting := [process for process in self._crew.processes if process.filled]:
            # Those whose oldest chunk is in the same slot are added together.
            slot = waiting[0].filled[0].slot
            self._add([process for process in waiting if process.filled[0].slot == slot])

    def _add(self, group: list[Process]) -> None:
        """Add the oldest chunk of some processes, all in one slot."""
        there, fresh = np.zeros(self._num_envs, np.bool_), self._cut.copy()
        versions = np.zeros(self._num_envs, np.int32)
        for process in group:
            filled = process.filled[0]
            there[process.envs] = True
            fresh[process.envs] |= filled.fresh
            versions[process.envs] = filled.version
        steps = group[0].filled[0].steps
        rows = map_leaves(lambda a: a[:steps], self._slots.read(group[0].filled[0].slot))
        chunk = Chunk(**rows, version=versions, fresh=fresh & there)
        with uninterrupted():
            # fbuf.add copies what it is given, so the slot is free when it returns.
            self._left = self._target.add(self._left, chunk, envs=there)
            self._cut &= ~there
            for process in group:
                filled = process.filled.popleft()
                self._count(process, filled, chunk)
                if self._mode == "free":
                    self._crew.command(process, filled.slot, self._chunk, newest=True)

    def _count(self, process: Process, filled: Filled, chunk: Chunk) -> None:
        self._episodes.see(chunk, process.envs)
        rows = filled.steps * (process.envs.stop - process.envs.start)
        self._steps += rows
        self._rates[process.number] += rows, filled.worked
        self._environments_waited += filled.waited
        self._newest_version = filled.version

    def _taken(self) -> Any:
        """The newest state, which belongs to the caller from now on."""
        state, self._left = self._left, None
        return state


ProcessCollector.__module__ = "fbuf_adapters.gymnasium"  # where users find it


def _published(policy: Any, weights: Any) -> Weights:
    if not callable(getattr(policy, "load", None)):
        raise CollectorError(
            f"ProcessCollector: the policy ({type(policy).__name__}) has no method load(weights); "
            "give it one, or leave weights out"
        )
    return Weights(weights)


def _payload(make_env: Any, policy: Any, weights: Any) -> Memory:
    """What is sent to every process: in shared memory, for a pipe would have to be waited for."""
    for name, value in (("make_env", make_env), ("policy", policy)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise CollectorError(
                f"ProcessCollector: {name} cannot be sent to a process ({error}); it holds "
                "something that only this process has, so make that when it is first needed"
            ) from error
    return Memory.of(cloudpickle.dumps((make_env, policy, weights)))
