"""Single transitions, drawn uniformly in the memory of the host.

They need neither a view nor an index, and NumPy takes them from the buffer and from the staged
steps alike. So most steps of an algorithm call no compiled program.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from fbuf.adapter_api import BufferSpec, HostTransitions
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
    """

    leaves: tuple[Any, ...]
    rows: HostTransitions
    written: int
    staged: list[Array]
    staged_next: list[Array]


class UniformDraws:
    """Draws rows with equal probability. Pickled, it goes on with the same draws."""

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
        self._seen = _Seen(leaves, rows, written, staged, following)

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
        seen, staging = self._seen, self._staging
        assert seen is not None
        rows = seen.rows
        staged = (staging.steps - seen.written) * staging.n_envs
        taken = rows.take(ages, staged)
        item, following = _tree(rows.item, taken.leaves), _tree(rows.observation, taken.following)
        mask = np.ones(len(ages), bool) if taken.unknown.size else None
        if mask is not None:
            mask[taken.unknown] = False
        new = taken.ahead
        if new.size:
            first = seen.written % staging.room * staging.n_envs
            at = first + (staged - 1) - ages[new]
            taken.terminated[new] = staging.terminated.reshape(-1).take(at)
            for leaf, steps in zip(taken.leaves, seen.staged, strict=True):
                leaf[new] = steps.take(at, axis=0)
            for leaf, steps in zip(taken.following, seen.staged_next, strict=True):
                leaf[new] = steps.take(at, axis=0)
            if mask is not None:
                mask[new] = True
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
