"""Loading: the blocks of a data set are checked, made into chunks, and added."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict, TypeVar, cast

import jax
from tqdm import tqdm

import fbuf
from fbuf.adapter_api import Sampler, uninterrupted, warn
from fbuf_adapters.datasets._checks import require_source
from fbuf_adapters.datasets._chunks import Chunk, chunks, rows_at_once
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Casts, named, under, without
from fbuf_adapters.datasets._source import Source
from fbuf_adapters.datasets._target import Target

F = TypeVar("F", bound=Callable[..., Any])


def load(
    source: Source,
    into: Any = None,
    *,
    sampler: Sampler | None = None,
    next_of: str | None = None,
    casts: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    progress: bool | None = None,
) -> Any:
    """Load a data set of any format into a buffer; `from_arrays` and the like are made of this.

    Fields, shapes, dtypes and room are checked before the first row is added, values as they are
    read. The first row begins an episode: an open episode of `into` is ended.

    Args:
        source: The data set, an object of a class of yours.
        into: As for `from_arrays`.
        sampler: As for `from_arrays`.
        next_of: As for `from_arrays`.
        casts: As for `from_arrays`.
        drop: As for `from_arrays`.
        progress: As for `from_arrays`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if a block lacks a field, or has another shape. If
            the blocks have fewer or more rows than `rows` says, or more ends than `ends`. If a
            flag is no bool array of the block's rows.
        TypeError: If `source` is no object of a class of `Source`; and as from `from_arrays`.
        RuntimeError: If `into` has been consumed.

    An exception in the middle leaves the rows that were added before in the buffer, as for
    `from_arrays`.

    Cost: O(N) time, the cost of the source, and the memory of some chunks and of one block.

    Examples:
        >>> import jax, numpy as np
        >>> from fbuf_adapters.datasets import Block, RowFlags, Source, load
        >>> class Ones(Source):
        ...     item, rows, ends = {"reward": jax.ShapeDtypeStruct((), np.float32)}, 5, 1
        ...
        ...     def blocks(self, names, next_of, size):
        ...         flags = RowFlags(terminated=np.arange(5) == 4, truncated=np.zeros(5, bool))
        ...         yield Block({"reward": np.ones(5, np.float32)}, {}, flags)
        >>> load(Ones())
        State(Uniform, 5 of 5 rows)
    """
    require_source(source)
    where = source.where
    if not source.rows:
        raise DatasetError(f"{where}: the data set has no rows")
    allowed = Casts(where, {} if casts is None else casts)
    item = without(where, source.item, drop)
    leaves = named(item)
    if into is None:
        stored = allowed.stored(leaves, None)
        size = rows_at_once(stored.values(), source.rows)
        doubts = [*source.settle(next_of or "observation", size)]
        row = jax.tree.unflatten(jax.tree.structure(item), [stored[name] for name in leaves])
        ends = None if next_of is None else source.ends
        law = fbuf.Uniform() if sampler is None else sampler
        into = fbuf.init(row, source.rows, sampler=law, next_of=next_of, max_ends=ends)
        target = Target(where, into)
    else:
        for name, given in (("sampler", sampler), ("next_of", next_of), ("drop", drop)):
            if given not in (None, ()):
                own = "leave the fields out of its item"
                instead = own if name == "drop" else "give it to fbuf.init"
                raise DatasetError(
                    f"{where}: {name} is for a new buffer; leave it out, or {instead}"
                )
        target = Target(where, into)
        wanted = named(target.item)
        stored = allowed.stored(_with_next(leaves, wanted, allowed), wanted)
        size = rows_at_once(stored.values(), source.rows)
        doubts = [*source.settle(target.next_of or "observation", size)]
    # True if the item has a field for the next observation that the data set lacks.
    as_field = bool(under(stored, NEXT)) and not under(leaves, NEXT)
    of = target.next_of or ("observation" if as_field else None)
    if of is not None and not under(leaves, of):
        raise DatasetError(f"{where}: the data set has no field {of!r}, which next_of names")
    try:
        target.check(where, source.rows, source.ends)
    except DatasetError as error:
        for doubt in doubts:  # they tell of ends that the caller may not know
            error.add_note(f"{where}: {doubt}")
        raise
    blocks = source.blocks([name for name in stored if name in leaves], of, size)
    if source.unknown and as_field:
        raise DatasetError(
            f"{where}: the data set lacks the last observation of {source.unknown} of "
            f"{source.ends} episodes, so {NEXT!r} cannot be a field of all rows; leave it out of "
            "the item, and make the buffer with next_of='observation', which masks those"
        )
    if of is not None:
        doubts += _lacking(source.unknown, source.stands_in)
    for doubt in doubts:
        warn(f"{where}: {doubt}")
    return _run(source, target, chunks(source, blocks, target, stored, size, allowed), progress)


def _lacking(unknown: int, stands_in: int) -> Iterator[str]:
    """Yield warnings about missing next observations of a data set; see `Source`."""
    lacks = "the data set lacks the next observations of"
    if stands_in:
        yield (
            f"{lacks} {stands_in} row{'s' * (stands_in > 1)} that terminated; targets need none, "
            "so these rows count, with their own observation in its place; where you learn from "
            "next observations themselves, leave out batch.terminated"
        )
    if unknown:
        were = "s that were" if unknown > 1 else " that was"
        yield (
            f"{lacks} {unknown} row{were} truncated; views that need them, such as "
            "fbuf.Transition, mask these rows in every batch; where you have them, give them to "
            "from_arrays as next_observation; where you need none, leave next_of out"
        )


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


def _run(source: Source, target: Target, to_add: Iterator[Chunk], progress: bool | None) -> Any:
    """Add chunks; note the number of added rows on an exception."""
    begun, ended, added, episodes = False, True, 0, 0
    where, hidden = source.where, None if progress is None else not progress
    try:
        with tqdm(
            total=source.rows, desc=where, unit="row", delay=1, disable=hidden, leave=False
        ) as shown:
            for chunk in to_add:
                if not begun:
                    begun = True
                    target.end_episode()
                ends = chunk.flags.ended[: chunk.rows]
                with uninterrupted():  # the notes count added rows
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
                f"{where}: {added} of {source.rows} rows were added before, {episodes} whole "
                f"episodes{part}; the attribute 'state' of this exception is the buffer with them"
            )
            # An exception takes any attribute; pyright knows the attributes of the class alone.
            error.state = target.owner.buffer  # pyright: ignore[reportAttributeAccessIssue]
        raise
    return target.owner.buffer


class Options(TypedDict, total=False):
    """The arguments of `load` that all loaders take, for type checkers."""

    sampler: Sampler | None
    next_of: str | None
    casts: Mapping[str, Any] | None
    drop: Iterable[str]
    progress: bool | None


def loader(function: F) -> F:
    """Document the arguments of `load` for a function that passes them on as `**options`.

    The signature names each of them. So does the docstring: an argument without an entry of its own
    gets the text of `**options`.
    """
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    shared = [p for p in inspect.signature(load).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = {parameter.name for parameter in (*own, *shared)}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - names:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        return function(*args, **kwargs)

    called.__dict__["__signature__"] = signature.replace(parameters=[*own, *shared])
    before, head, rest = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")
    if head:  # Python with -OO has no docstrings
        args, returns, after = rest.partition("\n\nReturns:")
        entries = {e.partition(":")[0]: e for e in re.split(r"\n    (?=[*\w]+: )", args)[1:]}
        text = entries.pop("**options").partition(":")[2]
        for name in (parameter.name for parameter in shared):
            entries[name] = entries.pop(name, f"{name}:{text}")
        said = "".join(f"\n    {entry}" for entry in entries.values())
        called.__doc__ = f"{before}{head}{said}{returns}{after}"
    return cast(F, called)
