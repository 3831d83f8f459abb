"""A K-ary tree of counts over the removed rows, to find the r-th row that is left.

A node says how many of the slots under it hold a removed row: `FANOUT` slots under a node of the
lowest level, `FANOUT` nodes under a node of the next one, and so on. As long as nothing is removed
all counts stay 0, and to add rows changes nothing. The slots themselves are not kept again: at the
bottom the ring's flags tell.

Counts are integers, exact at any size. So a write adds 1 to every node above a slot, or takes 1
away, in one scatter for all levels; and one rank suffices for the whole way down.

Rows that were removed before the ring was last cleared keep counting until they are overwritten:
clearing would otherwise take time in proportion to the capacity. They lie behind the newest row,
where no count is ever looked at.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp

from fbuf.trees._levels import FANOUT, rows_for
from fbuf.trees.sum_tree import TOP, first_above, running_sums

_SHIFT = FANOUT.bit_length() - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CountTree:
    """The counts of all levels in one array, so that one scatter writes them.

    Attributes:
        counts: int32 `[nodes]`; the levels from the bottom up, each padded to whole rows.
        capacity: How many slots there are; static.
    """

    counts: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})


def empty(capacity: int) -> CountTree:
    """A tree that counts nothing."""
    return CountTree(jnp.zeros(sum(_sizes(capacity)), jnp.int32), capacity)


def add(tree: CountTree, slots: jax.Array, by: jax.Array) -> CountTree:
    """Add to the count of slots, and so to every node above them.

    Args:
        tree: The tree.
        slots: int32 `[B]`, each in range; of duplicates each counts.
        by: int32 `[B]`.
    """
    above, start = [], 0
    for level, size in enumerate(_sizes(tree.capacity), start=1):
        above.append((slots >> (_SHIFT * level)) + start)
        start += size
    counts = tree.counts.at[jnp.concatenate(above)].add(
        jnp.tile(by, len(above)), mode="promise_in_bounds"
    )
    return dataclasses.replace(tree, counts=counts)


def select(tree: CountTree, removed: jax.Array, stored: jax.Array, ranks: jax.Array) -> jax.Array:
    """Find the rows of given ranks among those that are stored and not removed.

    Args:
        tree: The tree.
        removed: bool `[capacity]`, or uint8 of which only 0 is False; what the tree counts.
        stored: int32 scalar; only slots `[0, stored)` are looked at.
        ranks: int32 `[B]`, from 0 upwards, counted from slot 0; of a rank that no row has the
            result is in range, and meaningless.

    Returns:
        int32 `[B]` slots. O(B log N).
    """
    sizes = _sizes(tree.capacity)
    newest = jnp.maximum(stored - 1, 0)
    start = sum(sizes)
    found: jax.Array | None = None
    for level, size in reversed(list(enumerate(sizes, start=1))):
        start -= size
        # All nodes before the one with the newest slot stand for stored slots alone. If a rank is
        # in none of them it is in that one, whose own count need not be known.
        last = newest >> (_SHIFT * level)
        if found is None:
            nodes = jnp.arange(size, dtype=jnp.int32)
            left = jnp.where(nodes < last, (1 << _SHIFT * level) - tree.counts[start:], 0)
            sums = running_sums(left.reshape(-1, FANOUT))
            found = jnp.minimum(first_above(sums, ranks), last)
            ranks = ranks - jnp.where(found > 0, sums[found - 1], 0)
        else:
            nodes = _children(found)
            counts = tree.counts.at[start + nodes].get(mode="promise_in_bounds")
            left = jnp.where(nodes < last, (1 << _SHIFT * level) - counts, 0)
            found, ranks = _descend(nodes, left, ranks, last)
    assert found is not None
    nodes = _children(found)
    flags = removed.at[jnp.minimum(nodes, newest)].get(mode="promise_in_bounds")
    left = ((nodes < newest) & (flags == 0)).astype(jnp.int32)
    return _descend(nodes, left, ranks, newest)[0]


def _sizes(capacity: int) -> list[int]:
    """How many nodes each level has, from the bottom up, in whole rows."""
    sizes: list[int] = []
    nodes = rows_for(capacity)
    while True:
        sizes.append(rows_for(nodes) * FANOUT)
        if nodes <= TOP:
            return sizes
        nodes = rows_for(nodes)


def _children(nodes: jax.Array) -> jax.Array:
    """The nodes, or slots, one level down: `[B, FANOUT]`."""
    return nodes[:, None] * FANOUT + jnp.arange(FANOUT, dtype=jnp.int32)


def _descend(
    nodes: jax.Array, left: jax.Array, ranks: jax.Array, last: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """From rows of nodes, of which so many rows are left each, to the node of a rank in them."""
    found, before = nodes[:, 0], jnp.zeros_like(ranks)
    for child, counted in enumerate(itertools.accumulate(left.T)):
        passed = (counted <= ranks) & (nodes[:, child] < last)
        found = found + passed.astype(jnp.int32)
        before = jnp.where(passed, counted, before)
    return found, ranks - before
