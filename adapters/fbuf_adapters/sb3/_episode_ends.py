"""Where episodes end: in a buffer in host memory, and in the steps that are staged for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fbuf.adapter_api import TERMINATED, TRUNCATED, HostTransitions
from fbuf_adapters.sb3._columns import Array
from fbuf_adapters.sb3._staging import Staging

_STEPS = 2**40
"""More steps than a run has: an end is found by its environment times this, and its step."""


class Known(NamedTuple):
    """The ends before the newest of some written steps, which change no more.

    Attributes:
        written: The number of steps.
        places: int64, in order; each is of an environment and a step.
    """

    written: int
    places: Array


class EpisodeEnds:
    """The ends of episodes, as long as the buffer does not change. Steps may be staged meanwhile.

    Rows are called by their age: 0 is the newest row.
    """

    def __init__(
        self,
        rows: HostTransitions,
        staging: Staging,
        written: int,
        length: int,
        known: Known | None,
    ) -> None:
        """Look at a buffer.

        Args:
            rows: The rows of the buffer.
            staging: The steps on their way into the buffer.
            written: The number of steps that were ever written to the buffer.
            length: The most steps that the buffer keeps, staged ones included.
            known: The ends that were known when the buffer had fewer steps; None looks at all rows.
        """
        self._rows, self._staging, self._written, self._length = rows, staging, written, length
        self._cut_off = np.zeros((1 + staging.room, staging.n_envs), bool)
        self._compared = written  # the number of steps that were compared with the next one
        self._before, self._known = known, None

    @property
    def known(self) -> Known | None:
        """The ends that are known, for the time after the next write."""
        return self._known or self._before

    def ended(self, ages: Array) -> Array:
        """Return whether episodes end at rows: bool like `ages`; of age -1 it means nothing."""
        n_envs, staged = self._staging.n_envs, self._staging.steps - self._written
        ended = self._rows.flags(ages, staged * n_envs) & (TERMINATED | TRUNCATED) > 0
        if staged:
            near = ((ages >= 0) & (ages < (1 + staged) * n_envs)).nonzero()
            back, lane = np.divmod(ages[near], n_envs)
            ended[near] = self._near(staged)[staged - back, n_envs - 1 - lane]
        return ended

    def steps_to_end(self, ages: Array) -> Array:
        """Count the rows of the episode after each row. O(log(ends)) each.

        Besides O(ends) after a write, and O(N) for the first time.
        """
        steps = self._staging.steps
        step, env = self._place(ages, steps)
        return np.minimum(self._following_end(env, step), steps - 1) - step

    def steps_since_start(self, ages: Array) -> Array:
        """Count the rows of the episode before each row that are stored; as `steps_to_end`."""
        steps = self._staging.steps
        step, env = self._place(ages, steps)
        return step - np.maximum(self._end_before(env, step) + 1, max(steps - self._length, 0))

    def _place(self, ages: Array, steps: int) -> tuple[Array, Array]:
        """Return the step and the environment of rows; the newest step is `steps - 1`."""
        n_envs = self._staging.n_envs
        back, lane = np.divmod(ages, n_envs)
        return steps - 1 - back, n_envs - 1 - lane

    def _following_end(self, env: Array, step: Array) -> Array:
        """Return the first end of an environment at or after a step; a late step without one."""
        places, found = env * _STEPS + step, np.full(step.shape, _STEPS)
        for ends in self._sorted():
            if ends.size:
                at = ends.take(np.searchsorted(ends, places), mode="clip")
                # An end of another environment becomes a late step.
                np.minimum(found, np.where(at < places, _STEPS, at - env * _STEPS), out=found)
        return found

    def _end_before(self, env: Array, step: Array) -> Array:
        """Return the last end of an environment before a step; -1 without one."""
        places, found = env * _STEPS + step, np.full(step.shape, -1)
        for ends in self._sorted():
            if ends.size:
                at = ends.take(np.searchsorted(ends, places) - 1, mode="clip")
                # An end of another environment becomes a negative step.
                np.maximum(found, np.where(at >= places, -1, at - env * _STEPS), out=found)
        return found

    def _sorted(self) -> tuple[Array, Array]:
        """Return the ends in the buffer, and those from its newest step on, each in order."""
        known = self._known = self._known or Known(self._written, self._final())
        env, number = self._near(self._staging.steps - self._written).T.nonzero()
        return known.places, env * _STEPS + (self._written - 1 + number)

    def _final(self) -> Array:
        """Return the ends before the newest written step, in order."""
        n_envs, before = self._staging.n_envs, self._before
        last = min(self._written, self._length)  # in steps back
        if before is not None:
            last = min(last, self._written - before.written + 1)
        ages = np.arange(n_envs, last * n_envs)
        flags = self._rows.flags(ages)
        step, env = self._place(ages[flags & (TERMINATED | TRUNCATED) > 0], self._written)
        new = env * _STEPS + step
        if before is None:
            return np.sort(new)
        kept = before.places[before.places % _STEPS >= self._written - self._length]
        return np.sort(np.concatenate((kept, new)), kind="stable")  # quick, as most are in order

    def _near(self, staged: int) -> Array:
        """Return the ends from the newest written step on: bool `[1 + staged, n_envs]`.

        The episode of a step also ends if the next step does not continue it.
        """
        staging, compared = self._staging, self._compared
        if compared < staging.steps:
            found = staging.cut_off(compared)  # amid it a signal handler may draw, too
            begin = compared - self._written
            self._cut_off[begin : begin + len(found)] |= found
            self._compared = compared + len(found)
        now = slice(first := self._written % staging.room, first + staged)
        ends = self._cut_off[: 1 + staged].copy()
        newest = self._rows.flags(np.arange(staging.n_envs)[::-1])
        ends[0] |= newest & (TERMINATED | TRUNCATED) > 0
        ends[1:] |= staging.terminated[now] | staging.truncated[now]
        return ends
