"""Steps a vector environment, and adds what comes to a buffer."""

from __future__ import annotations

import collections
import types
import weakref
from typing import Any

import numpy as np

from fbuf.checks import values as check
from fbuf.runtime.interrupts import uninterrupted
from fbuf_adapters._extra_fields import blank_specs
from fbuf_adapters.gymnasium import _closing
from fbuf_adapters.gymnasium._background import Background, Failed
from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._chunk_writer import SMALL, Target
from fbuf_adapters.gymnasium._episodes import Episodes
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import Asked
from fbuf_adapters.gymnasium._producer import Producer
from fbuf_adapters.gymnasium._progress import bar
from fbuf_adapters.gymnasium._stepper import Stepper
from fbuf_adapters.gymnasium._timeout import limit

_PATIENCE = 5.0
"""Seconds that a step may take when the collector is closed."""


_ROWS, _LONGEST = 4096, 512
"""Of a chunk: so many rows, but at most so many steps, make an add cheap beside the steps."""


class Collector:
    """Steps a vector environment with a policy, and adds the steps to a buffer.

    Steps are gathered in chunks of NumPy arrays, with one `fbuf.add` a chunk. Rows have the fields
    `observation`, `action`, `reward`, and what the policy returns beside the action. 64-bit floats
    and integers are stored in 32 bits; an integer that does not fit is an error. A buffer may leave
    out fields of `item`, and may have two more: `next_observation`, the true one at ends too, and
    `version`, int32, of the policy that acted. For a buffer made with `next_of="observation"` the
    collector gives `fbuf.add` the next observations.

    With `background=True` a thread steps the environments while you learn. It puts chunks into a
    queue, and `drain` adds them, in your thread: a state has one owner.

    One collector fills one buffer, and owns the environments: it resets them at the start, and
    `close` closes them.

    If something raises in the middle of a chunk, be it an environment or Ctrl-C, the whole steps
    made so far are not lost. The next call adds them first, ends the open episodes, and goes on
    from a reset. The state that you passed may have been consumed; `recover` returns the newest.

    Args:
        envs: A `gymnasium.vector.VectorEnv`, of any autoreset mode, that says which.
        policy: `policy(observation) -> action`, or `-> (action, extras)`. The observation is what
            the environments return, `[num_envs, ...]`. The action is an array of NumPy with that
            first axis, or a list of numbers; the extras are a dict of such arrays. With a method
            `load(weights)`, it can be given weights by `publish`.
        chunk: How many steps of each environment go into the buffer at once. None is as many as
            make 4,096 rows, from 128 to 512; with `background` it is 128.
        seed: For the first reset, as the environments take it. If it is one number, and the policy
            has a method `seed`, that is called before the first action, with another number that is
            made of it: with the same, the noise of the policy would be that of an environment.
        background: Step in a thread of its own.
        queue: How many chunks the thread may be ahead.
        timeout: Seconds that a step or a reset of all environments may take. It holds for those in
            processes of their own, such as `AsyncVectorEnv`; others are waited for.
        blank: More fields of the rows, for you to `fbuf.write` later, such as
            `{"advantage": np.float32(0)}`: one row, of which only shapes and dtypes are read. They
            are stored as zeros.
        info: Entries of the environments' info that become fields of the rows, as the step returned
            them: names that `reset` returns, or a dict of names and what stands where an
            environment has none, such as `{"is_success": np.bool_(False)}`. Without a value that is
            zero. At the end of an episode they are those of `final_info`.
        observe: Entries of info that belong to the observation, such as `("action_mask",)`; given
            as `info` is. The observation is then a dict of `observation` and these: the policy sees
            it, and so do next observations.
        progress: Show a bar in calls that take more than a second; None shows it on a terminal.

    Raises:
        ValueError: If the environments do not say how they reset, if a space cannot be stored, or
            if an argument is out of range.

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
        if not timeout > 0:
            raise ValueError(f"Collector: timeout must be above 0 seconds, got {timeout!r}")
        stepper = Stepper(envs, policy, seed=seed, info=info, observe=observe)
        self._producer = Producer(stepper, policy)
        if chunk is None:
            rows = _ROWS // stepper.num_envs
            chunk = SMALL if background else min(max(rows, SMALL), _LONGEST)
        limit(envs, timeout)
        self._envs = envs
        self._chunk = chunk
        self._progress = progress
        self._blank = blank_specs("Collector", blank)
        self._background: Background | None = None
        if background:
            producer = self._producer  # the thread must not keep the collector
            self._background = Background(
                lambda stop: producer.chunk(chunk, stop), stepper.begun, queue
            )
            weakref.finalize(self, self._background.close, _PATIENCE)
        self._episodes = Episodes(stepper.num_envs, stepper.autoreset)
        self._ended = np.zeros(stepper.num_envs, np.bool_)
        self._pending: collections.deque[Chunk] = collections.deque()
        self._target: Target | None = None
        self._added = 0
        self._newest_version = 0
        self._left: Any = None
        self._failed: Failed | None = None
        """What the thread raised, from when it is taken out until it is raised here."""
        self._closed = False

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`: a dict of `jax.ShapeDtypeStruct`.

        The first time, the environments are reset, and the policy is called for the extras it
        returns. The first step takes the action of that call.

        Raises:
            CollectorError: The first time, if the collector is closed, or if the policy returns
                something else than actions.
            ValueError: If `blank` has a field that is filled.
        """
        if self._target is None:
            self._open("item")
        return self._adds_to().item

    @property
    def options(self) -> dict[str, Any]:
        """What else `fbuf.init` needs: `num_envs` and `autoreset`."""
        stepper = self._producer.stepper
        return {"num_envs": stepper.num_envs, "autoreset": stepper.autoreset}

    def collect(self, state: Any, steps: int) -> Any:
        """Make `steps` steps of each environment, and add them.

        Args:
            state: The buffer, a `fbuf.State` or a `fbuf.sharded.ShardedState`. It is consumed. A
                `HostStore` is changed in place.
            steps: How many. All numbers share four compiled programs.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: If the collector is closed or steps in the background, if the policy
                returns something else than such actions, or if an environment hangs. What
                environments and the policy raise comes out as it is.
            TypeError: If `state` is no buffer.
            RuntimeError: If `state` has been consumed.
            ValueError: If the buffer was made for other rows or environments, or if an integer does
                not fit in 32 bits. The steps of a chunk (`chunk` of them at most) are then lost.
        """
        self._open("collect")
        if self._background is not None:
            raise CollectorError(
                "Collector.collect: the environments are stepped in the background; call "
                "collector.drain(state)"
            )
        check.integer("Collector.collect", "steps", steps)
        target = self._for(state, "collect")
        self._left = state
        left = steps
        try:
            with bar("collect", steps, self._progress) as shown:
                self._add_pending(target)
                while left:
                    chunk = self._producer.chunk(min(left, self._chunk))
                    self._pending.append(chunk)
                    self._add_pending(target)
                    left -= chunk.steps
                    shown.update(chunk.steps)
        except BaseException as error:
            begun = self._producer.stepper.begun()
            self._pending.extend([] if begun is None else [begun])
            self._producer.stepper.restart()
            self._explain(error)
            raise
        return self._taken()

    def drain(self, state: Any, *, at_least: int = 0) -> Any:
        """Add what the environments have made in the background. The first call starts them.

        Args:
            state: The buffer, as for `collect`.
            at_least: Wait until this many steps of each environment have come.

        Returns:
            The buffer with the rows in it.

        Raises:
            CollectorError: As `collect`; and if the environments or the policy raised in the
                thread, with that as the cause. `state` is then not consumed, and the next call
                starts the thread again.
        """
        self._open("drain")
        background = self._background
        if background is None:
            raise CollectorError(
                "Collector.drain: this collector steps in your thread; call "
                "collector.collect(state, steps), or make it with background=True"
            )
        check.integer("Collector.drain", "at_least", at_least, smallest=0)
        target = self._for(state, "drain")
        self._left = state
        with bar("drain", at_least, self._progress) as shown:
            came, limit = 0, max(background.depth, 1)
            while came < at_least or limit > 0:
                self._open("drain")  # another thread may close it
                entry = None
                if self._failed is None:
                    with uninterrupted():  # what was taken out is in no queue
                        entry = background.get(wait=came < at_least)
                        if isinstance(entry, Chunk):
                            self._pending.append(entry)
                        elif entry is not None:
                            self._failed = entry
                if self._failed is not None:
                    failed, self._failed = self._failed, None
                    raise self._failure(failed.error) from failed.error
                if isinstance(entry, Chunk):
                    came += entry.steps
                    shown.update(entry.steps)
                limit -= 1
            self._add_pending(target)
        return self._taken()

    def recover(self) -> Any:
        """The buffer, after `collect` or `drain` raised: with all whole steps made so far.

        You may have lost it otherwise, for the state that you passed is consumed by the first
        chunk. It works after `close`, too.

        Returns:
            The buffer.

        Raises:
            CollectorError: If the last call did not raise.
        """
        if self._left is None:
            raise CollectorError("Collector.recover: the last call did not raise; use its result")
        if self._target is not None:
            self._add_pending(self._target)
        return self._taken()

    def publish(self, weights: Any) -> int:
        """Hand the policy new weights: `policy.load(weights)`, before the next chunk.

        Args:
            weights: A tree of arrays or tensors. They are copied now, so you may go on to change
                them; the policy gets NumPy arrays.

        Returns:
            The version of these weights. It counts from 1; what the policy had is version 0.

        Raises:
            CollectorError: If the policy has no `load`, or if the collector is closed.
        """
        self._open("publish")
        return self._producer.publish(weights)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the collector was made.

        Returns:
            A dict: `steps` in the buffer, of all environments together; `steps_per_second` while
            they are stepped; `queue_depth`, the chunks that wait; `learner_waited` for chunks and
            `environments_waited` for room, in seconds; `policy_version`, which the newest chunk in
            the buffer acted with; `policy_age`, how many newer ones were published; `episodes` that
            ended, and of the last hundred the `mean_return` and `mean_length` (None before the
            first).
        """
        producer, background = self._producer, self._background
        made = producer.steps * producer.stepper.num_envs
        return {
            "steps": self._added * producer.stepper.num_envs,
            "steps_per_second": made / producer.seconds if made else 0.0,
            "queue_depth": background.depth if background else 0,
            "learner_waited": background.empty_seconds if background else 0.0,
            "environments_waited": background.full_seconds if background else 0.0,
            "policy_version": self._newest_version,
            "policy_age": producer.version - self._newest_version,
            **self._episodes.stats(),
        }

    def close(self) -> None:
        """Stop the thread, and close the environments. What waits in the queue is dropped.

        It always returns. Processes of an `AsyncVectorEnv` that do not answer are ended. A step
        that does not return in five seconds, in the thread, is left behind.
        """
        if self._closed:
            return
        self._closed = True
        background = self._background
        try:
            if background is not None and not background.close(_PATIENCE):
                _closing.end(self._envs)  # then the step fails, if it waits for one of them
                if not background.close(_PATIENCE):
                    return  # closing the environments would wait for it, too
            self._producer.stepper.close()
        except BaseException:  # Ctrl-C, say
            self._closed = False  # the next call closes what is left
            raise

    def __enter__(self) -> Collector:
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

    def _open(self, function: str) -> None:
        if self._closed:
            raise CollectorError(f"Collector.{function}: the collector is closed; make another one")

    def _for(self, state: Any, function: str) -> Target:
        """What adds to this buffer, once it is known that the rows fit."""
        target = self._adds_to()
        target.check(function, state)
        self._producer.stepper.needs_final = target.keeps_next(state)
        return target

    def _adds_to(self) -> Target:
        if self._target is None:
            spec = self._producer.stepper.spec
            self._target = Target(spec, self._blank, self.options, self._chunk)
        return self._target

    def _add_pending(self, target: Target) -> None:
        """Add the chunks that wait, oldest first."""
        while self._pending:
            chunk = self._pending[0]
            dummies = None
            if self._producer.stepper.autoreset == "next_step" and not chunk.fresh:
                dummies = self._ended
            with uninterrupted():
                self._left = target.add(self._left, chunk, dummies=dummies)
                self._pending.popleft()
                ended = chunk.terminated[-1] | chunk.truncated[-1]
                self._ended = ended
                self._added += chunk.steps
                self._newest_version = chunk.version
                self._episodes.see(chunk)  # last: whatever it does, the rows are in the buffer once

    def _taken(self) -> Any:
        """The newest state, which belongs to the caller from now on."""
        state, self._left = self._left, None
        return state

    def _failure(self, error: BaseException) -> CollectorError:
        where = _closing.failed(self._envs, error)
        return CollectorError(
            "Collector.drain: stepping the environments in the background raised "
            f"{type(error).__name__}: {error}" + (f" ({where})" if where else "") + "; the state "
            "that you passed is not consumed, and the next call goes on from a reset"
        )

    def _explain(self, error: BaseException) -> None:
        """Tell which environment it was, and where the buffer is."""
        where = _closing.failed(self._envs, error)
        error.add_note(
            "Collector.collect: " + (f"{where}; " if where else "") + "the state that you passed "
            "may be consumed, and collector.recover() returns the newest"
        )


Collector.__module__ = "fbuf_adapters.gymnasium"  # where users find it
