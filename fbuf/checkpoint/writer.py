"""Writing a checkpoint: first the copies, then the slow work."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import (
    compact,
    config,
    deletable,
    files,
    free_space,
    incremental,
    lineage,
    manifest,
    npy,
    other_run,
    progress,
    row_ranges,
    shapes,
    tree_json,
)
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.files import UNFINISHED, RowBlock
from fbuf.checkpoint.incremental import Places
from fbuf.checkpoint.manifest import Manifest, Segment
from fbuf.checkpoint.row_ranges import Store
from fbuf.checkpoint.tree_json import Data
from fbuf.state import State
from fbuf.storage import tags

SHARD = "shard-00000"
"""The directory for the files of a buffer without shards."""


@dataclasses.dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint, ready to write.

    Attributes:
        number: The number of the manifest.
        manifest: The manifest, without the files that are not yet written.
        files: The contents of these files, by name.
        widths: The bytes of a row of each array, by store.
        like: The shapes and dtypes of the buffer that a load makes.
        base: The ancestor checkpoint; None if all rows are written.
        rewrites: Whether all rows are written again, after earlier saves of this process.
        forgets: Whether the buffer has no ancestor, and fewer rows than the newest checkpoint.
    """

    number: int
    manifest: Manifest
    files: dict[str, list[RowBlock]]
    widths: dict[str, list[int]]
    like: State[Any]
    base: Manifest | None
    rewrites: bool
    forgets: bool

    @property
    def nbytes(self) -> int:
        """The number of bytes to write."""
        return sum(block.rows * block.width for blocks in self.files.values() for block in blocks)


class _NewFiles:
    """The contents of files to write, by name."""

    def __init__(self, number: int, now: bool) -> None:
        self.contents: dict[str, list[RowBlock]] = {}
        self._number, self._now = number, now

    def add(self, kind: str, blocks: list[RowBlock]) -> str:
        """Add a file, and return its name."""
        name = f"{SHARD}/{kind}-{self._number:08}.npy"
        self.contents[name] = _read_now(blocks) if self._now else blocks
        return name


def prepare(
    folder: pathlib.Path,
    state: State[Any],
    beside: tuple[Data, list[np.ndarray]],
    like: State[Any],
    *,
    now: bool,
    alone: bool,
    version: str,
) -> PendingCheckpoint:
    """Find the new data of a checkpoint, and copy it.

    Args:
        folder: The directory, which is there.
        state: The buffer.
        beside: The result of `fbuf.checkpoint.extra.split`.
        like: The shapes and dtypes of the buffer that a load makes, see `fbuf.ops.remade`.
        now: Copy all rows before this returns. Otherwise they are read during the writes.
        alone: Whether the buffer is whole, and not a shard of one over a mesh.
        version: The version of fbuf.

    Raises:
        CheckpointError: If the newest checkpoint is of another buffer, or cannot be replaced.
    """
    numbers, number = manifest.numbers(folder), manifest.next_number(folder)
    described = config.described(state)
    newest = _newest(folder, numbers, described["item"])
    carried, tag = lineage.of_state(state), tags.of(state.ring.cursor)
    base = incremental.find_base(folder, numbers, carried, described)
    save_id = lineage.new_id(carried)
    index = jax.device_get(shapes.by_path(_copied(shapes.small(state))))
    index[lineage.CURSOR] = lineage.named(index[lineage.CURSOR], save_id)
    places, stores = incremental.places(state, index, base), row_ranges.of_state(state)
    if newest is not None:
        own = other_run.Buffer(
            carried,
            tag,
            described,
            stores[0],
            places[stores[0].name],
            index[".ring.flags"],
            alone=alone,
        )
        other_run.require_none(folder, numbers, newest, own)
    other_run.note(folder, tag, saved=True)
    new_files = _NewFiles(number, now)
    segments = {of.name: _segments(of, places[of.name], base, new_files) for of in stores}
    written = _written_rows(index[".ring.flags"], stores[0], places[stores[0].name], new_files)
    extra, arrays = beside
    new_files.add("index", [_whole(array) for array in [*index.values(), *arrays]])
    retained = {of.file for kept in segments.values() for of in kept} - new_files.contents.keys()
    return PendingCheckpoint(
        number=number,
        manifest=Manifest(
            save_id=save_id,
            config=described,
            index={name: tree_json.array(a.shape, a.dtype) for name, a in index.items()},
            extra=extra,
            segments=segments,
            totals={name: at.total for name, at in places.items()},
            live={name: at.live for name, at in places.items()},
            written=written,
            files={name: base.files[name] for name in retained} if base else {},
            about=about(version),
        ),
        files=new_files.contents,
        widths={store.name: store.widths for store in stores},
        like=like,
        base=base,
        rewrites=base is None and newest is not None and _is_wasteful(newest, described),
        forgets=carried == lineage.NONE
        and newest is not None
        and sum(newest.live["rows"]) > sum(places["rows"].live),
    )


