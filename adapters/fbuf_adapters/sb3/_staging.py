"""Steps of all environments on their way into the buffer.

Stable-Baselines3 hands over one step at a time. Staged, several of them cross to JAX together. A
step counts once `steps` says so. An exception half-way leaves nothing behind.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fbuf_adapters.sb3 import _write_sizes
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns

_BYTES = 2**22
"""So many bytes are staged at most, or two steps."""


class Newest(NamedTuple):
    """The newest step that is written.

    Attributes:
        steps: The number of steps up to this one.
        following: The next observations, `[n_envs, ...]`, in the stored form.
        terminated: bool `[n_envs]`.
        truncated: bool `[n_envs]`.
    """

    steps: int
    following: Any
    terminated: Array
    truncated: Array


class Staging:
    """The newest steps. `steps` counts those of the whole run."""

    def __init__(self, item: dict[str, Any], n_envs: int) -> None:
        """Hold steps of an item: columns, of which `observation` has a next one, too."""
        self.item = item
        self.n_envs = n_envs
        self.steps = self._begun = 0  # the first step of this round
        stored_twice = {"item": item, "following": item["observation"]}
        sizes = leaves_of(map_columns(lambda column: column.nbytes, stored_twice))
        most = max(_BYTES // (2 * n_envs * sum(sizes) + 1), 2)
        self.room = max(2, *(size for size in _write_sizes.SIZES if size <= most))
        # The padding of the last steps reads beyond them. The very last row is the step before a
        # round of `room` steps, which overwrites all others.
        make = lambda column: np.zeros((2 * self.room, n_envs, *column.shape), column.dtype)
        self.rows = map_columns(make, item)
        self.following = map_columns(make, item["observation"])
        self.terminated = np.zeros((2 * self.room, n_envs), bool)
        self.truncated = np.zeros_like(self.terminated)
        self._see()

    def _see(self) -> None:
        """Note where the arrays of a step go, and which of them are compared."""
        self._targets = [
            (name, column, self.rows[name], _by_shape(name, self.rows[name]))
            for name, column in self.item.items()
        ]
        observation = self.item["observation"]
        self._next = "next_obs", observation, self.following, _by_shape("", self.following)
        # Bytes, so that NaN is the same as NaN.
        both = leaves_of(self.rows["observation"]), leaves_of(self.following)
        width = lambda rows: math.prod(rows.shape[2:])
        of_bytes = lambda rows: rows.reshape(*rows.shape[:2], width(rows)).view(np.uint8)
        self._compared = [tuple(map(of_bytes, pair)) for pair in zip(*both, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        """Return what is left of the steps once they are written."""
        return {"item": self.item, "n_envs": self.n_envs, "newest": self._newest()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Go on from there."""
        self.__init__(kept["item"], kept["n_envs"])
        self.go_on(kept["newest"])

    def _newest(self) -> Newest | None:
        """Return copies of the newest step; None if there is none."""
        if not self.steps:
            return None
        at = self._place(self.steps - 1)
        copied = lambda column, rows: column.stored(rows[at]).copy()
        following = map_columns(copied, self.item["observation"], self.following)
        return Newest(self.steps, following, self.terminated[at].copy(), self.truncated[at].copy())

    def stands_at(self, newest: Newest | None) -> bool:
        """Tell whether the newest step is this one, but for its number."""
        mine = self._newest()
        if mine is None or newest is None:
            return mine is newest
        pairs = zip(leaves_of(mine._asdict()), leaves_of(newest._asdict()), strict=True)
        return all(np.array_equal(*pair) for pair in list(pairs)[1:])  # without their numbers

    def go_on(self, newest: Newest | None) -> None:
        """Stand behind written steps, of which this one is the newest; None is no step."""
        self.steps = self._begun = 0
        if newest is None:
            return
        self.steps = newest.steps
        self._begun = (self.steps - 1) // self.room * self.room
        at = self._place(self.steps - 1)

        def put(column: Any, rows: Any, stored: Any) -> None:
            rows[at] = column.numpy(stored)

        map_columns(put, self.item["observation"], self.following, newest.following)
        self.terminated[at], self.truncated[at] = newest.terminated, newest.truncated

    def write(
        self, row: dict[str, Any], following: Any, terminated: Array, truncated: Array
    ) -> None:
        """Put a step behind the newest one. It counts when `steps` is one more."""
        at = self.steps % self.room
        for name, column, rows, by_shape in self._targets:
            _write(name, column, rows, by_shape, row[name], at)
        _write(*self._next, following, at)
        self.terminated[at], self.truncated[at] = terminated, truncated

    def go_round(self) -> None:
        """Begin the next round. All steps of the one before must have been written."""
        if self.steps == self._begun:  # an add has failed since
            return
        for rows in (*leaves_of(self.following), self.terminated, self.truncated):
            rows[-1] = rows[self.room - 1]
        self._begun = self.steps

    def _place(self, step: int) -> int:
        """Return where a step lies: one of this round, or the step before it."""
        return step % self.room if step >= self._begun else -1

    def cut_off(self, first: int) -> Array:
        """Return a mask of the steps whose episode the next step does not continue.

        It is bool `[count, n_envs]`, from the step before `first` on. Such a step is no end, and
        its next observation is not the observation of the next step.
        """
        now = slice(first % self.room, first % self.room + self.steps - first)
        found = np.zeros((self.steps - first, self.n_envs), bool)
        before = lambda rows: np.concatenate((rows[self._place(first - 1)][None], rows[now][:-1]))
        for new, led_to in self._compared:
            found |= (new[now] != before(led_to)).any(axis=2)
        if not first:  # there is no step before, and nothing to call
            found[0] = False
        return found & ~before(self.terminated) & ~before(self.truncated)

    def ended(self) -> Array | None:
        """Return which environments ended an episode in the newest step; None if there is none."""
        if not self.steps:
            return None
        newest = self._place(self.steps - 1)
        return self.terminated[newest] | self.truncated[newest]

    def truncate(self, step: int, which: Array) -> None:
        """Mark a step of some environments as truncated."""
        self.truncated[self._place(step)] |= which

    def part(self, first: int, size: int) -> tuple[dict[str, Any], int]:
        """Return the arguments of `fbuf.add` for the steps from `first` on, and their number.

        The steps lie one behind another: the caller takes them before the ring goes round.

        Args:
            first: The first step.
            size: The most steps to take; fewer are padded to this number.
        """
        count = min(self.steps - first, size)
        at = first % self.room
        cut = lambda column, array: column.stored(array[at : at + size])
        return {
            "items": map_columns(cut, self.item, self.rows),
            "next_observation": map_columns(cut, self.item["observation"], self.following),
            "terminated": self.terminated[at : at + size],
            "truncated": self.truncated[at : at + size],
            "mask": np.arange(size) < count,
        }, count


