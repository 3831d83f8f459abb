"""The index of starts, kept as rows are written and removed, to draw a start by its rank."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf._pytree import pytree
from fbuf.samplers.chance import random_bits, shards
from fbuf.samplers.index import starts
from fbuf.samplers.index.starts import int32_sum
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import Plan
from fbuf.samplers.protocol.sampler import Ask
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.trees.bit_tree import BitTree
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.filled import zeros
from fbuf.xla.platform import by_platform
from fbuf.xla.tie import once, tie


@pytree
class StartIndex:
    """The starts, a bit for each slot, and their number.

    Attributes:
        bits: The bits; None where every slot that holds a row is a start.
        total: int32 scalar; None where every row is a start: then the ring has the number.
    """

    by_lane: ClassVar[bool] = False

    bits: BitTree | None
    total: jax.Array | None

    @property
    def tree(self) -> BitTree:
        """The tree of bits; the index must have one."""
        if self.bits is None:
            raise ValueError(
                "fbuf: a sampler takes rows out, and this buffer was made with removable=False; "
                "make it with fbuf.init(..., removable=True)"
            )
        return self.bits


@pytree
class StartIndexByLane(StartIndex):
    """An index with the bits of a lane side by side, in place of those of a step."""

    by_lane: ClassVar[bool] = True


@pytree
class Change:
    """The changes of starts by an add; all `[B]`, one for each written row.

    Attributes:
        evicted: bool; the row has overwritten a start.
        slots: int32; the slot of the first row of the window that ends with this row, in range.
        is_start: bool; that slot has become a start.
    """

    evicted: jax.Array
    slots: jax.Array
    is_start: jax.Array


def empty(ring: Ring, window: Window) -> StartIndex:
    """Return an index without starts."""
    if not window.every_row:
        return StartIndex(bit_tree.empty(ring.capacity), zeros((), np.int32))
    # Under one head the rows lie in the first slots. Where no row is removed, all are starts.
    none_missing = ring.heads == 1 and ring.removed is None
    return StartIndex(None if none_missing else bit_tree.empty(ring.capacity), None)


def place(index: StartIndex, slots: jax.Array, lanes: int) -> jax.Array:
    """Return the places of the bits of slots in range, in a buffer of this many lanes."""
    if not index.by_lane:
        return slots
    step = slots // lanes
    return (slots - step * lanes) * (index.tree.capacity // lanes) + step


def add(index: StartIndex, ring: Ring, span: Span, window: Window) -> tuple[StartIndex, Change]:
    """Index the new starts, and drop the overwritten ones."""
    written = ring.clamp(span.slots)
    if index.bits is None:
        return index, Change(span.evicted, written, span.drawable)
    if index.total is None:
        # A bit is set for every stored row that has not been removed. So no bit has to be read.
        by = span.drawable.astype(jnp.int32) - span.evicted.astype(jnp.int32)
        bits = bit_tree.change(index.bits, written, by)
        return StartIndex(bits, None), Change(span.evicted, written, span.drawable)
    written = place(index, written, ring.lanes)
    evicted = once(bit_tree.read(index.bits, written) & (span.slots < ring.capacity))
    gone = evicted.astype(jnp.int32)
    slots, is_start = starts.completed(ring, span, window)
    # The total is known once all earlier reads of the bits are done.
    written = tie(written, index.total)
    new = is_start.astype(jnp.int32)
    where = jnp.concatenate([written, place(index, slots, ring.lanes)])
    bits = bit_tree.change(index.bits, where, jnp.concatenate([-gone, new]))
    total = index.total + int32_sum(new) - int32_sum(gone)
    made = dataclasses.replace(index, bits=bits, total=total)
    return made, Change(evicted, slots, is_start)


def remove(
    index: StartIndex, ring: Ring, slots: jax.Array, window: Window
) -> tuple[StartIndex, jax.Array]:
    """Take out the starts of all windows with these rows.

    Returns:
        The index, and the distinct lost starts; `capacity` marks an unused entry.
    """
    found = slots
    if window.length > 1:
        found = starts.containing(ring, slots, window)
        found = jnp.where(last_of_each(found), found, ring.capacity)
    inside = place(index, ring.clamp(found), ring.lanes)
    lost = bit_tree.read(index.tree, inside) & (found < ring.capacity)
    change = -lost.astype(jnp.int32)
    bits = bit_tree.change(index.tree, inside, change)
    total = None if index.total is None else index.total + int32_sum(change)
    made = dataclasses.replace(index, bits=bits, total=total)
    return made, jnp.where(lost, found, ring.capacity)


def retire(index: StartIndex, ring: Ring, slots: jax.Array) -> StartIndex:
    """Take out starts, not rows: int32 `[B]` distinct slots; `capacity` marks an unused entry."""
    inside = place(index, ring.clamp(slots), ring.lanes)
    lost = bit_tree.read(index.tree, inside) & (slots < ring.capacity)
    change = -lost.astype(jnp.int32)
    bits = bit_tree.change(index.tree, tie(inside, lost), change)
    total = None if index.total is None else index.total + int32_sum(change)
    return dataclasses.replace(index, bits=bits, total=total)


def total(index: StartIndex, ring: Ring) -> jax.Array:
    """Count the starts. int32 scalar."""
    return ring.live() if index.total is None else index.total


def is_start(index: StartIndex, ring: Ring, slots: jax.Array) -> jax.Array:
    """Return whether slots are starts, each slot in range: bool `[B]`."""
    if index.bits is None:
        return ring.holds(slots)
    return bit_tree.read(index.bits, place(index, slots, ring.lanes))


def rank(index: StartIndex, slots: jax.Array) -> jax.Array:
    """Count the starts before each slot: int32 `[B]`. No slot may lie behind the last row."""
    return slots if index.bits is None else bit_tree.rank(index.bits, slots)


@pytree
class StartPicks:
    """Draws of starts in one shard: their ranks, and random bits `[2, B]` if a slot is drawn first.

    A slot is drawn first, and if the slot is no start, a start by its rank: either way all starts
    are equally likely. As a rule most slots are starts, so most draws end with the first read, of a
    single word. A walk down the tree reads one word a level. Where all slots are starts, the rank
    is the slot.
    """

    ranks: jax.Array
    bits: jax.Array | None


def plan(index: StartIndex, ring: Ring, counts: jax.Array, ask: Ask) -> Plan:
    """Draw starts of all shards, all equally likely; `[S]` int32 counts are those of the shards."""
    bits = None
    if _all_at_first(index, ring):
        words = random_bits.bits(ask.key, (2, ask.batch_size))
    else:
        bits, words = random_bits.bits(ask.key, (2, 2, ask.batch_size))
    shard, ranks = shards.by_count(counts, ask.key, words)
    return Plan(shard, StartPicks(ranks, bits))


def pick(index: StartIndex, ring: Ring, picks: StartPicks) -> jax.Array:
    """Return the drawn slots: int32 `[B]`, any slot in range if the index has no start."""
    if picks.bits is None:
        return select(index, ring, picks.ranks)
    slots = random_bits.below(picks.bits, ring.filled())
    return bit_tree.select_unless(index.tree, slots, picks.ranks)


def select(index: StartIndex, ring: Ring, ranks: jax.Array) -> jax.Array:
    """Find the starts of given ranks: int32 `[B]` slots, any slot in range for a rank too high."""
    if index.bits is None:
        return ranks
    if not _all_at_first(index, ring):
        return bit_tree.select(index.bits, ranks)

    @jax.custom_batching.custom_vmap
    def unless_all(bits: BitTree, removed: jax.Array, ranks: jax.Array) -> jax.Array:
        return lax.cond(removed == 0, lambda: ranks, lambda: bit_tree.select(bits, ranks))

    @unless_all.def_vmap
    def _(size: int, batched: list[Any], *given: Any) -> tuple[jax.Array, bool]:
        # One condition for all buffers: with one each, all would walk down the tree.
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
        _, removed, ranks = given
        every = jax.vmap(always, axes, axis_size=size)
        as_they_are = jnp.broadcast_to(ranks, (size, ranks.shape[-1]))
        return lax.cond((removed == 0).all(), lambda: as_they_are, lambda: every(*given)), True

    def always(bits: BitTree, removed: jax.Array, ranks: jax.Array) -> jax.Array:
        return bit_tree.select(bits, ranks)

    assert ring.removed is not None
    # On a GPU a branch waits for the host, which takes longer than the walk to a rank.
    return by_platform(index.bits, ring.removed, ranks, cpu=unless_all, default=always)


def around(first: jax.Array, further: jax.Array, total: jax.Array) -> jax.Array:
    """Return `first + further` modulo the total; the sum is less than twice the total."""
    ahead = first.astype(jnp.uint32) + further.astype(jnp.uint32)
    size = jnp.maximum(total, 1).astype(jnp.uint32)
    return jnp.where(ahead >= size, ahead - size, ahead).astype(jnp.int32)


def _all_at_first(index: StartIndex, ring: Ring) -> bool:
    """Return whether all used slots are starts, unless rows have been removed."""
    return index.total is None and ring.heads == 1
