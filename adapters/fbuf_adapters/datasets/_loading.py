"""From blocks of rows to chunks of one size, so that one program adds them all."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
from tqdm import tqdm

import fbuf
from fbuf.runtime.interrupts import uninterrupted
from fbuf_adapters.datasets._blocks import Block
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Casts, named, stored_specs, under, without
from fbuf_adapters.datasets._filler import Filler
from fbuf_adapters.datasets._target import Chunk, Target, target_of

_MOST_ROWS = 2**14
_FEWEST_ROWS = 2**8
_MOST_BYTES = 2**22  # larger chunks of images were slower: beside the buffer some ten are in memory


class Data(Protocol):
    """A data set.

    Attributes:
        item: One row: a tree of `jax.ShapeDtypeStruct`, with the dtypes of the data set.
        rows: How many.
        ends: How many episodes end in them; known once it is settled.
        unknown: Of how many truncated ones the last observation is lacking; likewise.
        needless: Of how many terminated ones it is lacking, where nobody needs it; likewise.
    """

    item: Any
    rows: int
    ends: int
    unknown: int
    needless: int

    def settle(self, of: str, size: int) -> list[str]:
        """Find where episodes end, before anything else is asked.

        Args:
            of: The field of which the data set may have the next values.
            size: About how many rows to read at a time.

        Returns:
            What the caller should know of it: sentences without their end.
        """
        ...

    def blocks(self, names: list[str], of: str | None, size: int) -> Iterator[Block]:
        """The rows in order. What is wrong beforehand is refused before any of them is read.

        Args:
            names: The leaves that are wanted.
            of: The field whose next value is wanted; None if none is.
            size: About how many rows a block shall have.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Options:
    """What all loaders take."""

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
        stored = stored_specs(where, found, None, casts)
        doubts = data.settle(options.next_of or "observation", _size(stored, data.rows))
        target = target_of(where, _new(item, data, stored, options))
    else:
        for name in ("sampler", "next_of", "drop"):
            if getattr(options, name) not in (None, ()):
                own = "leave the fields out of its item"
                instead = own if name == "drop" else "give it to fbuf.init"
                raise DatasetError(
                    f"{where}: {name} is for a new buffer; leave it out, or {instead}"
                )
        target = target_of(where, into)
        wanted = named(target.item)
        stored = stored_specs(where, _with_next(found, wanted, casts), wanted, casts)
        doubts = data.settle(target.next_of or "observation", _size(stored, data.rows))
    # Whether a field of the item is what the row's step led to, and no field of the data set.
    as_field = bool(under(stored, NEXT)) and not under(found, NEXT)
    of = target.next_of or ("observation" if as_field else None)
    if of is not None and not under(found, of):
        raise DatasetError(f"{where}: the data set has no field {of!r}, which next_of names")
    try:
        target.check(where, data.rows, data.ends)
    except DatasetError as error:
        for doubt in doubts:  # there may be more ends than the caller knows of
            error.add_note(f"{where}: {doubt}")
        raise
    names = [name for name in stored if name in found]
    blocks = data.blocks(names, of, _size(stored, data.rows))
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
    for doubt in doubts:
        warnings.warn(f"{where}: {doubt}", stacklevel=3)
    filler = Filler(target, stored, of, _size(stored, data.rows), casts)
    return _run(where, data.rows, target, filler.chunks(blocks), options.progress)


def _with_next(found: dict[str, Any], item: dict[str, Any], casts: Casts) -> dict[str, Any]:
    """The fields, and one for the next observation if the buffer has it, cast as the other is."""
    wanted, ours = under(item, NEXT), under(found, "observation")
    if under(found, NEXT):
        return found
    more: dict[str, Any] = {}
    for name in wanted.keys() & ours.keys():
        dtype = casts.of(f"observation{name}") or ours[name].dtype
        more[NEXT + name] = jax.ShapeDtypeStruct(ours[name].shape, dtype)
    return {**found, **more}


def _new(item: Any, data: Data, stored: dict[str, Any], options: Options) -> Any:
    item = jax.tree.unflatten(jax.tree.structure(item), [stored[name] for name in named(item)])
    ends = None if options.next_of is None else data.ends
    sampler = fbuf.Uniform() if options.sampler is None else options.sampler
    return fbuf.init(item, data.rows, sampler=sampler, next_of=options.next_of, max_ends=ends)


def _size(stored: Mapping[str, Any], rows: int) -> int:
    """How many rows to add at once: a few sizes for all data sets, fewer of wide rows."""
    width = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in stored.values())
    most = max(min(_MOST_ROWS, _MOST_BYTES // max(width, 1)), 1)
    return min(most, max(_FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def _run(
    where: str, rows: int, target: Target, chunks: Iterator[Chunk], progress: bool | None
) -> Any:
    """Add chunks; if something raises, say how much was added."""
    begun, ended, added, episodes = False, True, 0, 0
    hidden = None if progress is None else not progress
    try:
        with tqdm(
            total=rows, desc=where, unit="row", delay=1, disable=hidden, leave=False
        ) as shown:
            for chunk in chunks:
                if not begun:
                    begun = True
                    target.end_episode()
                ends = (chunk.terminated | chunk.truncated)[: chunk.rows]
                with uninterrupted():  # what is counted has been added
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
            # An exception may be given any attribute; pyright knows those of its class alone.
            error.state = target.result  # pyright: ignore[reportAttributeAccessIssue]
        raise
    return target.result
