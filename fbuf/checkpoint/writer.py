"""Writing a checkpoint: first what must be copied, then all that takes long."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import pathlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import (
    compact,
    config,
    files,
    free_space,
    incremental,
    manifest,
    npy,
    progress,
    row_ranges,
    tree_json,
)
from fbuf.checkpoint.errors import CheckpointError, Mismatch
from fbuf.checkpoint.files import UNFINISHED, Block
from fbuf.checkpoint.incremental import Saved
from fbuf.checkpoint.manifest import Manifest, Segment
from fbuf.checkpoint.tree_json import Data
from fbuf.state import State

SHARD = "shard-00000"
"""Where the files of a buffer lie that is not sharded."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A checkpoint that is ready to be written.

    Attributes:
        number: That of its manifest.
        manifest: The manifest, but for the files that are still to be written.
        files: What these will hold, by name.
        widths: The bytes of a row of each array, by the store.
        mark: What the buffer is to be marked with.
        saved: What there is to remember, but for the manifest.
        before: The checkpoint that the buffer goes on from; None if all is written.
    """

    number: int
    manifest: Manifest
    files: dict[str, list[Block]]
    widths: dict[str, list[int]]
    mark: int
    saved: Callable[[Manifest], Saved]
    before: Saved | None

    @property
    def nbytes(self) -> int:
        """How much is to be written."""
        return sum(block.rows * block.width for blocks in self.files.values() for block in blocks)


def prepare(
    folder: pathlib.Path,
    state: State[Any],
    beside: tuple[Data, list[np.ndarray]],
    *,
    now: bool,
    version: str,
) -> Prepared:
    """Look at a buffer, and copy what is to be written.

    Args:
        folder: The directory, which is there.
        state: The buffer.
        beside: What `fbuf.checkpoint.extra` has made of what is saved beside it.
        now: Copy all rows before this returns. Else they are read while the files are written.
        version: That of fbuf.
    """
    known = manifest.numbers(folder)
    if known:
        _check_newest(folder, known[-1], state)
    number, mark = known[-1] + 1 if known else 1, secrets.randbelow(2**31 - 1) + 1
    description, arrays = beside
    looked, before, hashes = incremental.look(state), incremental.last(folder), None
    if before is not None and not (
        _is_there(folder, known, before) and before.manifest.config == config.described(state)
    ):
        before = None
    if before is None or not incremental.has_mark(looked, before):
        hashes = incremental.hashes(state)
        if before is not None and not incremental.goes_on(state, looked, hashes, before):
            before = None
    incremental.passed_on(looked, mark, None if before is None else folder)
    found, written = incremental.places(state, looked, before)
    contents: dict[str, list[Block]] = {}

    def file(kind: str, blocks: list[Block]) -> str:
        name = f"{SHARD}/{kind}-{number:08}.npy"
        if now:
            blocks = _read_now(blocks)
        contents[name] = blocks
        return name

    segments: dict[str, tuple[Segment, ...]] = {}
    for store in row_ranges.of_state(state):
        at = found[store.name]
        kept = list(before.manifest.segments[store.name]) if before else []
        kept = [
            of
            for of in kept
            if row_ranges.size(row_ranges.newer(row_ranges.of_segment(of), at.all[0]))
        ]
        count = row_ranges.size(at.new)
        if count:
            blocks = [
                Block(count, width, row_ranges.copied(array, store.rows(at.new), store.step))
                for array, width in zip(store.arrays, store.widths, strict=True)
            ]
            kept.append(Segment(file(store.name, blocks), *at.new))
        segments[store.name] = tuple(kept)
    rows = row_ranges.of_state(state)[0]
    changed = None
    if written.size:
        some = lambda: (written[at : at + rows.step] for at in range(0, written.size, rows.step))
        blocks = [Block(written.size, 8, [written])]
        blocks += [
            Block(written.size, width, row_ranges.copied(array, some(), rows.step))
            for array, width in zip(rows.arrays, rows.widths, strict=True)
        ]
        changed = (file("written", blocks), int(written.size))
    index = {name: np.asarray(leaf) for name, leaf in _index(state).items()}
    file("index", [_whole(array) for array in [*index.values(), *arrays]])
    retained = {of.file for kept in segments.values() for of in kept} - contents.keys()
    return Prepared(
        number,
        Manifest(
            config=config.described(state),
            index={
                name: tree_json.array(array.shape, array.dtype) for name, array in index.items()
            },
            extra=description,
            segments=segments,
            totals={name: at.total for name, at in found.items()},
            live={name: at.live for name, at in found.items()},
            written=changed,
            files={name: before.manifest.files[name] for name in retained} if before else {},
            about={
                "fbuf": version,
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            },
        ),
        contents,
        {store.name: store.widths for store in row_ranges.of_state(state)},
        mark,
        lambda written: Saved(number, written, (mark,), looked, hashes),
        before,
    )


def _read_now(blocks: list[Block]) -> list[Block]:
    """Blocks of which all is in the host's memory."""

    def chunks(block: Block) -> Iterator[np.ndarray]:
        for chunk in block.chunks:
            yield chunk
            progress.moved(chunk.nbytes)

    with progress.shown("fbuf.save: copying rows", sum(b.rows * b.width for b in blocks)):
        return [dataclasses.replace(block, chunks=list(chunks(block))) for block in blocks]


