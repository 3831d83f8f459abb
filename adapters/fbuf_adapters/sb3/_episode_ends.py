"""Where episodes end: in a buffer in host memory, and in the steps that are staged for it."""

from __future__ import annotations

import numpy as np

from fbuf.adapter_api import TERMINATED, TRUNCATED, HostTransitions
from fbuf_adapters.sb3._columns import Array
from fbuf_adapters.sb3._staging import Staging

_STEPS = 2**40
"""More steps than a run has: an end is found by its environment times this, and its step."""


class EpisodeEnds:
    """The ends of episodes, as long as the buffer does not change. Steps may be staged meanwhile.

    Rows are called by their age: 0 is the newest row.
    """

    def __init__(self, rows: HostTransitions, staging: Staging, written: int, length: int) -> None:
        """Look at a buffer.

        Args:
            rows: The rows of the buffer.
            staging: The steps on their way into the buffer.
            written: The number of steps that were ever written to the buffer.
            length: The most steps that the buffer keeps, staged ones included.
        """
        self._rows, self._staging, self._written, self._length = rows, staging, written, length
        self._cut_off = np.zeros((1 + staging.room, staging.n_envs), bool)
        self._compared = written  # so many steps were compared with the next one
        self._found: Array | None = None

    def ended(self, ages: Array) -> Array:
        """Return whether episodes end at rows: bool like `ages`; of age -1 it means nothing."""
        n_envs, staged = self._staging.n_envs, self._staging.steps - self._written
        ended = self._rows.flags(ages, staged * n_envs) & (TERMINATED | TRUNCATED) > 0
        if staged:
            ends = self._near(staged)
            near = ((ages >= 0) & (ages < (1 + staged) * n_envs)).nonzero()
            back, lane = np.divmod(ages[near], n_envs)
            ended[near] &= back == staged
            ended[near] |= ends[staged - back, n_envs - 1 - lane]
        return ended

    def steps_to_end(self, ages: Array) -> Array:
        """Count the rows of the episode after each row. O(log(ends)) each."""
        step, env = self._place(ages)
        newest = self._staging.steps - 1
        return np.minimum(self._following_end(env, step), newest) - step

    def steps_since_start(self, ages: Array) -> Array:
        """Count the rows of the episode before each row that are stored. O(log(ends)) each."""
        step, env = self._place(ages)
        oldest = max(self._staging.steps - self._length, 0)
        return step - np.maximum(self._end_before(env, step) + 1, oldest)

    def _place(self, ages: Array) -> tuple[Array, Array]:
        """Return the number of the step and the environment of rows."""
        n_envs = self._staging.n_envs
        back, lane = np.divmod(ages, n_envs)
        return self._staging.steps - 1 - back, n_envs - 1 - lane

    def _following_end(self, env: Array, step: Array) -> Array:
        """Return the first end of an environment at or after a step; a late step without one."""
        places, found = env * _STEPS + step, np.full(step.shape, _STEPS)
        for ends in self._sorted():
            if ends.size:
                at = ends.take(np.searchsorted(ends, places), mode="clip")
                # That of another environment is a late step.
                np.minimum(found, np.where(at < places, _STEPS, at - env * _STEPS), out=found)
        return found

    def _end_before(self, env: Array, step: Array) -> Array:
        """Return the last end of an environment before a step; -1 without one."""
        places, found = env * _STEPS + step, np.full(step.shape, -1)
        for ends in self._sorted():
            if ends.size:
                at = ends.take(np.searchsorted(ends, places) - 1, mode="clip")
                # That of another environment is a negative step.
                np.maximum(found, np.where(at >= places, -1, at - env * _STEPS), out=found)
        return found

    def _sorted(self) -> tuple[Array, Array]:
        """Return the ends in the buffer, and those from its newest step on, each in order."""
        n_envs, staged = self._staging.n_envs, self._staging.steps - self._written
        if self._found is None:  # O(N), once for each change of the buffer
            stored = min(self._written, self._length) * n_envs
            back, lane = np.divmod(self._rows.ends(stored), n_envs)
            step = self._written - 1 - back
            self._found = np.sort((n_envs - 1 - lane) * _STEPS + step)
        env, number = self._near(staged).T.nonzero()
        return self._found, env * _STEPS + (self._written - 1 + number)

    def _near(self, staged: int) -> Array:
        """Return the ends from the newest written step on: bool `[1 + staged, n_envs]`.

        The episode of a step also ends if the next step does not continue it.
        """
        staging = self._staging
        if self._compared < staging.steps:
            found = staging.cut_off(self._compared)
            self._cut_off[self._compared - self._written : staged] |= found
            self._compared += len(found)
        now = slice(first := self._written % staging.room, first + staged)
        ends = self._cut_off[: 1 + staged].copy()
        ends[1:] |= staging.terminated[now] | staging.truncated[now]
        return ends
