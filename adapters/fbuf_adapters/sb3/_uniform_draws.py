"""Transitions of one or several steps, drawn uniformly in the memory of the host.

They need no index, and NumPy takes them from the buffer and from the staged steps alike. So most
steps of an algorithm call no compiled program.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

import fbuf
from fbuf.adapter_api import TERMINATED, TRUNCATED, BufferSpec, HostTransitions, View
from fbuf_adapters.sb3._columns import Array
from fbuf_adapters.sb3._staging import Staging


class _Seen(NamedTuple):
    """The rows of a buffer, for draws.

    Attributes:
        leaves: The arrays of the buffer.
        rows: The rows in them.
        written: How many steps the buffer has.
        staged: The leaves of the staged rows, `[2 * room * n_envs, ...]` each.
        staged_next: Those of their next observations.
        cut_off: bool `[1 + room, n_envs]`: the steps from the newest written one on whose episode
            the next step does not continue.
        compared: How many steps were compared with the next one.
    """

    leaves: tuple[Any, ...]
    rows: HostTransitions
    written: int
    staged: list[Array]
    staged_next: list[Array]
    cut_off: Array
    compared: list[int]


class UniformDraws:
    """Draws rows with equal probability. Pickled, it goes on with the same draws.

    Attributes:
        view: `fbuf.Transition()`, or a `fbuf.NStep` of one number of steps.
    """

    view: View = fbuf.Transition()

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
        cut_off = np.zeros((1 + staging.room, staging.n_envs), bool)
        self._seen = _Seen(leaves, rows, written, staged, following, cut_off, [written])

    def release(self) -> None:
        """Look at the buffer no more."""
        self._seen = None

    def copied(self, staging: Staging) -> UniformDraws:
        """Return a copy that draws the same, with this copy of the staged steps."""
        other = copy.copy(self)
        other._staging, other._random = staging, copy.deepcopy(self._random)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes without the rows of the buffer."""
        return vars(self) | {"_seen": None}

    def draw(self, batch_size: int) -> dict[str, Any]:
        """Draw a batch: the fields of `Drawing.fields`, arrays."""
        return self.take(self.ages(batch_size))

    def ages(self, batch_size: int) -> Array:
        """Draw rows, by their age: int64 `[B]`; 0 is the newest one."""
        staging = self._staging
        stored = min(staging.steps * staging.n_envs, self._capacity)
        # A remainder of 64 random bits is even to one part in 2**64 / stored.
        return (self._random.random_raw(batch_size) % np.uint64(stored)).view(np.int64)

    def take(self, ages: Array) -> dict[str, Any]:
        """Take rows by their age; `mask` is None if all next observations are known."""
        if not isinstance(self.view, fbuf.NStep):
            return self._transitions(ages, ages)
        assert isinstance(self.view.n, int)
        steps = np.maximum(ages[:, None] - np.arange(self.view.n) * self._staging.n_envs, -1)
        valid = self._same_episode(steps)
        rewards = self._rewards(steps)
        factors = self.view.gamma ** np.arange(self.view.n, dtype=np.float32)
        counts = valid.sum(axis=1)
        fields = self._transitions(ages, steps[np.arange(len(ages)), counts - 1])
        fields["reward"] = (rewards * factors).sum(axis=1, where=valid, keepdims=True)
        fields["discount"] = (self.view.gamma ** counts.astype(np.float32))[:, None]
        fields["rewards"] = rewards, valid
        return fields

    def _same_episode(self, ages: Array) -> Array:
        """Return which rows belong to the episode of the first one: bool `[B, n]`, -1 is no row."""
        seen, staging = self._seen, self._staging
        assert seen is not None
        n_envs, staged = staging.n_envs, staging.steps - seen.written
        ended = seen.rows.flags(ages, staged * n_envs) & (TERMINATED | TRUNCATED) > 0
        if staged:
            compared = seen.compared[0]
            if compared < staging.steps:
                found = staging.cut_off(compared)
                seen.cut_off[compared - seen.written : staged] |= found
                seen.compared[0] = compared + len(found)
            now = slice(first := seen.written % staging.room, first + staged)
            ends = seen.cut_off[: 1 + staged].copy()
            ends[1:] |= staging.terminated[now] | staging.truncated[now]
            near = ((ages >= 0) & (ages < (1 + staged) * n_envs)).nonzero()
            back, lane = np.divmod(ages[near], n_envs)
            ended[near] &= back == staged
            ended[near] |= ends[staged - back, n_envs - 1 - lane]
        valid = ages >= 0
        valid[:, 1:] &= ~np.logical_or.accumulate(ended[:, :-1], axis=1)
        return valid

    def _rewards(self, ages: Array) -> Array:
        """Return the rewards of rows: float32 `[B, n]`."""
        seen, staging = self._seen, self._staging
        assert seen is not None
        staged = (staging.steps - seen.written) * staging.n_envs
        rewards = seen.rows.leaf(ages, seen.rows.item["reward"], staged)
        new = (ages < staged).nonzero()
        rewards[new] = staging.rows["reward"].reshape(-1).take(self._staged_at(ages[new], staged))
        return rewards

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
