"""The arrays of a buffer except its rows, by path, and a check of a manifest against them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fbuf.checkpoint import npy, row_ranges, tree_json
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest
from fbuf.state import State
from fbuf.storage import tags, wide_rows


def small(state: State[Any]) -> Any:
    """Return a buffer without its stores."""
    kept = state.next_obs
    if kept is not None:
        lanes = state.ring.lanes
        pairs = zip(kept.rows.fields, kept.rows.arrays, strict=True)
        newest = [wide_rows.read(field, array[:lanes]) for field, array in pairs]
        kept = (dataclasses.replace(kept, rows=None), newest)
    return dataclasses.replace(state, storage=None, next_obs=kept)


def without_tag(tree: Any) -> Any:
    """Return a buffer without its tag, which is not saved: each load makes a new tag."""
    ring = dataclasses.replace(tree.ring, cursor=tree.ring.cursor[: tags.ROW])
    return dataclasses.replace(tree, ring=ring)


def saved(state: State[Any]) -> Any:
    """Return the shapes of the saved arrays of a buffer, without its stores."""
    return jax.eval_shape(lambda state: without_tag(small(state)), state)


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def check(found: Manifest, like: State[Any]) -> None:
    """Refuse a manifest with contradictory numbers, before anything large is allocated.

    Args:
        found: The manifest.
        like: The buffer of its configuration, as shapes and dtypes.
    """
    shapes = by_path(saved(like))
    expected = {name: tree_json.array(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
    if expected != found.index:
        raise CheckpointError(
            "fbuf.load: the manifest describes other arrays than a buffer of its configuration "
            f"has: {sorted(set(map(str, expected.items())) ^ set(map(str, found.index.items())))}"
        )
    there = {store.name: store for store in row_ranges.of_state(like)}
    if there.keys() != found.segments.keys():
        raise CheckpointError("fbuf.load: the manifest describes other rows than the buffer has")
    for name, store in there.items():
        total, live = found.totals[name], found.live[name]
        of_heads = [total, live]
        for segment in found.segments[name]:
            of_heads += [segment.first, segment.last]
            if any(a > b for a, b in zip(segment.first, segment.last, strict=False)):
                raise CheckpointError(f"fbuf.load: {segment.file} ends before it begins")
            count = sum(segment.counts)
            if count > store.heads * store.head_places:
                raise CheckpointError(f"fbuf.load: {segment.file} has more rows than the buffer")
            if found.files[segment.file].length != npy.nbytes(count, store.widths):
                raise CheckpointError(f"fbuf.load: {segment.file} has rows of another size")
        if any(len(counts) != store.heads for counts in of_heads):
            raise CheckpointError(f"fbuf.load: the manifest has another number of heads: {name}")
        if any(n > min(store.head_places, t) for n, t in zip(live, total, strict=True)):
            raise CheckpointError("fbuf.load: the manifest has more rows than the buffer holds")
