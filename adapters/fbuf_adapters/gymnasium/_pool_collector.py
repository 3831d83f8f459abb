"""The base of collectors over workers: workers make chunks, and the learner adds them.

A worker is a process, or an actor of Ray.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from fbuf.adapter_api import check, uninterrupted
from fbuf_adapters.gymnasium._base_collector import BaseCollector, BufferT, alone
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._chunk_writer import ChunkWriter
from fbuf_adapters.gymnasium._episodes import EpisodeStats
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._shared_memory import SharedChunks
from fbuf_adapters.gymnasium._spaces import map_leaves
from fbuf_adapters.gymnasium._worker_pool import Mode, PoolOptions, PoolWorker, WorkerPool


class PoolCollector(BaseCollector):
    """The methods of `ProcessCollector` and of Ray's `Collector`, which make the workers.

    Args:
        options: The options of the collector.
        kind: Makes one of the workers, as `PoolWorker` does.
        wait: As for `WorkerPool`.
        payload: The first argument of all workers.
        weights: The holder of the weights, with `version` and `publish`, or None.
    """

    def __init__(
        self,
        options: PoolOptions,
        kind: Callable[..., PoolWorker],
        wait: Callable[[list[Any], float], Any],
        payload: Any,
        weights: Any,
    ) -> None:
        chunks = SharedChunks(options.slots, options.chunk, options.num_envs)
        workers = (
            kind(options, number, payload, weights, chunks) for number in range(options.workers)
        )
        pool = self._pool = WorkerPool(options, workers, wait, chunks)
        self._finalizer = weakref.finalize(self, pool.close)
        self._options = options
        self._mode: Mode = options.mode
        self._progress = options.progress
        self._chunks = chunks
        self._weights = weights
        blank = options.blank or {}
        try:
            self._writer = ChunkWriter(pool.spec, blank, self.options, options.chunk, self._owner)
        except ValueError:  # the policy must not fill a blank field
            pool.close()
            raise
        self._episodes = EpisodeStats(options.num_envs, "same_step")
        self._cut = np.zeros(options.num_envs, np.bool_)
        """The environments with dropped steps, whose next rows are no continuation."""
        self._running = False
        self._failure: CollectorError | None = None
        self._steps = 0
        self._rates = np.zeros((options.workers, 2))
        """The number of rows of each worker, and the seconds for them."""
        self._environments_waited = 0.0

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`."""
        return self._writer.item

    @property
    def seed(self) -> int:
        """The seed of the caller or of the system, which reproduces the environments."""
        return self._options.seed

    @property
    def options(self) -> dict[str, Any]:
        """The other arguments that `fbuf.init` needs.

        They are `num_envs`, `autoreset` and, if `mode="async"`, `lockstep`.
        """
        own = {"num_envs": self._options.num_envs, "autoreset": "same_step"}
        return own if self._mode == "sync" else {**own, "lockstep": False}

    @alone
    def collect(self, state: BufferT, steps: int) -> BufferT:
        """Have all environments make `steps` steps with the newest weights, and add them.

        Args:
            state: The buffer, a `fbuf.State` or a `fbuf.sharded.ShardedState`. It is consumed. A
                `HostStore` is changed in place.
            steps: The number of steps. All numbers share a few compiled programs.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: If a worker fails, or if the collector is closed or has `mode="async"`.
            TypeError: If `state` is no buffer.
            RuntimeError: If `state` has been consumed.
            ValueError: If the buffer was made for other rows or environments.
        """
        self._open("collect", "sync")
        check.integer(f"{self._owner}.collect", "steps", steps)
        chunk, slots, workers = self._options.chunk, self._options.slots, self._pool.workers
        lengths = [chunk] * (steps // chunk)
        lengths += [steps % chunk] if steps % chunk else []
        with self._adding(state, "collect"), self._bar("collect", steps) as shown:
            self._drop()
            with uninterrupted():  # a recorded command must have been sent
                for number, length in enumerate(lengths[:slots]):
                    self._command(number, length, newest=number == 0)
            for number, length in enumerate(lengths):
                while not all(worker.filled for worker in workers):
                    self._pool.listen(wait=True)
                self._add(workers)
                shown.update(length)
                if number + slots < len(lengths):
                    with uninterrupted():
                        self._command(number, lengths[number + slots], newest=False)
        return self._taken()

    @alone
    def drain(self, state: BufferT, *, at_least: int = 0) -> BufferT:
        """Add the chunks that the workers have made. The first call starts them.

        Args:
            state: The buffer, as for `collect`.
            at_least: Wait until this many steps of each environment have come, on average.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: As `collect`, for `mode="sync"`.
            ValueError: As `collect`.
        """
        self._open("drain", "async")
        check.integer(f"{self._owner}.drain", "at_least", at_least, smallest=0)
        num_envs, slots = self._options.num_envs, self._options.slots
        wanted = self._steps + at_least * num_envs
        with self._adding(state, "drain"), self._bar("drain", at_least) as shown:
            with uninterrupted():
                for slot in range(0 if self._running else slots):
                    self._command(slot, self._options.chunk, newest=True)
                self._running = True
            while True:
                self._pool.listen(wait=self._steps < wanted)
                before = self._steps
                self._add_all()
                shown.update((self._steps - before) / num_envs)
                if self._steps >= wanted:
                    break
        return self._taken()

    def publish(self, weights: Any) -> int:
        """Hand all copies of the policy new weights, by `policy.load(weights)`.

        With `mode="sync"` the next `collect` uses them, with `"async"` the next chunk of each
        worker.

        Args:
            weights: A tree like the argument `weights` of the collector. They are copied
                now, so you may go on to change them; the policies get NumPy arrays.

        Returns:
            The version of these weights. It counts from 1; `weights` were version 0.

        Raises:
            CollectorError: If the collector was made without `weights` or is closed, or if these
                are of another tree, shape or dtype.
        """
        self._open("publish", self._mode)
        if self._weights is None:
            raise CollectorError(
                f"{self._owner}.publish: the collector was made without weights; make it with "
                "weights=, a tree of arrays like those you publish, so that there is room for them"
            )
        with uninterrupted():  # no worker would read half-written weights
            return self._weights.publish(weights)

    def close(self) -> None:
        """End the workers. Chunks that wait in slots are dropped.

        It returns within seconds: workers that do not close their environments are killed.
        """
        self._pool.close()
        self._finalizer.detach()

    def _open(self, function: str, mode: Mode) -> None:
        if self._failure is not None:
            raise CollectorError(
                f"{self._owner}.{function}: the collector is closed, as a {self._options.noun} "
                "could not go on; make another one"
            ) from self._failure
        if self._pool.closed:
            raise self._closed_error(function)
        if mode != self._mode:
            other = {"async": "drain(state)", "sync": "collect(state, steps)"}[self._mode]
            raise CollectorError(
                f"{self._owner}.{function}: the collector was made with mode={self._mode!r}; "
                f"call collector.{other}, or make it with mode={mode!r}"
            )

    @contextlib.contextmanager
    def _adding(self, state: Any, function: str) -> Generator[None]:
        """Add rows to this buffer in the block. If a worker fails, end all."""
        self._writer.check(function, state)
        self._left = state
        try:
            yield
        except CollectorError as error:
            if not self._pool.closed:  # otherwise another thread has closed it
                self._failure = error
            error.add_note(
                "The state that you passed may be consumed; collector.recover() returns the newest."
            )
            self._pool.close()
            raise

    def _command(self, number: int, steps: int, *, newest: bool) -> None:
        """Have all workers fill one of their slots."""
        for worker in self._pool.workers:
            self._pool.command(worker, number % self._options.slots, steps, newest)

    def _drop(self) -> None:
        """Drop chunks of an earlier call that raised."""
        while any(worker.commands for worker in self._pool.workers):
            self._pool.listen(wait=True)
        for worker in self._pool.workers:
            if worker.filled:
                worker.filled.clear()
                self._cut[worker.envs] = True

    def _add_all(self) -> None:
        """Add all chunks that have come, of all workers."""
        while waiting := [worker for worker in self._pool.workers if worker.filled]:
            # Workers whose oldest chunk is in the same slot are added together.
            slot = waiting[0].filled[0].slot
            self._add([worker for worker in waiting if worker.filled[0].slot == slot])

    def _add_rest(self) -> None:
        if self._mode == "async":
            self._add_all()
        while all(worker.filled for worker in self._pool.workers):
            self._add(self._pool.workers)
        if self._failure is not None:
            with uninterrupted():
                self._left = self._writer.end_episode(self._left)

    def _add(self, group: list[PoolWorker]) -> None:
        """Add the oldest chunk of some workers, all in one slot."""
        there, fresh = np.zeros_like(self._cut), self._cut.copy()
        versions = np.zeros(len(there), np.int32)
        for worker in group:
            filled = worker.filled[0]
            there[worker.envs] = True
            fresh[worker.envs] |= filled.fresh
            versions[worker.envs] = filled.version
        oldest = group[0].filled[0]
        rows = map_leaves(lambda a: a[: oldest.steps], self._chunks.read(oldest.slot))
        chunk = StepChunk(**rows, version=versions, fresh=fresh & there)
        with uninterrupted():
            # fbuf.add copies its arguments, so the slot is free when it returns.
            self._left = self._writer.add(self._left, chunk, envs=there)
            self._cut &= ~there
            done = [(worker, worker.filled.popleft()) for worker in group]
            for worker, filled in done:
                rows = filled.steps * self._options.envs_per_worker
                self._steps += rows
                self._rates[worker.number] += rows, filled.worked
                self._environments_waited += filled.waited
                self._newest_version = filled.version
            try:
                for worker, _ in done:
                    self._episodes.see(chunk, worker.envs)
            finally:  # even if that raises, rows are added once, and each worker continues
                if self._mode == "async":
                    for worker, filled in done:
                        self._pool.command(worker, filled.slot, self._options.chunk, newest=True)

    def _measured(self) -> dict[str, Any]:
        made, worked = self._rates.T
        return {
            "steps": self._steps,
            "steps_per_second": float(np.sum(made / np.where(worked > 0, worked, 1))),
            "queue_depth": sum(len(worker.filled) for worker in self._pool.workers),
            "learner_waited": self._pool.waited,
            "environments_waited": self._environments_waited,
        }

    def _published_version(self) -> int:
        return self._weights.version if self._weights else 0
