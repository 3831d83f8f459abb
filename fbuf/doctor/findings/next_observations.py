"""Next observations with wrong contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.opened import Read
from fbuf.doctor.stretches import MANY, PAIRS
from fbuf.storage.ring import ENDS, REMOVED, TRUNCATED
from fbuf.storage.stored_lanes import Lane

_FEW = 16
"""The fewest rows for a finding; `MANY` is the most to compare."""


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    if found.sampler.places:
        return
    for observation, following in PAIRS:
        pairs = _pairs_of_leaves(leaves, observation, following)
        # Constant parts, such as goals, are no evidence.
        if not all(leaves[name].alike for name, _ in pairs):
            yield from _stored(found, _numbers(leaves, pairs), observation, following)
    yield from _kept(found, leaves)


def has_next(leaves: Mapping[str, Leaf]) -> bool:
    """Tell whether rows hold a next observation: a field, or a dict of fields."""
    return any(_is_in(name, following) for name in leaves for _, following in PAIRS)


def _is_in(name: str, field: str) -> bool:
    """Tell whether a leaf is a field, or part of the field."""
    return name == field or name.startswith(f"{field}.")


def _pairs_of_leaves(
    leaves: Mapping[str, Leaf], observation: str, following: str
) -> list[tuple[str, str]]:
    """Return the leaves of an observation, each with its leaf of the next one."""
    named = [name for name in leaves if _is_in(name, observation)]
    pairs = [(name, following + name.removeprefix(observation)) for name in named]
    return [
        (name, later)
        for name, later in pairs
        if later in leaves and leaves[name].shape == leaves[later].shape and leaves[name].rows
    ]


def _numbers(
    leaves: Mapping[str, Leaf], pairs: Sequence[tuple[str, str]]
) -> tuple[list[int], list[int]]:
    """Return the numbers of the leaves of observations, and of next observations."""
    numbers = {name: number for number, name in enumerate(leaves)}
    return [numbers[name] for name, _ in pairs], [numbers[later] for _, later in pairs]


def _stored(
    found: Found, pair: tuple[list[int], list[int]], observation: str, following: str
) -> Iterator[Finding]:
    """Compare stored next observations of some rows with observations."""
    equal, compared = _counts(found, pair, lambda flags: flags & ENDS == 0, steps=0)
    if compared >= _FEW and equal == compared:
        yield Finding(
            "error",
            "next_observation_is_observation",
            f"The field {following!r} equals {observation!r} of the same row, in each of "
            f"{compared:,} rows that were compared.",
            "Store the observation after the step. A simulator may write the next observation "
            "into the array that you keep: copy it before the step.",
        )
    else:
        counts = _counts(found, pair, lambda flags: flags & TRUNCATED > 0, steps=1)
        yield from _after_reset(f"the field {following!r}", *counts)


def _after_reset(following: str, equal: int, compared: int) -> Iterator[Finding]:
    """Find next observations that are those of a reset."""
    if compared >= _FEW and equal > compared // 2:
        yield Finding(
            "warning",
            "next_observation_after_reset",
            f"After a truncated row {following} is the first observation of the next episode, in "
            f"{equal:,} of {compared:,} rows that were compared. After a reset, values are then "
            "passed back from another episode.",
            "Store the last observation before the reset. Gymnasium's vector environments have it "
            'in info["final_obs"]; the collectors of fbuf_adapters do it for you. If you do not '
            "reset there, all is well.",
        )


def _counts(
    found: Found, pair: tuple[list[int], list[int]], wanted: Callable[[Any], Any], *, steps: int
) -> tuple[int, int]:
    """Count the wanted rows whose next observation is the observation some steps later.

    Returns:
        The number of equal rows, and the number of compared ones.
    """
    equal = compared = 0
    for part, lanes in zip(found.parts, found.lanes, strict=True):
        first, second = _pairs(lanes, wanted, steps)
        following = _read(part.read, part.state.capacity, pair[1], first)
        observed = _read(part.read, part.state.capacity, pair[0], second)
        equal, compared = equal + int(_same(following, observed).sum()), compared + first.size
    return equal, compared


def _kept(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Compare the kept next observations of truncated rows with the next row."""
    equal = compared = 0
    name = ""
    for part, lanes in zip(found.parts, found.lanes, strict=True):
        kept, read = part.state.next_obs, part.kept
        if kept is None or read is None:
            return
        name, layout = kept.field, part.layout
        numbers = jax.tree.leaves(layout.find("report", "next_of", name))
        if all(list(leaves.values())[number].alike for number in numbers):
            return
        first, second = _pairs(lanes, lambda flags: flags & TRUNCATED > 0, 1)
        place, owner = np.asarray(kept.kept_at)[first], np.asarray(kept.owner)
        is_known = (place >= 0) & (owner[np.maximum(place, 0)] == first)
        place, second = place[is_known], second[is_known]
        following = _read(read, owner.size, range(len(numbers)), place)
        observed = _read(part.read, part.state.capacity, numbers, second)
        equal, compared = equal + int(_same(following, observed).sum()), compared + second.size
    yield from _after_reset(name and "the next_observation", equal, compared)


def _pairs(
    lanes: Sequence[Lane], wanted: Callable[[Any], Any], steps: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the slots of some wanted rows, and of the rows `steps` later."""
    first: list[np.ndarray[Any, Any]] = []
    second: list[np.ndarray[Any, Any]] = []
    for lane in lanes:
        count, live = max(lane.slots.size - steps, 0), lane.flags & REMOVED == 0
        rows = np.flatnonzero(wanted(lane.flags)[:count] & live[:count] & live[steps:])
        first.append(lane.slots[rows])
        second.append(lane.slots[rows + steps])
    slots, later = np.concatenate(first), np.concatenate(second)
    some = np.unique(np.linspace(0, slots.size - 1, min(slots.size, MANY)).astype(np.int64))
    return slots[some], later[some]


def _read(
    read: Read, capacity: int, leaves: Sequence[int], slots: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """Return leaves of at most `MANY` rows, padded to `MANY`, so that one program serves all."""
    padded = np.zeros(min(MANY, capacity), np.int32)
    padded[: slots.size] = slots
    return [np.asarray(leaf)[: slots.size] for leaf in read(padded, list(leaves))]


def _same(
    one: Sequence[np.ndarray[Any, Any]], other: Sequence[np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Return a mask of the rows that are equal in all leaves: bool `[B]`."""
    pairs = [(a == b).all(axis=tuple(range(1, a.ndim))) for a, b in zip(one, other, strict=True)]
    return np.logical_and.reduce(pairs)