def _check_newest(folder: pathlib.Path, number: int, state: State[Any]) -> None:
    """Refuse to write over what a newer fbuf has written, or over buffers of other items."""
    try:
        found = manifest.read(folder, number)
    except Mismatch as error:
        raise CheckpointError(
            str(error).replace("fbuf.load", "fbuf.save", 1) + ", or save to another directory"
        ) from None
    except CheckpointError:
        return
    own = config.described(state)["item"]
    if found.config["item"] != own:
        raise CheckpointError(
            f"fbuf.save: {folder} has checkpoints of items "
            f"{tree_json.words(found.config['item'])}, and those of this buffer are "
            f"{tree_json.words(own)}; save to another directory"
        )


def _is_there(folder: pathlib.Path, known: list[int], before: Saved) -> bool:
    """Whether the newest checkpoint of a directory is the one that is known, with its files."""
    if not known or before.number != known[-1]:
        return False
    try:
        return manifest.read(folder, before.number) == before.manifest
    except (CheckpointError, OSError):
        return False


def commit(folder: pathlib.Path, prepared: Prepared, keep: int | None) -> None:
    """Write the files of a checkpoint, and its manifest last; then delete what nobody needs.

    `keep` is how many checkpoints to keep; None deletes none.
    """
    with free_space.explained("fbuf.save", folder, prepared.nbytes):
        whole = _committed(folder, prepared)
    incremental.remember(folder, prepared.saved(whole))
    incremental.saw(folder, _head(folder, prepared))
    if keep is not None:
        clean(folder, keep)
        incremental.forget_but(folder, manifest.heads(folder).values())


def _committed(folder: pathlib.Path, prepared: Prepared) -> Manifest:
    """Write the files of a checkpoint, and its manifest last; nothing is left if that fails."""
    files.make_folder(folder / SHARD)
    files.delete(folder, {name for name in manifest.ours(folder) if name.endswith(UNFINISHED)})
    try:
        whole = _written(folder, prepared)
        manifest.write(folder, prepared.number, whole)
    except BaseException as error:
        if isinstance(error, CheckpointError):  # of an older file; then all is written next time
            incremental.remember(folder, None)
        if prepared.number in manifest.numbers(folder):  # which names the files
            incremental.saw(folder, _head(folder, prepared))
        else:
            files.delete(folder, {name for name in manifest.ours(folder) if _is_of(name, prepared)})
        raise
    return whole


def _head(folder: pathlib.Path, prepared: Prepared) -> list[bytes]:
    return [manifest.head(folder / manifest.name_of(prepared.number))]


def _is_of(name: str, prepared: Prepared) -> bool:
    return name.endswith(f"-{prepared.number:08}.npy")


def _written(folder: pathlib.Path, prepared: Prepared) -> Manifest:
    """Write all files of a checkpoint but the manifest, and return what that is to say."""
    whole = _with_files(folder, prepared.manifest, prepared.files)
    for store, widths in prepared.widths.items():
        name = f"{SHARD}/joined-{store}-{prepared.number:08}.npy"
        found = compact.joined(folder, name, store, whole, widths)
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
    folder: pathlib.Path, found: Manifest, contents: dict[str, list[Block]]
) -> Manifest:
    """Write files, and take note of them."""
    put = {name: functools.partial(npy.put, blocks=blocks) for name, blocks in contents.items()}
    return dataclasses.replace(found, files={**found.files, **files.write(folder, put)})


def clean(folder: pathlib.Path, keep: int) -> None:
    """Delete all but the newest checkpoints that are whole, and what these do not need.

    Manifests go first, and for good, so that none is left that names a file which is gone.
    """
    known, kept, needed = manifest.numbers(folder), list[int](), set[str]()
    for number in reversed(known):
        if len(kept) == keep:
            break
        try:
            needed |= manifest.used(manifest.read(folder, number))
        except Mismatch:
            raise  # of a newer fbuf: what it needs is not known
        except CheckpointError:
            if not kept:
                raise  # the one that was just written
            continue
        kept.append(number)
    _delete_but(folder, set(kept), needed)


def clean_but(folder: pathlib.Path, kept: set[int]) -> None:
    """Delete all checkpoints but some, and what these do not need."""
    there = kept & set(manifest.numbers(folder))
    needed: set[str] = set()
    for number in there:
        needed |= manifest.used(manifest.read(folder, number))
    _delete_but(folder, there, needed)


def _delete_but(folder: pathlib.Path, kept: set[int], needed: set[str]) -> None:
    old = set(manifest.numbers(folder)) - kept
    if old:
        files.delete(folder, set(map(manifest.name_of, old)))
        files.sync(folder)
    files.delete(folder, manifest.ours(folder) - needed)


def _whole(array: np.ndarray) -> Block:
    """An array as one row."""
    return Block(1, array.nbytes, [array])


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def small(state: State[Any]) -> Any:
    """A buffer without its stores."""
    kept = state.next_obs
    if kept is not None:
        lanes = state.ring.lanes
        arrays = (kept.rows.words, *kept.rows.wide)
        kept = (dataclasses.replace(kept, rows=None), [array[:lanes] for array in arrays])
    return dataclasses.replace(state, storage=None, next_obs=kept)


def _index(state: State[Any]) -> dict[str, Any]:
    """Copies of all arrays but the stores, by their path."""
    return by_path(_copied(small(state)))


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
