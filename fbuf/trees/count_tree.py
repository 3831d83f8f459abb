"""A K-ary tree of counts over marked slots: the r-th marked slot, by rank.

A node says how many of the slots under it are marked: `FANOUT` slots under a node of the lowest
level, `FANOUT` nodes under a node of the next one, and so on. The marks themselves are a bit in the
flags of the ring, and not kept again.

Counts are integers, exact at any size. So a write adds 1 to every node above a slot, or takes 1
away, in one scatter for all levels; and one rank suffices for the whole way down.
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


def select(tree: CountTree, flags: jax.Array, bit: int, ranks: jax.Array) -> jax.Array:
    """Find the marked slots of given ranks, counted from slot 0 upwards.

    Args:
        tree: The tree.
        flags: uint8 `[capacity]`.
        bit: The bit of the flags that marks a slot: what the tree counts.
        ranks: int32 `[B]`, from 0 upwards; of a rank that no mark has the result is in range, and
            meaningless.

    Returns:
        int32 `[B]` slots. O(B log N).
    """
    sizes = _sizes(tree.capacity)
    start = sum(sizes) - sizes[-1]
    sums = running_sums(tree.counts[start:].reshape(-1, FANOUT))
    found = first_above(sums, ranks)
    ranks = ranks - jnp.where(found > 0, sums[found - 1], 0)
    for size in reversed(sizes[:-1]):
        start -= size
        nodes = jnp.minimum(_children(found), size - 1)
        found, ranks = _descend(
            nodes, tree.counts.at[start + nodes].get(mode="promise_in_bounds"), ranks
        )
    slots = jnp.minimum(_children(found), tree.capacity - 1)
    marked = flags.at[slots].get(mode="promise_in_bounds") & bit > 0
    return jnp.minimum(_descend(slots, marked.astype(jnp.int32), ranks)[0], tree.capacity - 1)


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


def _descend(nodes: jax.Array, counts: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From rows of nodes to the node in each that holds a rank, and what is left of the rank."""
    found, before = nodes[:, 0], jnp.zeros_like(ranks)
    for counted in itertools.accumulate(counts.T[:-1]):
        passed = counted <= ranks
        found = found + passed.astype(jnp.int32)
        before = jnp.where(passed, counted, before)
    return found, ranks - before