def about(version: str) -> dict[str, str]:
    """Return the version of fbuf and the time, for a manifest."""
    now = datetime.datetime.now(datetime.UTC)
    return {"fbuf": version, "time": now.isoformat(timespec="seconds")}


def _is_wasteful(newest: Manifest, described: Data) -> bool:
    """Return whether this process has saved rows of a buffer with the same arguments."""
    rows = any(newest.live["rows"])
    return rows and newest.config == described and lineage.is_given(newest.save_id)


def _segments(
    store: Store, places: Places, base: Manifest | None, new_files: _NewFiles
) -> tuple[Segment, ...]:
    """Return the files of a store: those with rows that still count, and one with new rows."""
    kept = [
        segment
        for segment in (base.segments[store.name] if base else ())
        if row_ranges.size(row_ranges.newer(segment.places, places.all[0]))
    ]
    if row_ranges.size(places.new):
        blocks = _rows(store, lambda: store.rows(places.new), row_ranges.size(places.new))
        kept.append(Segment(new_files.add(store.name, blocks), *places.new))
    return tuple(kept)


def _written_rows(
    flags: np.ndarray, store: Store, places: Places, new_files: _NewFiles
) -> tuple[str, int] | None:
    """Return the file of older rows that `fbuf.write` has changed, and their number."""
    changed = incremental.changed_rows(flags, store, places)
    if not changed.size:
        return None
    parts = lambda: (changed[at : at + store.step] for at in range(0, changed.size, store.step))
    blocks = [RowBlock(changed.size, 8, [changed]), *_rows(store, parts, changed.size)]
    return new_files.add("written", blocks), int(changed.size)


def _rows(store: Store, rows: Callable[[], Iterator[np.ndarray]], count: int) -> list[RowBlock]:
    """Return some rows of all arrays of a store."""
    return [
        RowBlock(count, width, row_ranges.copied(array, field, rows(), store.step))
        for array, field, width in zip(store.arrays, store.fields, store.widths, strict=True)
    ]


def _read_now(blocks: list[RowBlock]) -> list[RowBlock]:
    """Read blocks into host memory."""

    def chunks(block: RowBlock) -> Iterator[np.ndarray]:
        for chunk in block.chunks:
            yield chunk
            progress.moved(chunk.nbytes)

    with progress.shown("fbuf.save: copying rows", sum(b.rows * b.width for b in blocks)):
        return [dataclasses.replace(block, chunks=list(chunks(block))) for block in blocks]


def _newest(folder: pathlib.Path, numbers: list[int], item: Data) -> Manifest | None:
    """Return the newest checkpoint; None without one, or if it is damaged.

    Raises:
        CheckpointError: If a newer fbuf has written it, or if it has other items.
    """
    if not numbers:
        return None
    try:
        newest = manifest.read(folder, numbers[-1])
    except Mismatch as error:
        raise CheckpointError(
            str(error).replace("fbuf.load", "fbuf.save", 1) + ", or save to another directory"
        ) from None
    except CheckpointError:
        return None
    if newest.config["item"] != item and not config.is_unknown(newest.config["item"]):
        raise CheckpointError(
            f"fbuf.save: {folder} has checkpoints of items "
            f"{tree_json.words(newest.config['item'])}, and those of this buffer are "
            f"{tree_json.words(item)}; save to another directory"
        )
    return newest


def commit(folder: pathlib.Path, pending: PendingCheckpoint, keep: int | None) -> None:
    """Write a checkpoint, and delete older ones with the files that no other one needs.

    `keep` is the number of checkpoints to keep; None deletes none.
    """
    with free_space.explained("fbuf.save", folder, pending.nbytes):
        _write(folder, pending)
    deletable.note(folder, [manifest.head(folder, pending.number)])
    if keep is not None:
        clean(folder, keep)
        deletable.forget_but(folder, manifest.heads(folder).values())


