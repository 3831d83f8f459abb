"""Transitions of one or several steps, drawn uniformly in the memory of the host.

They need no index, and NumPy takes them from the buffer and from the staged steps alike. So most
steps of an algorithm call no compiled program.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

import fbuf
from fbuf.adapter_api import BufferSpec, HostTransitions, View
from fbuf_adapters.sb3._columns import Array
from fbuf_adapters.sb3._episode_ends import EpisodeEnds, Known
from fbuf_adapters.sb3._staging import Staging


class _Seen(NamedTuple):
    """The rows of a buffer, for draws.

    Attributes:
        leaves: The arrays of the buffer.
        rows: The rows in them.
        written: How many steps the buffer has.
        staged: The leaves of the staged rows, `[2 * room * n_envs, ...]` each.
        staged_next: Those of their next observations.
        ends: The ends of episodes in them, and in the staged rows.
    """

    leaves: tuple[Any, ...]
    rows: HostTransitions
    written: int
    staged: list[Array]
    staged_next: list[Array]
    ends: EpisodeEnds


class UniformDraws:
    """Draws rows with equal probability. Pickled, it goes on with the same draws.

    Attributes:
        view: `fbuf.Transition()`, a `fbuf.NStep` of one number of steps, or a `fbuf.Hindsight`
            whose goals are of the row's episode.
    """

    view: View = fbuf.Transition()
    _known: Known | None = None

    def __init__(self, spec: BufferSpec, staging: Staging, seed: int) -> None:
        """Draw rows of a buffer, and steps that are staged for it."""
        self._capacity, self._staging = spec.capacity, staging
        self._random = np.random.PCG64(seed)
        self._seen: _Seen | None = None

    def sees(self, leaves: tuple[Any, ...]) -> bool:
        """Tell whether it looks at a buffer of these arrays."""
        return self._seen is not None and self._seen.leaves is leaves

    def look(self, leaves: tuple[Any, ...], rows: HostTransitions, written: int) -> None:
        """Look at a buffer of `written` steps, and at its arrays, until `release`."""
        staging = self._staging
        staged = _leaves(rows.item, staging.item, staging.rows)
        observation = staging.item["observation"]
        following = _leaves(rows.observation, observation, staging.following)
        length = self._capacity // staging.n_envs
        ends = EpisodeEnds(rows, staging, written, length, self._known)
        self._seen = _Seen(leaves, rows, written, staged, following, ends)

    def release(self) -> None:
        """Look at the buffer no more: it gets more steps."""
        if self._seen is not None:
            self._known = self._seen.ends.known
        self._seen = None

    def forget(self) -> None:
        """Look at the buffer no more, and forget its ends of episodes: it is another one."""
        self._seen = self._known = None

    def copied(self, staging: Staging) -> UniformDraws:
        """Return a copy that draws the same, with this copy of the staged steps."""
        other = copy.copy(self)
        other._staging, other._random = staging, copy.deepcopy(self._random)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes without the rows of the buffer."""
        return vars(self) | {"_seen": None, "_known": None}

    def draw(self, batch_size: int) -> dict[str, Any]:
        """Draw a batch: the fields of `Drawing.fields`, arrays."""
        return self.take(self.ages(batch_size))

    def ages(self, batch_size: int) -> Array:
        """Draw rows, by their age: int64 `[B]`; 0 is the newest one."""
        staging = self._staging
        stored = min(staging.steps * staging.n_envs, self._capacity)
        # A remainder of 64 random bits is even to one part in 2**64 / stored.
        return _among(self._random.random_raw(batch_size), np.array(stored))

    def take(self, ages: Array) -> dict[str, Any]:
        """Take rows by their age; `mask` is None if all next observations are known."""
        if isinstance(self.view, fbuf.NStep):
            return self._of_steps(ages, self.view)
        fields = self._transitions(ages, ages)
        if isinstance(self.view, fbuf.Hindsight):
            fields["positions"] = self._positions(ages)
            fields["relabelled"] = self._relabel(ages, fields["item"], self.view)
        return fields

    def _of_steps(self, ages: Array, view: fbuf.NStep) -> dict[str, Any]:
        """Take transitions of up to n steps; besides the rewards of each, and which there are."""
        assert not isinstance(view.n, tuple)
        gamma, number = float(view.gamma), np.arange(view.n)  # of NumPy, it would make float64
        steps = np.maximum(ages[:, None] - number * self._staging.n_envs, -1)
        valid = steps >= 0
        ended = self._ends.ended(steps[:, :-1])
        valid[:, 1:] &= ~np.logical_or.accumulate(ended, axis=1)
        rewards = np.where(valid, self._leaf(steps, "reward"), np.float32(0))
        factors = gamma ** number.astype(np.float32)
        counts = valid.sum(axis=1)
        fields = self._transitions(ages, steps[np.arange(len(ages)), counts - 1])
        fields["reward"] = (rewards * factors).sum(axis=1, keepdims=True)
        fields["discount"] = (gamma ** counts.astype(np.float32))[:, None]
        fields["rewards"] = rewards, valid
        return fields

    def _relabel(self, ages: Array, item: dict[str, Any], view: fbuf.Hindsight) -> Array:
        """Give some rows the goal of another row of their episode; return which: bool `[B]`."""
        raw = self._random.random_raw(2 * len(ages))
        new = (raw[: len(ages)] >> np.uint64(11)) * 2.0**-53 < view.ratio
        ages, raw = ages[new], raw[len(ages) :][new]
        end = self._ends.steps_to_end(ages)
        if view.strategy == "future":
            by = _among(raw, end + 1)
        elif view.strategy == "episode":
            before = self._ends.steps_since_start(ages)
            by = _among(raw, before + end + 1) - before
        else:
            by = end
        achieved = self._leaf(ages - by * self._staging.n_envs, "achieved")
        item["observation"]["desired_goal"][new] = achieved
        return new

    def _positions(self, ages: Array) -> tuple[Array, Array]:
        """Return the step, modulo the length of a lane, and the environment of rows."""
        n_envs = self._staging.n_envs
        back, lane = np.divmod(ages, n_envs)
        return (self._staging.steps - 1 - back) % (self._capacity // n_envs), n_envs - 1 - lane

    @property
    def _ends(self) -> EpisodeEnds:
        assert self._seen is not None
        return self._seen.ends

    def _leaf(self, ages: Array, name: str) -> Array:
        """Take one field of rows, an array; of age -1 it means nothing."""
        seen, staging = self._seen, self._staging
        assert seen is not None
        staged = (staging.steps - seen.written) * staging.n_envs
        taken = seen.rows.leaf(ages, seen.rows.item[name], staged)
        new = (ages < staged).nonzero()
        if new[0].size:
            (rows,) = _leaves({name: 0}, staging.item, staging.rows)
            taken[new] = rows.take(self._staged_at(ages[new], staged), axis=0)
        return taken

    def _staged_at(self, ages: Array, staged: int) -> Array:
        """Return the places of staged rows, of which there are `staged`."""
        assert self._seen is not None
        first = self._seen.written % self._staging.room * self._staging.n_envs
        return first + (staged - 1) - ages

    def _transitions(self, ages: Array, last: Array) -> dict[str, Any]:
        """Take rows, and what comes after the last row of each: the rows themselves, or others."""
        seen, staging = self._seen, self._staging
        assert seen is not None
        rows = seen.rows
        staged = (staging.steps - seen.written) * staging.n_envs
        taken = rows.take(ages, staged) if last is ages else rows.following(last, staged)
        leaves = taken.leaves or rows.rows(ages, staged)
        item, following = _tree(rows.item, leaves), _tree(rows.observation, taken.following)
        mask = np.ones(len(ages), bool) if taken.unknown.size else None
        if mask is not None:
            mask[taken.unknown] = False
        new = taken.ahead
        if new.size:
            at = self._staged_at(last[new], staged)
            taken.terminated[new] = staging.terminated.reshape(-1).take(at)
            for leaf, steps in zip(taken.following, seen.staged_next, strict=True):
                leaf[new] = steps.take(at, axis=0)
            if mask is not None:
                mask[new] = True
            if last is not ages:
                (new,) = (ages < staged).nonzero()
                at = self._staged_at(ages[new], staged)
            for leaf, steps in zip(leaves, seen.staged, strict=True):
                leaf[new] = steps.take(at, axis=0)
        return {
            "item": item,
            "next_observation": following,
            "reward": item["reward"][:, None],
            "done": taken.terminated[:, None],
            "mask": mask,
        }


def _among(raw: Array, counts: Array) -> Array:
    """Return an integer below each count, from 64 random bits each."""
    return (raw % counts.astype(np.uint64)).view(np.int64)


def _tree(numbers: Any, leaves: list[Array]) -> Any:
    """Return the tree of leaves, from that of their numbers."""
    if isinstance(numbers, dict):
        return {name: _tree(number, leaves) for name, number in numbers.items()}
    return leaves[numbers]


def _leaves(numbers: Any, columns: Any, rows: Any) -> list[Array]:
    """Return staged rows `[steps * n_envs, ...]` in the stored form, by the number of the leaf."""
    if isinstance(numbers, dict):
        return [x for n in numbers for x in _leaves(numbers[n], columns[n], rows[n])]
    stored = columns.stored(rows)
    steps, envs, *shape = stored.shape
    return [stored.reshape(steps * envs, *shape)]
