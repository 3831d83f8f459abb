"""Steps of all environments on their way into the buffer.

Stable-Baselines3 hands over one step at a time. Staged, several of them cross to JAX together. A
step counts once `steps` says so. An exception half-way leaves nothing behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns

_BYTES = 2**22
"""So many bytes are staged at most."""

SIZES = (1, 4, 16, 64)
"""The numbers of steps that cross together; a smaller number is padded to the next one."""


class Staging:
    """The newest steps. `steps` counts those of the whole run."""

    def __init__(self, item: dict[str, Any], n_envs: int) -> None:
        """Hold steps of an item: columns, of which `observation` has a next one, too."""
        self.item = item
        self.n_envs = n_envs
        self.steps = 0
        sizes = leaves_of(map_columns(lambda column: column.nbytes, item))
        # The step before the newest one has to stay.
        most = max(_BYTES // (2 * n_envs * sum(sizes) + 1), 2)
        self.room = max(2, *(size for size in SIZES if size <= most))
        # The padding of the last steps reads beyond them.
        make = lambda column: np.zeros((2 * self.room, n_envs, *column.shape), column.dtype)
        self.rows = map_columns(make, item)
        self.following = map_columns(make, item["observation"])
        self.terminated = np.zeros((2 * self.room, n_envs), bool)
        self.truncated = np.zeros_like(self.terminated)

    def write(
        self, row: dict[str, Any], following: Any, terminated: Array, truncated: Array
    ) -> None:
        """Put a step behind the newest one. It counts when `steps` is one more."""
        at = self.steps % self.room
        for name, column in self.item.items():
            _put(name, column, self.rows[name], row[name], at)
        _put("next_obs", self.item["observation"], self.following, following, at)
        self.terminated[at], self.truncated[at] = terminated, truncated

    def cut_off(self) -> Array:
        """Find the environments whose newest step does not lead to the written one: bool `[E]`.

        The newest step is no end, and its next observation is another one.
        """
        differs = np.zeros(self.n_envs, bool)
        if not self.steps:
            return differs
        at, before = self.steps % self.room, (self.steps - 1) % self.room
        new = [rows[at] for rows in leaves_of(self.rows["observation"])]
        led_to = [rows[before] for rows in leaves_of(self.following)]
        pairs = list(zip(new, led_to, strict=True))
        if all(_same(one, other) for one, other in pairs):
            return differs
        for one, other in pairs:
            differs |= [not _same(*both) for both in zip(one, other, strict=True)]
        return differs & ~self.terminated[before] & ~self.truncated[before]

    def ended(self) -> Array | None:
        """Return which environments ended an episode in the newest step; None if there is none."""
        before = (self.steps - 1) % self.room
        return self.terminated[before] | self.truncated[before] if self.steps else None

    def truncate_newest(self, which: Array) -> None:
        """Mark the newest step of some environments as truncated."""
        self.truncated[(self.steps - 1) % self.room] |= which

    def part(self, first: int) -> tuple[dict[str, Any], int]:
        """Return the arguments of `fbuf.add` for the steps from `first` on, and their number.

        The steps lie one behind another: the caller takes them before the ring goes round.
        """
        count = self.steps - first
        size = next(n for n in SIZES if n >= count)
        at = first % self.room
        cut = lambda column, array: column.stored(array[at : at + size])
        return {
            "items": map_columns(cut, self.item, self.rows),
            "next_observation": map_columns(cut, self.item["observation"], self.following),
            "terminated": self.terminated[at : at + size],
            "truncated": self.truncated[at : at + size],
            "mask": np.arange(size) < count,
        }, count


def _put(name: str, column: Any, rows: Any, given: Any, at: int) -> None:
    """Write a step of one argument of `add`."""
    if not isinstance(column, Column):
        if not isinstance(given, dict) or not set(column) <= set(given):
            raise ValueError(
                f"{WHERE}.add: {name} must be a dict with {sorted(column)}, "
                f"got {type(given).__name__}"
                + (f" with {sorted(given)}" if isinstance(given, dict) else "")
            )
        for key, sub in column.items():
            _put(f"{name}[{key!r}]", sub, rows[key], given[key], at)
        return
    array = np.asarray(given)
    if array.shape != rows.shape[1:]:
        array = _reshaped(name, column, array, rows.shape[1])
    if array.dtype.kind in "iu" and column.dtype.kind in "iu" and array.dtype != column.dtype:
        array = _fitting(name, column, array)
    try:
        np.copyto(rows[at], array, casting="same_kind")
    except TypeError:
        raise TypeError(
            f"{WHERE}.add: {name} must be {column.dtype}, as its space "
            f"says, got {array.dtype}; cast it, or mend the space"
        ) from None


def _fitting(name: str, column: Column, array: Array) -> Array:
    """Return integers in the dtype of their column; refuse those that it cannot hold."""
    cast = array.astype(column.dtype)
    if not np.array_equal(cast, array):
        raise ValueError(
            f"{WHERE}.add: {name} must fit {column.dtype}, as its space "
            f"says, got {array[cast != array][0]}; mend the space"
        )
    return cast


def _reshaped(name: str, column: Column, array: Array, n_envs: int) -> Array:
    """Return a step in the shape of its column, if only axes of one number or of actions differ."""
    wanted = (n_envs, *column.shape)
    fits = array.size == np.prod(wanted)
    axes = [n for n in array.shape if n != 1], [n for n in wanted if n != 1]
    if not fits or (name != "action" and axes[0] != axes[1]):
        raise ValueError(
            f"{WHERE}.add: {name} must be of shape {wanted}, for n_envs="
            f"{n_envs}, got {array.shape}; make the buffer with the n_envs and the space of your "
            "environments"
        )
    return array.reshape(wanted)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of dicts, in their order."""
    return (
        [x for sub in tree.values() for x in leaves_of(sub)] if isinstance(tree, dict) else [tree]
    )


def _same(one: Array, other: Array) -> bool:
    """Whether two arrays are the same, bit for bit: NaN is then NaN. Bytes compare fastest."""
    return one.tobytes() == other.tobytes()
