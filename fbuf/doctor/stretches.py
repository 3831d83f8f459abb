"""Consecutive rows of some environments, to compare each row with the next one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.doctor.chunks import chunks, row_bytes
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.opened import Part
from fbuf.storage.ring import DUMMY, ENDS, REMOVED, STANDS_IN
from fbuf.storage.stored_lanes import Lane

OBSERVATIONS = frozenset(
    {"observation", "observations", "obs", "state", "states", "pixels", "image"}
)
ACTIONS = frozenset({"action", "actions", "act"})

PAIRS = (
    ("observation", "next_observation"),
    ("observations", "next_observations"),
    ("obs", "next_obs"),
    ("observation", "next.observation"),
    ("obs", "next.obs"),
    ("state", "next_state"),
)
"""Names of observations and of next observations."""

_LANES = 8
"""The most environments to read."""

_ROWS = 4096
"""The most rows to read."""

MANY = 512
"""The most next observations to read at a time."""

_BYTES = 2**25
"""The most bytes to read, so fewer rows of images."""

_NUMBERS = 256
"""The most numbers of a leaf to read."""


@dataclasses.dataclass(frozen=True)
class Stretch:
    """The newest rows of an environment, the oldest first; numbers are float64.

    Attributes:
        env: The number of the environment, counted on over the shards.
        flags: uint8 `[n]`.
        observation: `[n, numbers]`; some numbers of wide leaves.
        action: `[n, numbers]`.
        reward: `[n]`; None if there is none.
        following: `[n, numbers]`: the next observation of each row; None for a buffer without them.
        known: bool `[n]`: whether the next observation is known.
    """

    env: int
    flags: np.ndarray[Any, Any]
    observation: np.ndarray[Any, Any]
    action: np.ndarray[Any, Any]
    reward: np.ndarray[Any, Any] | None
    following: np.ndarray[Any, Any] | None
    known: np.ndarray[Any, Any]

    @functools.cached_property
    def ends(self) -> np.ndarray[Any, Any]:
        """Bool `[n]`: the row ends an episode."""
        return self.flags & ENDS > 0

    @functools.cached_property
    def there(self) -> np.ndarray[Any, Any]:
        """Bool `[n]`: the row has not been removed, and is no dummy."""
        return self.flags & REMOVED == 0

    @functools.cached_property
    def inner(self) -> np.ndarray[Any, Any]:
        """Bool `[n - 1]`: the row and the following one are of one episode."""
        return ~self.ends[:-1] & self.there[:-1] & self.there[1:]


def named(leaves: Mapping[str, Leaf], names: frozenset[str]) -> list[int]:
    """Return the numbers of the numeric leaves with one of these names."""
    return [
        number
        for number, (name, leaf) in enumerate(leaves.items())
        if not names.isdisjoint(name.split("."))
        and not any("next" in part for part in name.split("."))
        and leaf.rows
        and leaf.dtype.kind != "c"
    ]


def of_buffer(
    parts: Sequence[Part],
    lanes_of: Sequence[Sequence[Lane]],
    rewards: Sequence[np.ndarray[Any, Any]],
    leaves: Mapping[str, Leaf],
) -> list[Stretch]:
    """Return equally many rows of some environments; nothing for rows in no order of time.

    Args:
        parts: The buffer, or all shards of one.
        lanes_of: The stored rows of each part.
        rewards: The reward of each slot of each part; empty if there is none.
        leaves: The figures of each leaf, by name.
    """
    if not parts[0].known or parts[0].state.sampler.places:
        return []
    observation, action = named(leaves, OBSERVATIONS), named(leaves, ACTIONS)
    following = _following(leaves, observation)
    lanes = [
        (number, place, lane)
        for number, each in enumerate(lanes_of)
        for place, lane in enumerate(each)
        if lane.slots.size
    ]
    fields = parts[0].layout.fields
    width = sum(row_bytes(fields[leaf]) for leaf in [*observation, *action, *following])
    some = lanes[:: max(1, -(-len(lanes) // _LANES))]
    count = max(2, min(_ROWS, _BYTES // max(width, 1)) // max(len(some), 1))
    if not observation:
        return []
    return [
        _stretch(
            parts[number],
            rewards[number] if rewards else None,
            number * parts[number].state.ring.lanes + place,
            (lane.slots[-count:], lane.flags[-count:]),
            (observation, action, following),
        )
        for number, place, lane in some
    ]


def _following(leaves: Mapping[str, Leaf], observation: Sequence[int]) -> list[int]:
    """Return the numbers of the leaves that hold the next observation, in the same order."""
    names = list(leaves)
    for now, later in PAIRS:
        wanted = [
            later + names[number].removeprefix(now)
            for number in observation
            if names[number] == now or names[number].startswith(f"{now}.")
        ]
        found = [names.index(name) for name in wanted if name in leaves]
        if found and len(found) == len(observation):
            shapes = [leaves[names[number]].shape for number in (*observation, *found)]
            if shapes[: len(found)] == shapes[len(found) :]:
                return found
    return []


def _stretch(
    part: Part,
    rewards: np.ndarray[Any, Any] | None,
    env: int,
    rows: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    leaves: tuple[list[int], list[int], list[int]],
) -> Stretch:
    """Read rows of a lane, by their slots and flags."""
    slots, flags = rows
    observation, action, stored = (_read(part, of, slots) for of in leaves)
    following, known = None, np.ones(slots.size, np.bool_)
    if leaves[2]:
        following = stored
    elif part.state.next_obs is not None and part.kept is not None:
        following, known = _kept(part, leaves[0], slots, flags, observation)
    reward = None if rewards is None else rewards[slots]
    known &= flags & STANDS_IN == 0
    # A step that only reset its environment is no row: the next one begins the episode.
    steps = flags & DUMMY == 0
    arrays = (flags, observation, action, reward, following, known)
    return Stretch(env, *(None if array is None else array[steps] for array in arrays))  # pyright: ignore[reportArgumentType]


def _read(part: Part, leaves: Sequence[int], slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return some numbers of leaves of rows: float64 `[n, numbers]`."""
    columns: list[np.ndarray[Any, Any]] = []
    for leaf in leaves:
        parts = [_some(array) for _, (array,) in chunks(part, [leaf], slots)]
        columns.append(np.concatenate(parts))
    return np.concatenate([np.zeros((slots.size, 0)), *columns], axis=1)


