"""A K-ary tree of counts over marked slots: the r-th marked slot, by rank.

A node says how many of the slots under it are marked: `FANOUT` slots under a node of the lowest
level, `FANOUT` nodes under a node of the next one, and so on. The marks themselves are a bit in the
flags of the ring, and not kept again.

Counts are integers, exact at any size. So a write adds 1 to every node above a slot, or takes 1
away, in one scatter for all levels; and one rank suffices for the whole way down.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

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
        rows = jnp.minimum(found, size // FANOUT - 1) * FANOUT
        found, ranks = _descend(tree.counts, None, start, rows, ranks)
    rows = jnp.minimum(found, (tree.capacity - 1) // FANOUT) * FANOUT
    return jnp.minimum(_descend(flags, bit, 0, rows, ranks)[0], tree.capacity - 1)


def _sizes(capacity: int) -> list[int]:
    """How many nodes each level has, from the bottom up, in whole rows."""
    sizes: list[int] = []
    nodes = rows_for(capacity)
    while True:
        sizes.append(rows_for(nodes) * FANOUT)
        if nodes <= TOP:
            return sizes
        nodes = rows_for(nodes)


def _descend(
    level: jax.Array, bit: int | None, start: int, rows: jax.Array, ranks: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """From rows of nodes to the node in each that holds a rank, and what is left of the rank.

    Args:
        level: `[nodes]`; counts, or flags of which a bit counts.
        bit: That bit; None for counts.
        start: Where in the array the level begins.
        rows: int32 `[B]`; the first node of each row.
        ranks: int32 `[B]`.
    """
    width = min(FANOUT, level.shape[0])

    def step(row: list[jax.Array], skipped: jax.Array, rank: jax.Array) -> tuple[jax.Array, ...]:
        child, before = jnp.zeros_like(rank), jnp.zeros_like(rank)
        counted = jnp.zeros_like(rank)
        for at, count in enumerate(row[:-1]):
            here = count if bit is None else ((count & bit) > 0)
            counted = counted + jnp.where(at < skipped, 0, here.astype(jnp.int32))
            passed = counted <= rank
            child = child + passed.astype(jnp.int32)
            before = jnp.where(passed, counted, before)
        return child, rank - before

    # The last row of the flags can be cut short: it is then read with some nodes of the row before.
    first = jnp.minimum(rows + start, level.shape[0] - width)
    skipped = rows + start - first

    def loop(level: jax.Array, first: jax.Array, skipped: jax.Array, ranks: jax.Array) -> Any:
        def body(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            row = lax.dynamic_slice(level, (first[i],), (width,), allow_negative_indices=False)
            child, rank = step([row[at] for at in range(width)], skipped[i], ranks[i])
            return found[0].at[i].set(first[i] + child), found[1].at[i].set(rank)

        return lax.fori_loop(
            0, ranks.shape[0], body, (jnp.zeros_like(ranks), jnp.zeros_like(ranks))
        )

    def gather(level: jax.Array, first: jax.Array, skipped: jax.Array, ranks: jax.Array) -> Any:
        at = first[:, None] + jnp.arange(width, dtype=jnp.int32)
        row = level.at[at].get(mode="promise_in_bounds")
        child, rank = step([row[:, at] for at in range(width)], skipped, ranks)
        return first + child, rank

    found, ranks = lax.platform_dependent(level, first, skipped, ranks, cpu=loop, default=gather)
    return found - start, ranks