def _write(folder: pathlib.Path, pending: PendingCheckpoint) -> None:
    """Write the files of a checkpoint, and its manifest last; no file is left if that fails."""
    files.make_folder(folder / SHARD)
    files.delete(folder, {name for name in manifest.ours(folder) if name.endswith(UNFINISHED)})
    try:
        whole = _write_files(folder, pending)
        _require_readable(folder, whole, pending.like)
        manifest.write(folder, pending.number, whole)
    except BaseException as error:
        if isinstance(error, CheckpointError) and pending.base is not None:
            lineage.distrust(pending.base.save_id)  # the next save writes all rows
        if pending.number in manifest.numbers(folder):  # which names the files
            deletable.note(folder, [manifest.head(folder, pending.number)])
        else:
            own = f"-{pending.number:08}.npy"
            files.delete(folder, {name for name in manifest.ours(folder) if name.endswith(own)})
        raise


def _require_readable(folder: pathlib.Path, whole: Manifest, like: State[Any]) -> None:
    """Refuse a checkpoint that a load would refuse, before it is written."""
    try:
        manifest.check_files(folder, whole)
        shapes.check(whole, like)
    except CheckpointError as error:
        raise CheckpointError(
            f"fbuf.save: no load could read what was to be saved to {folder}, so the checkpoint "
            f"before it stays the newest: {str(error).removeprefix('fbuf.load: ')}"
        ) from error


def _write_files(folder: pathlib.Path, pending: PendingCheckpoint) -> Manifest:
    """Write all files of a checkpoint except the manifest, and return the manifest."""
    whole = _with_files(folder, pending.manifest, pending.files)
    for store, widths in pending.widths.items():
        name = f"{SHARD}/joined-{store}-{pending.number:08}.npy"
        found = compact.compaction(folder, name, store, whole, widths)
        if found is not None:
            kept = whole.segments[store]
            at = kept.index(found.old[0])
            segments = (*kept[:at], found.new, *kept[at + len(found.old) :])
            whole = _with_files(folder, whole, {name: found.blocks})
            gone = {segment.file for segment in found.old}
            whole = dataclasses.replace(
                whole,
                segments={**whole.segments, store: segments},
                files={name: file for name, file in whole.files.items() if name not in gone},
            )
    return whole


def _with_files(
    folder: pathlib.Path, found: Manifest, contents: dict[str, list[RowBlock]]
) -> Manifest:
    """Write files, and return the manifest with them."""
    put = {name: functools.partial(npy.put, blocks=blocks) for name, blocks in contents.items()}
    return dataclasses.replace(found, files={**found.files, **files.write(folder, put)})


def clean(folder: pathlib.Path, keep: int) -> None:
    """Delete all but the newest whole checkpoints, and the files that these do not need.

    Manifests are deleted first, also on the disk, so that no manifest names a missing file.
    """
    kept, needed = set[int](), set[str]()
    for number in reversed(manifest.numbers(folder)):
        if len(kept) == keep:
            break
        try:
            needed |= manifest.used(manifest.read(folder, number))
        except Mismatch:
            raise  # a newer fbuf wrote it: its files are unknown
        except CheckpointError:
            if not kept:
                raise  # the new one
            continue
        kept.add(number)
    _delete_but(folder, kept, needed)


def clean_but(folder: pathlib.Path, kept: set[int]) -> None:
    """Delete all checkpoints but some, and the files that these do not need."""
    there = kept & set(manifest.numbers(folder))
    _delete_but(
        folder,
        there,
        set().union(*(manifest.used(manifest.read(folder, number)) for number in there)),
    )


def _delete_but(folder: pathlib.Path, kept: set[int], needed: set[str]) -> None:
    old = set(manifest.numbers(folder)) - kept
    if old:
        files.delete(folder, set(map(manifest.name_of, old)))
        files.sync(folder)
    files.delete(folder, manifest.ours(folder) - needed)


def _whole(array: np.ndarray) -> RowBlock:
    """Return an array as one row."""
    return RowBlock(1, array.nbytes, [array])


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, shapes.without_tag(tree))
