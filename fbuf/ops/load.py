"""Reading a buffer from disk."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax

from fbuf.checkpoint import (
    background,
    config,
    deletable,
    lineage,
    manifest,
    other_run,
    paths,
    progress,
    reader,
    shapes,
    sharded_manifest,
)
from fbuf.checkpoint import extra as extras
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.manifest import Manifest
from fbuf.checks import values as check
from fbuf.checks.warn import warn
from fbuf.dispatch import parse
from fbuf.ops import fields, lost_next
from fbuf.ops.end_episode import cut_episodes
from fbuf.ops.init import init
from fbuf.ops.resize import resized
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State
from fbuf.storage import tags
from fbuf.storage.stored_lanes import may_have_open_episodes
from fbuf.xla.place import allocating

_NOT_OURS = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, StopIteration, AssertionError),
)
"""The errors that an edited manifest with a right checksum can cause."""


MORE_ENDS = (
    "they were not known at the save, or this load has no room for more ends; keep more with "
    f"max_ends: {lost_next.ROOM}"
)
"""The advice where next observations are lost; a resize keeps the share of the capacity."""

Episodes = Literal["end", "keep"]
"""Rules for the episodes that were open when a buffer was saved."""


class Checkpoint(NamedTuple):
    """The result of `fbuf.load`.

    Attributes:
        state: The buffer.
        extra: The tree that was saved beside it; None if there is none.

    Examples:
        >>> import fbuf, jax.numpy as jnp, tempfile
        >>> path = tempfile.mkdtemp()
        >>> state = fbuf.save(path, fbuf.init(jnp.zeros(()), capacity=4), extra=[1, 2])
        >>> state, extra = fbuf.load(path)
        >>> extra
        [1, 2]
    """

    state: State[Any]
    """The buffer."""
    extra: Any
    """The tree that was saved beside it."""


def load(
    path: str | os.PathLike[str],
    *,
    item: Any = None,
    sampler: Sampler | None = None,
    extra: Any = None,
    with_extra: bool = True,
    capacity: int | None = None,
    fallback: bool = False,
    episodes: Episodes = "end",
    fill: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
) -> Checkpoint:
    """Read the newest checkpoint of a directory.

    A run that goes on from there resets its environments, as a rule. So the episodes that were open
    are ended, as by `fbuf.end_episode`, and `fbuf.report` does not count these episodes as whole.
    All else is bit for bit as `fbuf.save` returned it. With `episodes="keep"` everything is, and
    training continues as if it had never stopped: restore the environments, too. All bytes are held
    against their checksums. Nothing that a file says is run.

    The buffer carries the save id of the checkpoint, so the next save to the directory writes only
    what is new. Checkpoints of fbuf 0.2 have no save id; the first save after them writes all rows.

    The arrays lie on JAX's default device; put the call into `jax.default_device(device)` for
    another one.

    Args:
        path: The directory of `fbuf.save`.
        item: An example of an item, as it was saved. Needed if items are made of classes of your
            own, or of named tuples. With dicts, lists and tuples it only checks the checkpoint.
        sampler: The sampler. Needed if it is one of your own; else only to check.
        extra: A tree of the structure that was saved beside the buffer; needed if that has classes
            of your own, like most optimisers. Its leaves are not read.
        with_extra: False reads the buffer alone: `extra` of the result is then None.
        capacity: Another capacity for the buffer, as for `fbuf.resize`. None is the one it had.
        fallback: If the newest checkpoint is damaged, warn, and read the one before it. A save that
            was stopped is no damage: it has never been the newest.
        episodes: `"end"` ends the open episodes: the next row of each environment begins one.
            `"keep"` leaves them open: the next row continues the newest one. To end episodes may
            set `LOST_NEXT`, as for `fbuf.end_episode`. A warning counts all rows that views mask
            because their next observation is not known.
        fill: New fields of the item by name (`"camera.depth"` is inside a dict), each with its
            value in the rows that are there. A value is an array of the shape and dtype of the
            field, or a tree of arrays. All else stays, row ids too. Items must be dicts. Save such
            a buffer to another directory.
        drop: Names of fields to leave out; otherwise as `fill`.

    Returns:
        The buffer, and the tree that was saved beside it; arrays of JAX and of NumPy are so again.

    Raises:
        CheckpointError: If there is no checkpoint, or it is damaged, of a newer fbuf, or of
            another item or sampler. The message says what was found.
        TypeError: If a leaf of `item` is no array, or `sampler` is no sampler.
        ValueError: If `item` has no leaf, `path` is empty or a URL, `episodes` is something else,
            or `capacity` does not fit (see `fbuf.resize`). Also if a field to `drop` is missing, is
            `next_of`, or is a field of the sampler. Also if a field to `fill` is there.
        MemoryError: If the device has no room for it.
        Exception: The error of a save to the directory in the background.

    Cost: it reads every byte once. Memory is that of the buffer and of some 64 MB; with `capacity`,
    `fill` or `drop` that of both buffers.

    Examples:
        >>> import fbuf, jax.numpy as jnp, tempfile
        >>> path = tempfile.mkdtemp()
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(6.0))
        >>> state = fbuf.save(path, state)
        >>> fbuf.rows(fbuf.load(path).state).data
        Array([2., 3., 4., 5.], dtype=float32)
    """
    check.boolean("load", "with_extra", with_extra)
    check.choice("load", "episodes", episodes, get_args(Episodes))
    if capacity is not None:
        capacity = check.integer("load", "capacity", capacity, check.LARGEST_CAPACITY)
    if isinstance(drop, str):
        raise TypeError(f"fbuf.load: drop must be a list of names, got {drop!r}")
    extra = extra if with_extra else extras.LEFT_OUT
    with allocating():
        checkpoint = newest(path, item, sampler, extra, fallback, init)
    state = checkpoint.state
    # To look is quick, and to compile is not.
    if episodes == "end" and may_have_open_episodes(state.ring):
        state = cut_episodes(state)
    if fill or drop:
        with allocating():
            # Without a save id: no save may take its rows for those of a checkpoint.
            state = fields.changed("load", state, fill or {}, drop)
            state = lineage.with_id(state, lineage.NONE)
    if capacity is not None:
        state = resized(state, capacity)
    lost_next.of_states("fbuf.load", [state], MORE_ENDS)
    return checkpoint._replace(state=state)


def newest(
    path: str | os.PathLike[str],
    item: Any,
    sampler: Sampler | None,
    extra: Any,
    fallback: bool,
    make: Callable[..., State[Any]],
) -> Checkpoint:
    """Read the newest checkpoint; `make` is called with arguments of `init`. See `load`."""
    check.boolean("load", "fallback", fallback)
    if sampler is not None:
        check.instance("load", "sampler", sampler, Sampler, "fbuf.Uniform()")
    if item is not None:
        parse.item_specs("load", item)
    folder = paths.local("fbuf.load", path)
    background.wait(folder)
    heads = manifest.heads(folder)
    known = list(heads)
    if not known:
        sharded = " of a plain buffer; of one over a mesh there is: use fbuf.sharded.load"
        why = sharded if sharded_manifest.numbers(folder) else ""
        if not folder.is_dir():
            why = ": that is a file" if folder.exists() else ": there is no such directory"
        raise CheckpointError(f"fbuf.load: there is no checkpoint in {folder}{why}")
    for number in reversed(known):
        try:
            found, state, arrays = read(folder, number, item, sampler, make)
            with as_damage(folder, number):
                beside = extras.joined(found.extra, arrays, extra)
        except Mismatch:
            raise
        except CheckpointError as error:
            if manifest.numbers(folder)[-1:] > known[-1:]:
                # A save of another process has deleted the files meanwhile.
                return newest(folder, item, sampler, extra, fallback, make)
            if not fallback or number == known[0]:
                raise
            warn(f"{error}; reading the checkpoint before it")
            continue
        deletable.note(folder, heads.values())
        return Checkpoint(state, beside)
    raise AssertionError("the oldest checkpoint is returned, or its error is raised")


def read(
    folder: pathlib.Path,
    number: int,
    item: Any,
    sampler: Sampler | None,
    make: Callable[..., State[Any]],
) -> tuple[Manifest, State[Any], list[Any]]:
    """Read one checkpoint: its manifest, the buffer, and the arrays of the extra tree."""
    found = manifest.read(folder, number)
    with as_damage(folder, number):
        given = config.arguments(found.config, item, sampler)
        shapes.check(found, jax.eval_shape(lambda: init(**given)))
        with progress.shown("fbuf.load", sum(file.length for file in found.files.values())):
            state, arrays = reader.fill(folder, found, make(**given))
    other_run.note(folder, tags.of(state.ring.cursor), saved=False)
    return found, state, arrays


@contextlib.contextmanager
def as_damage(folder: pathlib.Path, number: int) -> Generator[None]:
    """Turn the errors of an edited manifest into that of a damaged checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except _NOT_OURS as error:
        raise CheckpointError(
            f"fbuf.load: checkpoint {number} of {folder} is not what fbuf writes: {error!r}"
        ) from error
