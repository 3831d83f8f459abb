"""The index of stored priorities: a sum tree, and some values over all rows.

A row that is no start keeps its priority with a minus sign, so that no aggregate counts it.
Without a window every row is a start, and no value has a sign.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.samplers.index import starts
from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.ring import Ring, Span
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import Aggregate, SumTree
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.filled import zeros
from fbuf.xla.tie import tie


@pytree
class PriorityIndex:
    """The tree of stored priorities.

    Attributes:
        tree: A value for each slot.
        largest_ever: The largest priority ever stored; None unless new rows get it.
        num_starts: The number of starts; None where every row is a start.
        largest_of_shards: The largest priority of all shards, for one call; otherwise None.
    """

    tree: SumTree
    largest_ever: jax.Array | None
    num_starts: jax.Array | None
    largest_of_shards: jax.Array | None = None


def empty(
    ring: Ring, window: Window, aggregates: tuple[Aggregate, ...], ever: bool
) -> PriorityIndex:
    """Return an index without priorities; `ever` to keep the largest ever stored."""
    every_row = window.every_row
    tree = sum_tree.empty(ring.capacity, aggregates, inactive=not every_row)
    num_starts = None if every_row else zeros((), np.int32)
    return PriorityIndex(tree, zeros((), np.float32) if ever else None, num_starts)


def add(
    index: PriorityIndex, ring: Ring, span: Span, values: jax.Array, window: Window
) -> PriorityIndex:
    """Store the values of new rows, and activate the starts whose windows these rows complete."""
    values = jnp.where(span.drawable, values, 0)
    largest_ever = _largest_ever(index, values, span.drawable)
    if index.num_starts is None:
        return PriorityIndex(_written(index.tree, ring, span, values, None), largest_ever, None)
    kept = span.slots < ring.capacity
    before = sum_tree.values(index.tree, ring.clamp(span.slots))
    evicted = kept & _is_start(before)
    slots, is_start = starts.completed(ring, span, window)
    activated = jnp.where(is_start, slots, ring.capacity)
    # The overwritten values have been read by then.
    span = dataclasses.replace(span, slots=tie(span.slots, before))
    tree = _written(index.tree, ring, span, -values, activated)
    change = starts.int32_sum(is_start) - starts.int32_sum(evicted)
    return PriorityIndex(tree, largest_ever, index.num_starts + change)


def update(
    index: PriorityIndex, ring: Ring, slots: jax.Array, values: jax.Array, valid: jax.Array
) -> PriorityIndex:
    """Store the valid new values of stored rows; a slot of `capacity` is left out."""
    largest_ever = _largest_ever(index, values, valid & (slots < ring.capacity))
    slots = jnp.where(valid, slots, ring.capacity)
    tree = sum_tree.write(index.tree, slots, _signed(index.tree, ring, slots, values))
    return PriorityIndex(tree, largest_ever, index.num_starts)


def take_over(
    index: PriorityIndex, ring: Ring, slots: jax.Array, old: PriorityIndex, old_slots: jax.Array
) -> PriorityIndex:
    """Store the values that another index has at `old_slots`, and its largest one."""
    values = jnp.minimum(jnp.abs(sum_tree.values(old.tree, old_slots)), largest_storable(ring))
    tree = sum_tree.write(index.tree, slots, _signed(index.tree, ring, slots, values))
    ever = index.largest_ever
    ever = None if ever is None else jnp.maximum(ever, largest(old))
    return PriorityIndex(tree, ever, index.num_starts)


def remove(index: PriorityIndex, ring: Ring, slots: jax.Array, window: Window) -> PriorityIndex:
    """Store 0 for rows, and deactivate all other starts whose windows held such a row."""
    new, total = jnp.zeros(slots.shape, jnp.float32), index.num_starts
    if total is not None:
        found = starts.containing(ring, slots, window)
        old = sum_tree.values(index.tree, ring.clamp(found))
        lost = last_of_each(found) & (found < ring.capacity) & _is_start(old)
        total -= starts.int32_sum(lost)
        # The last of two values for a slot counts, and the value of a removed row is 0.
        slots, new = jnp.concatenate([found, slots]), jnp.concatenate([-jnp.abs(old), -new])
    tree = sum_tree.write(index.tree, slots, new)
    return PriorityIndex(tree, index.largest_ever, total)


def retire(index: PriorityIndex, ring: Ring, slots: jax.Array) -> PriorityIndex:
    """Deactivate starts, not rows: int32 `[B]` distinct slots; `capacity` marks an unused entry."""
    if index.num_starts is None:  # every row is a start, and no value has a sign
        tree = sum_tree.write(index.tree, slots, jnp.zeros(slots.shape, jnp.float32))
        return dataclasses.replace(index, tree=tree)
    old = sum_tree.values(index.tree, ring.clamp(slots))
    lost = _is_start(old) & (slots < ring.capacity)
    slots = tie(jnp.where(lost, slots, ring.capacity), old)
    tree = sum_tree.write(index.tree, slots, -jnp.abs(old))
    return dataclasses.replace(
        index, tree=tree, num_starts=index.num_starts - starts.int32_sum(lost)
    )


def of_slots(index: PriorityIndex, slots: jax.Array) -> jax.Array:
    """Return the sampling values of slots, 0 for a row that is no start: float32 `[B]`."""
    return jnp.maximum(sum_tree.values(index.tree, slots), 0)


def count(index: PriorityIndex, ring: Ring) -> jax.Array:
    """Count the starts, also those of priority 0. int32 scalar."""
    return ring.live() if index.num_starts is None else index.num_starts


def largest(index: PriorityIndex) -> jax.Array:
    """Return the largest priority of all starts, or of any row ever; 0 without one.

    Were other rows counted, new rows would inherit the priority of rows that no update reaches.
    """
    if index.largest_ever is not None:
        return index.largest_ever
    return sum_tree.aggregate(index.tree, Aggregate.LARGEST)


def default(index: PriorityIndex, first: float) -> jax.Array:
    """Return the value for a row without a priority: `first` if no priority is above 0."""
    most = largest(index) if index.largest_of_shards is None else index.largest_of_shards
    return jnp.where(most > 0, most, first)


def largest_storable(ring: Ring) -> float:
    """Return the largest value for which neither a sum nor the sum of all shards overflows."""
    return float(jnp.finfo(jnp.float32).max) / (2 * ring.capacity * ring.shards)


def _written(
    tree: SumTree, ring: Ring, span: Span, values: jax.Array, activated: jax.Array | None
) -> SumTree:
    """Return the tree with the values of the rows of an add, and the activated starts."""
    if ring.heads == 1:
        return sum_tree.write_span(tree, span, values, activated)
    return sum_tree.write(tree, span.slots, values, activated)


def _signed(tree: SumTree, ring: Ring, slots: jax.Array, values: jax.Array) -> jax.Array:
    """Return values with the signs of the stored ones."""
    if not tree.inactive:
        return values
    old = sum_tree.values(tree, ring.clamp(slots))
    return jnp.where(jnp.signbit(old), -values, values)


def _largest_ever(index: PriorityIndex, values: jax.Array, written: jax.Array) -> jax.Array | None:
    if index.largest_ever is None:
        return None
    return jnp.maximum(index.largest_ever, jnp.where(written, values, 0).max())


def _is_start(value: jax.Array) -> jax.Array:
    """Return whether stored rows are starts: the others have a minus sign."""
    return ~jnp.signbit(value)