def _by_shape(name: str, rows: Any) -> dict[tuple[int, ...], Array]:
    """Return the arrays that a step may be assigned to as it is, by its shape."""
    if isinstance(rows, dict):
        return {}
    found = {rows.shape[1:]: rows}
    if name == "action" and rows.shape[2:] == (1,):
        found[rows.shape[1:2]] = rows[..., 0]
    return found


def _write(
    name: str, column: Any, rows: Any, by_shape: dict[Any, Array], given: Any, at: int
) -> None:
    """Write a step of one argument of `add`: at once, if it fits as it is."""
    place = by_shape.get(given.shape) if type(given) is np.ndarray else None
    if place is not None and place.dtype == given.dtype:
        place[at] = given
    else:
        _put(name, column, rows, given, at)


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
    place, array = rows[at], np.asarray(given)
    if array.shape != place.shape:
        array = _reshaped(name, column, array, len(place))
    if array.dtype.kind in "iu" and column.dtype.kind in "iu" and array.dtype != column.dtype:
        array = _fitting(name, column, array)
    try:
        np.copyto(place, array, casting="same_kind")
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
    axes = [n for n in array.shape if n != 1], [n for n in wanted if n != 1]
    if array.size == math.prod(wanted) and (name == "action" or axes[0] == axes[1]):
        return array.reshape(wanted)
    raise ValueError(
        f"{WHERE}.add: {name} must be of shape {wanted}, for n_envs="
        f"{n_envs}, got {array.shape}; make the buffer with the n_envs and the space of your "
        "environments"
    )


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of dicts, in their order."""
    return (
        [x for sub in tree.values() for x in leaves_of(sub)] if isinstance(tree, dict) else [tree]
    )