def _some(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return finite numbers of rows, from the same places of each: float64 `[n, numbers]`."""
    flat = array.reshape(array.shape[0], -1)
    if flat.shape[1] > _NUMBERS:  # without a pattern, so that they cover all parts of an image
        chosen = np.random.default_rng(0).choice(flat.shape[1], _NUMBERS, replace=False)
        flat = flat[:, np.sort(chosen)]
    numbers = flat.astype(np.float32).astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, 0)  # NaN and infinities have their own finding


def _kept(
    part: Part,
    leaves: Sequence[int],
    slots: np.ndarray[Any, Any],
    flags: np.ndarray[Any, Any],
    observation: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
    """Return the next observations of a buffer with `next_of`, and a mask of the known ones."""
    kept: Any = part.state.next_obs
    numbers = jax.tree.leaves(part.layout.find("report", "next_of", kept.field))
    if list(leaves) != list(numbers) or part.kept is None:
        return None, np.zeros(slots.size, np.bool_)
    following = np.concatenate([observation[1:], observation[-1:]])
    known = flags & ENDS == 0
    known[-1] = False
    ends = np.flatnonzero(flags & ENDS > 0)
    place, owner = np.asarray(kept.kept_at)[slots[ends]], np.asarray(kept.owner)
    there = (place >= 0) & (owner[np.maximum(place, 0)] == slots[ends])
    ends, place = ends[there], place[there]
    size = min(MANY, owner.size)
    for first in range(0, ends.size, size):
        rows = ends[first : first + size]
        padded = np.zeros(size, np.int32)
        padded[: rows.size] = place[first : first + size]
        read = part.kept(padded, range(len(numbers)))
        some = [_some(np.asarray(leaf)[: rows.size]) for leaf in read]
        following[rows], known[rows] = np.concatenate(some, axis=1), True
    return following, known
