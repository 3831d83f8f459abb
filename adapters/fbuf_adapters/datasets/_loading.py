"""Loading: the blocks of a data set are checked, made into chunks, and added."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
from tqdm import tqdm

import fbuf
from fbuf.adapter_api import uninterrupted, warn
from fbuf_adapters.datasets._blocks import Block, rows_at_once
from fbuf_adapters.datasets._chunks import Chunk, chunks
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Casts, named, under, without
from fbuf_adapters.datasets._target import Target


class Data(Protocol):
    """A data set.

    Attributes:
        item: One row: a tree of `jax.ShapeDtypeStruct`, with the dtypes of the data set.
        rows: The number of rows.
        ends: The number of ends of episodes; known after `settle`.
        unknown: The number of truncated episodes without a last observation; known after `settle`.
        needless: The same of terminated episodes, where nobody needs it; known after `settle`.
    """

    item: Any
    rows: int
    ends: int
    unknown: int
    needless: int

    def settle(self, of: str, size: int) -> list[str]:
        """Find where episodes end, before anything else is asked.

        Args:
            of: The field whose next values the data set may have.
            size: About how many rows to read at a time.

        Returns:
            Doubts to warn the caller of: sentences without their end.
        """
        ...

    def blocks(self, names: list[str], of: str | None, size: int) -> Iterator[Block]:
        """Return the rows in order; refuse bad arguments before a row is read.

        Args:
            names: The leaves to read.
            of: The field whose next value to read; None for no field.
            size: About how many rows a block shall have.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that all loaders take."""

    sampler: Any
    next_of: str | None
    casts: Mapping[str, Any] | None
    drop: Iterable[str]
    progress: bool | None


def load(where: str, data: Data, into: Any, options: Options) -> Any:
    """Add a data set to a buffer, or to a new one; see `from_arrays`."""
    if not data.rows:
        raise DatasetError(f"{where}: the data set has no rows")
    casts = Casts(where, {} if options.casts is None else options.casts)
    item = without(where, data.item, options.drop)
    found = named(item)
    if into is None:
        stored = casts.stored(found, None)
        size = rows_at_once(stored.values(), data.rows)
        doubts = data.settle(options.next_of or "observation", size)
        target = Target(where, _new(item, data, stored, options))
    else:
        for name in ("sampler", "next_of", "drop"):
            if getattr(options, name) not in (None, ()):
                own = "leave the fields out of its item"
                instead = own if name == "drop" else "give it to fbuf.init"
                raise DatasetError(
                    f"{where}: {name} is for a new buffer; leave it out, or {instead}"
                )
        target = Target(where, into)
        wanted = named(target.item)
        stored = casts.stored(_with_next(found, wanted, casts), wanted)
        size = rows_at_once(stored.values(), data.rows)
        doubts = data.settle(target.next_of or "observation", size)
    # Whether the item has a field for the next observation, and the data set has no such field.
    as_field = bool(under(stored, NEXT)) and not under(found, NEXT)
    of = target.next_of or ("observation" if as_field else None)
    if of is not None and not under(found, of):
        raise DatasetError(f"{where}: the data set has no field {of!r}, which next_of names")
    try:
        target.check(where, data.rows, data.ends)
    except DatasetError as error:
        for doubt in doubts:  # the caller may not know all ends
            error.add_note(f"{where}: {doubt}")
        raise
    names = [name for name in stored if name in found]
    blocks = data.blocks(names, of, size)
    if data.unknown and as_field:
        raise DatasetError(
            f"{where}: the data set lacks the last observation of {data.unknown} of {data.ends} "
            f"episodes, so {NEXT!r} cannot be a field of all rows; leave it out of the item, and "
            "make the buffer with next_of='observation', which masks those"
        )
    if data.needless and of is not None:
        doubts.append(
            f"the data set lacks the next observations of {data.needless} row"
            f"{'s' * (data.needless > 1)} that terminated; "
            "targets need none, so these rows count, with their own observation in its place; "
            "where you learn from next observations themselves, leave out batch.terminated"
        )
    if data.unknown and of is not None:
        doubts.append(
            f"the data set lacks the next observations of {data.unknown} row"
            f"{'s' * (data.unknown > 1)} that {'were' if data.unknown > 1 else 'was'} truncated; "
            "views that need them, such as fbuf.Transition, mask these rows in every batch; where "
            "you have them, give them to from_arrays as next_observation; where you need none, "
            "leave next_of out"
        )
    for doubt in doubts:
        warn(f"{where}: {doubt}")
    to_add = chunks(blocks, target, stored, of, size, casts)
    return _run(where, data.rows, target, to_add, options.progress)


def _with_next(found: dict[str, Any], item: dict[str, Any], casts: Casts) -> dict[str, Any]:
    """Return the fields, and the next observation if the buffer has it, cast as the observation."""
    more: dict[str, Any] = {}
    if not under(found, NEXT):
        wanted = under(item, NEXT)
        for name, ours in under(found, "observation").items():
            if name in wanted:
                dtype = casts.of(f"observation{name}") or ours.dtype
                more[NEXT + name] = jax.ShapeDtypeStruct(ours.shape, dtype)
    return {**found, **more}


def _new(item: Any, data: Data, stored: dict[str, Any], options: Options) -> Any:
    item = jax.tree.unflatten(jax.tree.structure(item), [stored[name] for name in named(item)])
    ends = None if options.next_of is None else data.ends
    sampler = fbuf.Uniform() if options.sampler is None else options.sampler
    return fbuf.init(item, data.rows, sampler=sampler, next_of=options.next_of, max_ends=ends)


def _run(
    where: str, rows: int, target: Target, to_add: Iterator[Chunk], progress: bool | None
) -> Any:
    """Add chunks; tell an exception how much was added."""
    begun, ended, added, episodes = False, True, 0, 0
    hidden = None if progress is None else not progress
    try:
        with tqdm(
            total=rows, desc=where, unit="row", delay=1, disable=hidden, leave=False
        ) as shown:
            for chunk in to_add:
                if not begun:
                    begun = True
                    target.end_episode()
                ends = (chunk.terminated | chunk.truncated)[: chunk.rows]
                with uninterrupted():  # the counts are of added rows
                    target.add(chunk)
                    added, episodes = added + chunk.rows, episodes + int(ends.sum())
                    ended = ends[-1]
                shown.update(chunk.rows)
    except BaseException as error:
        if begun:
            if not ended:
                target.end_episode()
            part = "" if ended else " and the beginning of one, which is now truncated"
            error.add_note(
                f"{where}: {added} of {rows} rows were added before, {episodes} whole episodes"
                f"{part}; the attribute 'state' of this exception is the buffer with them"
            )
            # An exception takes any attribute; pyright knows the attributes of the class alone.
            error.state = target.result  # pyright: ignore[reportAttributeAccessIssue]
        raise
    return target.result
