"""The rewards of a checkpoint, and its episodes: how long each is, and what it returned."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import npy, row_ranges
from fbuf.checkpoint.manifest import Manifest
from fbuf.state import State
from fbuf.storage.layout import Field
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED

_NAMES = ("reward", "rewards", "r")


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Episodes that are there from their first row to their last, those that ended first first.

    Attributes:
        lengths: The rows of each.
        returns: The sum of rewards of each, undiscounted; None if there is no reward.
        ended: How many rows ago its environment wrote the last row of each, that row included.
    """

    lengths: np.ndarray
    returns: np.ndarray | None
    ended: np.ndarray


def lanes_of(like: State[Any], cursor: np.ndarray) -> list[np.ndarray]:
    """The slots of each lane that hold a row, the oldest first."""
    ring, found = like.ring, list[np.ndarray]()
    for head, (at, _, stored, _) in enumerate(cursor.T.astype(np.int64)):
        offsets = (at - stored + np.arange(stored)) % ring.head_capacity
        if ring.heads == ring.lanes:
            found.append(offsets * ring.heads + head)
        else:
            found += [offsets[lane :: ring.lanes] for lane in range(ring.lanes)]
    return found


def episodes(
    lanes: list[np.ndarray],
    flags: np.ndarray,
    cursor: np.ndarray,
    room: int,
    rewards: np.ndarray | None,
) -> Episodes:
    """Each episode that is there whole, and not removed."""
    found: list[Episodes] = []
    # Where rows have been overwritten, the oldest episode may have begun before the oldest row.
    head, lap, stored, _ = cursor.astype(np.int64)
    all_there = (stored < room) | (lap * room + head == room)
    for slots, none_gone in zip(lanes, np.resize(all_there, len(lanes)), strict=True):
        of = flags[slots]
        from_the_first = bool(of.size) and bool(none_gone or of[0] & DUMMY)
        places = np.flatnonzero(of & DUMMY == 0)
        of = of[places]
        ends = np.flatnonzero(of & ENDS)
        if not ends.size:
            continue
        starts = np.r_[0, ends[:-1] + 1]
        whole = of[starts] & CUT == 0
        whole[0] &= from_the_first
        there = (of & REMOVED == 0)[: ends[-1] + 1].astype(int)
        whole &= np.add.reduceat(there, starts) > 0
        returns = None
        if rewards is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # that is said in words
                returns = np.add.reduceat(rewards[slots[places]][: ends[-1] + 1], starts)[whole]
        ended = slots.size - places[ends]
        found.append(Episodes((ends - starts + 1)[whole], returns, ended[whole]))
    none = np.zeros(0, np.int64)
    return together([*found, Episodes(none, None if rewards is None else np.zeros(0), none)])


def together(each: Sequence[Episodes]) -> Episodes:
    """The episodes of several lanes, or of several shards."""
    ended = np.concatenate([one.ended for one in each])
    order = np.argsort(-ended, kind="stable")
    lengths = np.concatenate([one.lengths for one in each])[order]
    returns = [one.returns for one in each if one.returns is not None]
    return Episodes(lengths, np.concatenate(returns)[order] if returns else None, ended[order])


def field_of(like: State[Any], wanted: str | None) -> tuple[str, int] | None:
    """The name and the number of the leaf of the reward."""
    fields = like.storage.layout.fields
    if wanted is None:
        return next((of for of in _named(like) if _is_number(fields[of[1]])), None)
    try:
        leaf = like.storage.layout.find("inspect", "--reward", wanted)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("fbuf.inspect: ")) from None
    if not isinstance(leaf, int):
        raise ValueError(f"--reward names {wanted!r}, which has fields of its own")
    if not _is_number(fields[leaf]):
        raise ValueError(f"--reward names {wanted!r}, which is not one real number a row")
    return wanted, leaf


def why_none(like: State[Any]) -> str:
    """Why no field was taken for the reward."""
    for name, leaf in _named(like):
        field = like.storage.layout.fields[leaf]
        return f"{name} is {field.dtype}{list(field.shape)}, and not one real number a row"
    return "no field called reward; say which one with --reward"


def _named(like: State[Any]) -> list[tuple[str, int]]:
    """Names and numbers of the leaves that are called like a reward, the likeliest first."""
    paths = [path for path, _ in jax.tree.leaves_with_path(like.storage.item)]
    return [
        (".".join(str(getattr(part, "key", part)) for part in path), leaf)
        for name in _NAMES
        for leaf, path in enumerate(paths)
        if path and getattr(path[-1], "key", None) == name
    ]


def _is_number(field: Field) -> bool:
    return field.size == 1 and not jnp.issubdtype(field.dtype, jnp.complexfloating)


def values(
    folder: pathlib.Path, found: Manifest, like: State[Any], field: tuple[str, int]
) -> np.ndarray:
    """The reward of every slot, as float64."""
    storage, leaf = like.storage, field[1]
    (store, *_) = row_ranges.of_state(like)
    number = (
        0
        if storage.layout.fields[leaf].narrow
        else 1 + sum(not other.narrow for other in storage.layout.fields[:leaf])
    )
    spec = store.arrays[number]
    values = np.zeros(like.capacity)

    def put(path: pathlib.Path, count: int, rows: Any, at: int, widths: list[int]) -> None:
        view = npy.views(path, count, widths)[at]
        for done, some in rows:
            part = np.ascontiguousarray(view[done : done + some.size])
            array = jnp.asarray(
                part.reshape(-1).view(spec.dtype).reshape(some.size, *spec.shape[1:])
            )
            own = storage
            if number == 0:
                own = dataclasses.replace(storage, words=array)
            else:
                wide = list(storage.wide)
                wide[number - 1] = array
                own = dataclasses.replace(storage, wide=tuple(wide))
            read = own.read_leaves(jnp.arange(some.size, dtype=jnp.int32), [leaf])[0]
            values[some] = np.asarray(read).reshape(-1).astype(np.float64)

    for segment in found.segments["rows"]:
        places = segment.places
        rows = zip(range(0, row_ranges.size(places), store.step), store.rows(places), strict=True)
        put(folder / segment.file, row_ranges.size(places), rows, number, store.widths)
    if found.written is not None:
        name, count = found.written
        numbers = npy.views(folder / name, count, [8])[0]
        slots = np.array(numbers).reshape(-1).view(np.int64)
        steps = range(0, count, store.step)
        put(
            folder / name,
            count,
            ((at, slots[at : at + store.step]) for at in steps),
            number + 1,
            [8, *store.widths],
        )
    return values
