"""Steps a vector environment, and adds the steps to a buffer."""

from __future__ import annotations

import collections
import functools
import weakref
from typing import Any

import numpy as np

from fbuf.adapter_api import check, uninterrupted
from fbuf_adapters._fields import blank_specs
from fbuf_adapters.gymnasium import _vector_envs
from fbuf_adapters.gymnasium._base_collector import BaseCollector, BufferT, alone, check_timeout
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._chunk_writer import SMALL, ChunkWriter
from fbuf_adapters.gymnasium._episodes import EpisodeStats
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._producer import Background, Producer
from fbuf_adapters.gymnasium._stepper import Stepper

_PATIENCE = 5.0
"""Seconds that a step may take when the collector is closed."""

_ROWS, _LONGEST = 4096, 512
"""Limits of a chunk in rows and in steps, which make an add cheap beside the steps."""


class Collector(BaseCollector):
    """Steps a vector environment with a policy, and adds the steps to a buffer.

    Steps are gathered in chunks of NumPy arrays, with one `fbuf.add` a chunk. Rows have the fields
    `observation`, `action`, `reward`, and the policy's output beside the action. 64-bit floats and
    integers are stored in 32 bits; an integer that does not fit is an error. A buffer may leave out
    fields of `item`, and may have two more. The field `next_observation` is the true one, at ends
    too. The field `version`, int32, is that of the policy that acted. To a buffer made with
    `next_of="observation"` the collector gives the next observations.

    With `background=True` a thread steps the environments while you learn. It puts chunks into a
    queue, and `drain` adds them, in your thread: a state has one owner.

    It owns the environments: it resets them at the start, and `close` closes them. Behind rows that
    others have added to the buffer since, and in another buffer, it truncates the open episodes
    first. So several collectors may fill one buffer by turns.

    If an environment raises in the middle of a chunk, or you press Ctrl-C, the whole steps made so
    far are not lost. The next call adds them first, ends the open episodes, and goes on from a
    reset. The state that you passed may have been consumed; `recover` returns the newest.

    Args:
        envs: A `gymnasium.vector.VectorEnv`, of any autoreset mode, that says its mode.
        policy: `policy(observation) -> action`, or `-> (action, extras)`. The observation is that
            of the environments, `[num_envs, ...]`. The action is an array of NumPy with that first
            axis, or a list of numbers; the extras are a dict of such arrays. A policy with a method
            `load(weights)` takes the weights of `publish`.
        chunk: The number of steps of each environment that go into the buffer at once. None is the
            number that makes 4,096 rows, from 128 to 512; with `background` it is 128.
        seed: For the first reset, as the environments take it. If it is one number, and the policy
            has a method `seed`, that is called before the first action. It gets another number made
            of this one: with the same one, the policy would draw the noise of an environment.
        background: Step in a thread of its own.
        queue: The number of chunks that the thread may be ahead.
        timeout: Seconds that a step or a reset of all environments may take. Only environments in
            processes, such as `AsyncVectorEnv`, have this limit.
        blank: More fields of the rows, for you to `fbuf.write` later, such as
            `{"advantage": np.float32(0)}`. Give one row, of which only shapes and dtypes are read.
            The fields are stored as zeros.
        info: Entries of the step's info that become fields of the rows. Give names that `reset`
            returns, or a dict of names and values, such as `{"is_success": np.bool_(False)}`. The
            value stands where an environment has no entry; without a value it is zero. At the end
            of an episode the entries are those of `final_info`.
        observe: Entries of info that belong to the observation, such as `("action_mask",)`; given
            like `info`. The observation is then a dict of `observation` and these entries, for the
            policy, for rows and for next observations.
        progress: Show a bar in calls that take more than a second; None shows it on a terminal.

    Raises:
        ValueError: If the environments do not say how they reset, a space cannot be stored, or an
            argument is out of range.

    Cost: a few microseconds a step beside the environments and the policy, and one `fbuf.add` a
    chunk.

    Examples:
        >>> import fbuf, gymnasium
        >>> from fbuf_adapters.gymnasium import Collector
        >>> envs = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync")
        >>> policy = lambda observation: (observation[:, 2] > 0).astype(int)
        >>> with Collector(envs, policy, seed=0) as collector:
        ...     state = fbuf.init(collector.item, 1000, next_of="observation", **collector.options)
        ...     state = collector.collect(state, 100)
        >>> state
        State(Uniform, 377 of 1000 rows, 4 environments)
    """

    _owner = "Collector"

    def __init__(
        self,
        envs: Any,
        policy: Any,
        *,
        chunk: int | None = None,
        seed: Any = None,
        background: bool = False,
        queue: int = 2,
        timeout: float = 60.0,
        blank: dict[str, Any] | None = None,
        info: Asked = None,
        observe: Asked = None,
        progress: bool | None = None,
    ) -> None:
        if chunk is not None:
            check.integer("Collector", "chunk", chunk)
        check.integer("Collector", "queue", queue)
        check_timeout("Collector", timeout)
        stepper = Stepper(envs, policy, seed=seed, info=info, observe=observe)
        producer = self._producer = Producer(stepper, policy)
        if chunk is None:
            rows = _ROWS // stepper.num_envs
            chunk = SMALL if background else min(max(rows, SMALL), _LONGEST)
        _vector_envs.limit_time(envs, timeout)
        self._envs = envs
        self._chunk = chunk
        self._progress = progress
        self._blank = blank_specs("Collector", blank)
        self._background: Background | None = None
        if background:
            # The producer, and not the collector, which the thread must not keep alive.
            make = functools.partial(producer.chunk, chunk)
            self._background = Background(make, stepper.partial_chunk, queue)
            weakref.finalize(self, self._background.close, _PATIENCE)
        self._episodes = EpisodeStats(stepper.num_envs, stepper.autoreset)
        self._ended = np.zeros(stepper.num_envs, np.bool_)
        self._pending: collections.deque[StepChunk] = collections.deque()
        self._added = 0
        self._thread_error: BaseException | None = None
        """The exception of the thread, until the collector raises it."""
        self._closed = False

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`.

        The first time, the environments are reset, and the policy is called to learn its extras.
        The first step takes the action of that call.

        Raises:
            CollectorError: The first time, if the collector is closed, or if the policy returns
                something else than actions.
            ValueError: If `blank` has a field that is filled.
        """
        return self._writer.item

    @property
    def options(self) -> dict[str, Any]:
        """The other arguments that `fbuf.init` needs: `num_envs` and `autoreset`."""
        stepper = self._producer.stepper
        return {"num_envs": stepper.num_envs, "autoreset": stepper.autoreset}

    @alone
    def collect(self, state: BufferT, steps: int) -> BufferT:
        """Make `steps` steps of each environment, and add them.

        Args:
            state: The buffer, a `fbuf.State` or a `fbuf.sharded.ShardedState`. It is consumed. A
                `HostStore` is changed in place.
            steps: The number of calls of `envs.step`. In the mode `NEXT_STEP` such a call only
                resets the environments that had ended: for them it is no step. All numbers share
                four compiled programs.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: If the collector is closed or steps in the background, the policy
                returns something else than such actions, or an environment hangs. Exceptions of
                environments and of the policy come out as they are.
            TypeError: If `state` is no buffer.
            RuntimeError: If `state` has been consumed.
            ValueError: If the buffer was made for other rows or environments, or an integer does
                not fit in 32 bits. The steps of a chunk (`chunk` of them at most) are then lost.
        """
        self._open("collect")
        if self._background is not None:
            raise CollectorError(
                "Collector.collect: the environments are stepped in the background; call "
                "collector.drain(state)"
            )
        check.integer("Collector.collect", "steps", steps)
        self._check(state, "collect")
        self._left = state
        left = steps
        try:
            with self._bar("collect", steps) as shown:
                self._add_rest()
                while left:
                    chunk = self._producer.chunk(min(left, self._chunk))
                    self._pending.append(chunk)
                    self._add_rest()
                    left -= chunk.steps
                    shown.update(chunk.steps)
        except BaseException as error:
            partial = self._producer.stepper.partial_chunk()
            self._pending.extend([] if partial is None else [partial])
            self._producer.stepper.restart()
            self._explain(error)
            raise
        return self._taken()

    @alone
    def drain(self, state: BufferT, *, at_least: int = 0) -> BufferT:
        """Add the steps made in the background. The first call starts the thread.

        Args:
            state: The buffer, as for `collect`.
            at_least: Wait until this many steps of each environment have come, counted as the
                `steps` of `collect`.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: As `collect`; also if the environments or the policy raised in the
                thread, with that exception as the cause. Then the state is not consumed, and the
                next call starts the thread again.
        """
        self._open("drain")
        background = self._background
        if background is None:
            raise CollectorError(
                "Collector.drain: this collector steps in your thread; call "
                "collector.collect(state, steps), or make it with background=True"
            )
        check.integer("Collector.drain", "at_least", at_least, smallest=0)
        self._check(state, "drain")
        self._left = state
        with self._bar("drain", at_least) as shown:
            came, limit = 0, max(background.depth, 1)
            while came < at_least or limit > 0:
                self._open("drain")  # another thread may close the collector
                entry = None
                if self._thread_error is None:
                    with uninterrupted():  # a taken entry is no longer in the queue
                        entry = background.get(wait=came < at_least)
                        if isinstance(entry, BaseException):
                            self._thread_error = entry
                        elif entry is not None:
                            self._pending.append(entry)
                if self._thread_error is not None:
                    error, self._thread_error = self._thread_error, None
                    raise self._failure(error) from error
                if isinstance(entry, StepChunk):
                    came += entry.steps
                    shown.update(entry.steps)
                limit -= 1
            self._add_rest()
        return self._taken()

    def publish(self, weights: Any) -> int:
        """Hand the policy new weights: `policy.load(weights)`, before the next chunk.

        Args:
            weights: A tree of arrays or tensors. They are copied now, so you may go on to change
                them; the policy gets NumPy arrays.

        Returns:
            The version of these weights. It counts from 1; the policy begins with version 0.

        Raises:
            CollectorError: If the policy has no `load`, or if the collector is closed.
        """
        self._open("publish")
        return self._producer.publish(weights)

    def close(self) -> None:
        """Stop the thread, and close the environments. Chunks that wait in the queue are dropped.

        It always returns. Processes of an `AsyncVectorEnv` that do not answer are ended. It
        abandons a thread whose step does not return in five seconds.
        """
        if self._closed:
            return
        self._closed = True
        background = self._background
        try:
            if background is not None and not background.close(_PATIENCE):
                _vector_envs.end_processes(self._envs)  # a step that waits for a process then fails
                if not background.close(_PATIENCE):
                    return  # closing the environments would wait for the step, too
            self._producer.stepper.close()
        except BaseException:  # Ctrl-C, say
            self._closed = False  # the next call closes what is left
            raise

    def _open(self, function: str) -> None:
        if self._closed:
            raise self._closed_error(function)

    def _measured(self) -> dict[str, Any]:
        producer, background = self._producer, self._background
        rate = producer.steps / producer.seconds if producer.steps else 0.0
        return {
            "steps": self._added,
            "steps_per_second": rate,
            "queue_depth": background.depth if background else 0,
            "learner_waited": background.empty_seconds if background else 0.0,
            "environments_waited": background.full_seconds if background else 0.0,
        }

    def _published_version(self) -> int:
        return self._producer.version

    @functools.cached_property
    def _writer(self) -> ChunkWriter:
        self._open("item")
        spec = self._producer.stepper.spec
        return ChunkWriter(spec, self._blank, self.options, self._chunk, self._owner)

    def _check(self, state: Any, function: str) -> None:
        """Refuse a buffer that does not fit the rows."""
        self._writer.check(function, state)
        self._producer.stepper.needs_final = self._writer.keeps_next(state)

    def _add_rest(self) -> None:
        """Add the chunks that wait, oldest first."""
        while self._pending:
            chunk = self._pending[0]
            dummies = None
            if self._producer.stepper.autoreset == "next_step" and not chunk.fresh:
                dummies = self._ended
            with uninterrupted():
                self._left = self._writer.add(self._left, chunk, dummies=dummies)
                self._pending.popleft()
                self._ended = chunk.terminated[-1] | chunk.truncated[-1]
                self._added += chunk.made
                self._newest_version = chunk.version
                self._episodes.see(chunk)  # last, so that an exception adds no rows twice

    def _failure(self, error: BaseException) -> CollectorError:
        where = _vector_envs.failed(self._envs, error)
        return CollectorError(
            "Collector.drain: stepping the environments in the background raised "
            f"{type(error).__name__}: {error}" + (f" ({where})" if where else "") + "; the state "
            "that you passed is not consumed, and the next call goes on from a reset"
        )

    def _explain(self, error: BaseException) -> None:
        """Add a note that names the environment, and the method that returns the buffer."""
        where = _vector_envs.failed(self._envs, error)
        error.add_note(
            "Collector.collect: " + (f"{where}; " if where else "") + "the state that you passed "
            "may be consumed, and collector.recover() returns the newest"
        )


Collector.__module__ = "fbuf_adapters.gymnasium"  # its public module
