"""The index of starts by group: a bit tree for each group, one behind the other.

The trees are the parts of one tree, so that one rank finds a start of a group. A start without a
group has its bit in a last part, which no draw reads: the row may get a group later.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.samplers.index import starts
from fbuf.samplers.index.start_index import around
from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.trees.bit_tree import BitTree
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.filled import filled, zeros
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import once, tie

_SMALL = 255
"""The most groups that fit a uint8, including the one for rows without a group."""


@pytree
class GroupIndex:
    """The groups of rows, and their starts.

    Attributes:
        groups: uint8 or int32 `[N]`; the group of each row; the number of groups for a row without
            one.
        bits: Whether the row of a slot is a start, for each slot of each group.
        counts: int32 `[G + 1]`; the number of starts of each group, and of those without a group.
    """

    groups: jax.Array
    bits: BitTree
    counts: jax.Array


def empty(ring: Ring, number: int) -> GroupIndex:
    """Return an index without starts, for `number` groups."""
    dtype = np.uint8 if number < _SMALL else np.int32
    return GroupIndex(
        filled(ring.capacity, number, dtype),
        bit_tree.empty((number + 1) * ring.capacity),
        zeros(number + 1, np.int32),
    )


def add(index: GroupIndex, ring: Ring, span: Span, groups: jax.Array, window: Window) -> GroupIndex:
    """Index the new starts, and drop the overwritten ones; int32 `[B]` groups of the new rows."""
    written = ring.clamp(span.slots)
    before = once(read_rows(index.groups, written)).astype(jnp.int32)
    gone = _places(ring, before, written)
    evicted = once(bit_tree.read(index.bits, gone) & (span.slots < ring.capacity))
    # The bits depend on all earlier reads of groups, also those of a row that was retired.
    slots = tie(span.slots, before, evicted)
    stored = write_rows(index.groups, slots, _stored(index, groups).astype(index.groups.dtype))
    begin, is_start = starts.completed(ring, span, window)
    of_start = read_rows(stored, begin).astype(jnp.int32)
    new = _places(ring, of_start, begin)
    place, group = jnp.concatenate([gone, new]), jnp.concatenate([before, of_start])
    by = jnp.concatenate([-evicted.astype(jnp.int32), is_start.astype(jnp.int32)])
    return _changed(index, stored, tie(place, evicted), group, by)


def move(index: GroupIndex, ring: Ring, slots: jax.Array, groups: jax.Array) -> GroupIndex:
    """Give rows other groups: int32 `[B]` distinct slots; `capacity` marks an unused entry."""
    inside, named = ring.clamp(slots), slots < ring.capacity
    before = read_rows(index.groups, inside).astype(jnp.int32)
    old, after = _places(ring, before, inside), _stored(index, groups)
    is_start = bit_tree.read(index.bits, old) & named
    stored = write_rows(
        index.groups, tie(slots, before, is_start), after.astype(index.groups.dtype)
    )
    place = jnp.concatenate([old, _places(ring, after, inside)])
    by = jnp.concatenate([-is_start.astype(jnp.int32), is_start.astype(jnp.int32)])
    return _changed(index, stored, tie(place, is_start), jnp.concatenate([before, after]), by)


def remove(index: GroupIndex, ring: Ring, slots: jax.Array, window: Window) -> GroupIndex:
    """Take out the starts of all windows with these rows."""
    found = starts.containing(ring, slots, window)
    return retire(index, ring, jnp.where(last_of_each(found), found, ring.capacity))


def retire(index: GroupIndex, ring: Ring, slots: jax.Array) -> GroupIndex:
    """Take out starts, not rows: int32 `[B]` distinct slots; `capacity` marks an unused entry."""
    inside = ring.clamp(slots)
    group = read_rows(index.groups, inside).astype(jnp.int32)
    place = _places(ring, group, inside)
    lost = bit_tree.read(index.bits, place) & (slots < ring.capacity)
    return _changed(index, index.groups, tie(place, lost), group, -lost.astype(jnp.int32))


def select(index: GroupIndex, ring: Ring, groups: jax.Array, ranks: jax.Array) -> jax.Array:
    """Find starts by rank in their groups: int32 `[B]` slots, in range for a rank too high."""
    before = jnp.cumsum(index.counts, dtype=jnp.int32) - index.counts
    place = bit_tree.select(index.bits, before[groups] + ranks)
    return jnp.clip(place - groups * ring.capacity, 0, ring.capacity - 1)


def select_oldest(index: GroupIndex, ring: Ring, groups: jax.Array, ranks: jax.Array) -> jax.Array:
    """Find starts as `select` does, the oldest first; with a head for each lane, by slots."""
    if ring.heads > 1:
        return select(index, ring, groups, ranks)
    edges = _places(ring, groups[:1], jnp.stack([jnp.int32(0), ring.head[0]]))
    before = bit_tree.rank(index.bits, edges)
    older = before[1] - before[0]
    return select(index, ring, groups, around(older, ranks, index.counts[groups]))


def group_of(index: GroupIndex, slots: jax.Array) -> jax.Array:
    """Return the groups of slots in range: int32 `[B]`, the number of groups for no group."""
    return read_rows(index.groups, slots).astype(jnp.int32)


def is_start(index: GroupIndex, ring: Ring, slots: jax.Array) -> jax.Array:
    """Return whether slots are starts, whatever their group: bool `[B]`."""
    return bit_tree.read(index.bits, _places(ring, group_of(index, slots), slots))


def _stored(index: GroupIndex, groups: jax.Array) -> jax.Array:
    """Return groups as they are stored; a number out of range becomes "no group"."""
    number = index.counts.shape[0] - 1
    return jnp.where((groups >= 0) & (groups < number), groups, number).astype(jnp.int32)


def _places(ring: Ring, groups: jax.Array, slots: jax.Array) -> jax.Array:
    """Return the places of slots in the parts of the tree: int32 `[B]`."""
    return groups * ring.capacity + slots


def _changed(
    index: GroupIndex, stored: jax.Array, places: jax.Array, groups: jax.Array, by: jax.Array
) -> GroupIndex:
    """Return the index with bits set (1) or cleared (-1) at places of groups."""
    bits = bit_tree.change(index.bits, places, by)
    counts = index.counts.at[groups].add(by, mode="promise_in_bounds")
    return GroupIndex(stored, bits, counts)
