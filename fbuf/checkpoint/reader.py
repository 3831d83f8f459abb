"""Reading a checkpoint: an empty buffer is filled chunk by chunk."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fbuf.checkpoint import extra, lineage, manifest, npy, row_ranges, tree_json
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest, Segment
from fbuf.checkpoint.row_ranges import Store
from fbuf.state import State
from fbuf.storage import tags
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import SumTree
from fbuf.xla.place import put_like


def fill(
    folder: pathlib.Path, found: Manifest, state: State[Any], *, rows: bool = True
) -> tuple[State[Any], list[Any]]:
    """Read everything into an empty buffer, and check every byte.

    Without `rows` the rows are left out, and their arrays may be shapes and dtypes.

    Returns:
        The buffer, and the arrays of the extra tree.
    """
    arrays = {store.name: list(store.arrays) for store in row_ranges.of_state(state)}
    layout = {
        store.name: dataclasses.replace(
            store, arrays=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in store.arrays)
        )
        for store in row_ranges.of_state(state)
    }
    values, beside = read_index(folder, found)
    _check_cursor(values[".ring.cursor"], found)
    # The arrays have another owner now, so the state that came with them may be dropped.
    state = _with_index(state, values)
    for store in layout.values():
        own = arrays[store.name]
        _cover(store, found)
        if store.name == "rows" and not rows:
            continue
        for segment in found.segments[store.name]:
            _read_rows(folder, found, store, segment, own)
    if found.written is not None and rows:
        _read_written(folder, found, layout["rows"], arrays["rows"])
    storage = dataclasses.replace(
        state.storage, words=arrays["rows"][0], wide=tuple(arrays["rows"][1:])
    )
    kept = state.next_obs
    if kept is not None:
        lanes = state.ring.lanes
        newest = [values[f".next_obs[1][{at}]"] for at in range(len(kept.rows.arrays))]
        ends = [
            row_ranges.put(array, field, np.arange(lanes), value, lanes)
            for array, field, value in zip(arrays["ends"], kept.rows.fields, newest, strict=True)
        ]
        own = dataclasses.replace(kept.rows, words=ends[0], wide=tuple(ends[1:]))
        kept = dataclasses.replace(kept, rows=own)
    return dataclasses.replace(state, storage=storage, next_obs=kept), beside


def _check_cursor(cursor: np.ndarray, found: Manifest) -> None:
    """Refuse a cursor of another buffer; clear the save id in formats before 3, which have none."""
    if tuple(map(int, cursor[2])) != found.live["rows"]:
        raise CheckpointError("fbuf.load: the manifest counts other rows than the buffer has")
    if found.save_id == lineage.NONE:
        cursor[3] = lineage.NONE
    elif lineage.of_cursor(cursor) != found.save_id:
        raise CheckpointError("fbuf.load: the manifest has another save id than the buffer")


def _cover(store: Store, found: Manifest) -> None:
    """Refuse a checkpoint whose files lack rows that still count."""
    total, live = found.totals[store.name], found.live[store.name]
    begin = [t - n for t, n in zip(total, live, strict=True)]
    for head in range(store.heads):
        at = begin[head]
        for segment in found.segments[store.name]:
            if segment.first[head] > at and segment.last[head] > segment.first[head]:
                break
            at = max(at, segment.last[head])
        if at != total[head] and live[head]:
            raise CheckpointError(
                f"fbuf.load: the manifest names no file for some of the {store.name}"
            )


def _with_index(state: State[Any], values: dict[str, np.ndarray]) -> State[Any]:
    """Return the buffer with all arrays except the stores."""

    def put(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        value = tags.renewed(values[name]) if name == lineage.CURSOR else values[name]
        return put_like(leaf, value)

    kept = state.next_obs
    own = dataclasses.replace(
        state,
        storage=None,  # pyright: ignore[reportArgumentType]  put back below
        next_obs=None if kept is None else (dataclasses.replace(kept, rows=None),),
    )
    own = jax.tree_util.tree_map_with_path(put, own)
    # Nodes of an older version included inactive values in the largest one.
    renewed = lambda tree: _RENEWED(tree) if _is_tree(tree) and tree.inactive else tree
    own = dataclasses.replace(own, index=jax.tree.map(renewed, own.index, is_leaf=_is_tree))
    if kept is not None:
        kept = dataclasses.replace(own.next_obs[0], rows=kept.rows)
    return dataclasses.replace(own, storage=state.storage, next_obs=kept)


def _is_tree(part: Any) -> bool:
    return isinstance(part, SumTree)


_RENEWED = jax.jit(sum_tree.renewed)


def read_index(
    folder: pathlib.Path, found: Manifest
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return all arrays of a buffer except its rows, by path; and the arrays of the extra tree."""
    specs = [tree_json.spec(data) for data in found.index.values()] + extra.specs(found.extra)
    name = manifest.index_file(found)
    arrays = []
    with npy.reading(folder, name, found.files[name]) as reader:
        for spec in specs:
            width = npy.row_bytes(spec.shape, np.dtype(spec.dtype))
            if width > found.files[name].length:
                raise CheckpointError(f"fbuf.load: {folder / name} is too short for what it holds")
            (chunk,) = reader.array(1, width, 1)
            # A copy, as an array that JAX takes over must be aligned for JAX.
            arrays.append(np.array(chunk).reshape(-1).view(spec.dtype).reshape(spec.shape))
    count = len(found.index)
    return dict(zip(found.index, arrays[:count], strict=True)), arrays[count:]


def _read_rows(
    folder: pathlib.Path, found: Manifest, store: Store, segment: Segment, own: list[Any]
) -> None:
    """Write the rows of a segment into the arrays; later segments overwrite them."""
    with npy.reading(folder, segment.file, found.files[segment.file]) as reader:
        _put(reader, store, own, sum(segment.counts), lambda: store.rows(segment.places))


def _read_written(folder: pathlib.Path, found: Manifest, store: Store, own: list[Any]) -> None:
    """Write the rows that `fbuf.write` had changed into the arrays."""
    assert found.written is not None
    name, count = found.written
    capacity = store.heads * store.head_places
    if count > capacity:
        raise CheckpointError(f"fbuf.load: {folder / name} has more rows than the buffer")
    with npy.reading(folder, name, found.files[name]) as reader:
        (data,) = reader.array(count, 8, count)
        rows = data.reshape(-1).view(np.int64)
        if not ((rows >= 0) & (rows < capacity)).all():
            raise CheckpointError(f"fbuf.load: {folder / name} names rows that are none")
        parts = lambda: (rows[at : at + store.step] for at in range(0, count, store.step))
        _put(reader, store, own, count, parts)


def _put(
    reader: npy.NpyReader,
    store: Store,
    own: list[Any],
    count: int,
    rows: Callable[[], Iterator[np.ndarray]],
) -> None:
    """Read `count` rows of all arrays of a store, and write them to the slots of `rows`."""
    for at, (field, width) in enumerate(zip(store.fields, store.widths, strict=True)):
        for slots, chunk in zip(rows(), reader.array(count, width, store.step), strict=True):
            new = np.array(chunk).reshape(-1).view(field.dtype)
            new = new.reshape(slots.size, *field.shape)
            own[at] = row_ranges.put(own[at], field, slots, new, store.step)
