"""The rewards of a buffer, and the lengths and returns of its episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fbuf.doctor.chunks import chunks
from fbuf.doctor.leaves import names
from fbuf.doctor.opened import Part
from fbuf.storage.layout import Layout
from fbuf.storage.ring import REMOVED
from fbuf.storage.stored_lanes import Lane

_NAMES = ("reward", "rewards", "r")


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Whole episodes, stored from first to last row, in the order of their ends.

    Attributes:
        lengths: The rows of each episode.
        returns: The sum of rewards of each episode, undiscounted; None if there is no reward.
        ended: The age of the last row of each episode, in rows of its environment, that row
            included.
        thinned: The number of episodes that are left out because rows of them were removed.
    """

    lengths: np.ndarray
    returns: np.ndarray | None
    ended: np.ndarray
    thinned: int = 0


def episodes(lane: Lane, rewards: np.ndarray | None) -> Episodes:
    """Return the whole episodes of a lane, without episodes that have lost a row."""
    first, last, whole, ended = lane.episodes
    removed = _sums(lane.flags & REMOVED > 0, first, last)
    kept = whole & ended & (removed == 0)
    thinned = whole & ended & (removed > 0) & (removed <= last - first)
    returns = None
    if rewards is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # the figures count such returns
            returns = _sums(rewards[lane.slots], first, last)[kept]
    ages = (lane.slots.size - last)[kept]
    return Episodes((last - first + 1)[kept], returns, ages, int(thinned.sum()))


def _sums(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the sum of the values of each episode."""
    edges = np.stack([first, last + 1], axis=1).reshape(-1)
    return np.add.reduceat(np.append(values, 0), edges)[::2]


def together(each: Sequence[Episodes]) -> Episodes:
    """Return the episodes of several lanes in the order of their ends."""
    none = Episodes(np.zeros(0, np.int64), None, np.zeros(0, np.int64))
    each = [*each, none]
    ended = np.concatenate([one.ended for one in each])
    order = np.argsort(-ended, kind="stable")
    lengths = np.concatenate([one.lengths for one in each])[order]
    returns = [one.returns for one in each if one.returns is not None]
    thinned = sum(one.thinned for one in each)
    joined = np.concatenate(returns)[order] if returns else None
    return Episodes(lengths, joined, ended[order], thinned)


class Asked(NamedTuple):
    """The name of the reward, and the names of function and argument for messages."""

    field: str | None
    function: str
    argument: str


def reward_field(layout: Layout, asked: Asked) -> tuple[str, int] | str:
    """Return the name and the number of the reward's leaf, or the reason for its absence.

    Args:
        layout: The leaves of an item.
        asked: The name of the field; None is the first field with a usual name.

    Raises:
        ValueError: If `asked` names no field, or a field of another kind.
    """
    wanted, start = asked.field, f"fbuf.{asked.function}: {asked.argument} names"
    if wanted is None:
        named = likely_fields(layout)
    else:
        leaf = layout.find(asked.function, asked.argument, wanted)
        if not isinstance(leaf, int):
            raise ValueError(f"{start} {wanted!r}, which has fields of its own; name one of them")
        named = [(wanted, leaf)]
    for name, leaf in named:
        field = layout.fields[leaf]
        if field.size == 1 and not jnp.issubdtype(field.dtype, jnp.complexfloating):
            return name, leaf
    if wanted is not None:
        raise ValueError(
            f"{start} {wanted!r}, which is not one real number a row; name another field, or leave "
            f"{asked.argument} out"
        )
    if not named:
        return f"no field called reward; say which one with {asked.argument}"
    name, field = named[0][0], layout.fields[named[0][1]]
    return f"{name} is {field.dtype}{list(field.shape)}, and not one real number a row"


def likely_fields(layout: Layout) -> list[tuple[str, int]]:
    """Return names and numbers of leaves with the name of a reward, the likeliest first."""
    parts = [named.split(".") for named in names(layout)]
    return [
        (".".join(part), leaf)
        for name in _NAMES
        for leaf, part in enumerate(parts)
        if part[-1] == name
    ]


def values(part: Part, leaf: int, lanes: Iterable[Lane]) -> np.ndarray:
    """Return a scalar leaf of every slot, as float64 `[capacity]`; 0 without a row.

    Args:
        part: The buffer.
        leaf: The number of the leaf.
        lanes: The slots that hold a row.
    """
    found = np.zeros(part.state.capacity)
    held = np.zeros(part.state.capacity, np.bool_)
    for lane in lanes:
        held[lane.slots] = True
    for slots, (read,) in chunks(part, [leaf], np.flatnonzero(held)):
        found[slots] = read.reshape(-1).astype(np.float64)
    return found
