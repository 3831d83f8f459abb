"""A K-ary count tree: the r-th marked slot, by rank.

It is the sum tree of ones and zeros, kept in integers: one byte a slot and a count above every 16
of them, 1.3 bytes a slot in all. Integers are exact at any size, so one rank suffices for the
whole way down. Writing is `sum_tree.write` and `sum_tree.write_span`; only the walk differs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.trees import sum_tree
from fbuf.trees._levels import FANOUT


def empty(capacity: int) -> sum_tree.SumTree:
    """A tree with no slot marked."""
    return sum_tree.empty(capacity, leaf=jnp.uint8, node=jnp.int32)


def select(tree: sum_tree.SumTree, ranks: jax.Array) -> jax.Array:
    """Find the marked slots of given ranks, counted from slot 0 upwards.

    Args:
        tree: The tree.
        ranks: int32 `[B]` in `[0, total)`; of any other the result is in range, and meaningless.

    Returns:
        int32 `[B]` slots. O(B log N).
    """
    sums = sum_tree.running_sums(tree.top[0])
    nodes = sum_tree.first_above(sums, ranks)
    ranks = ranks - jnp.where(nodes > 0, sums[nodes - 1], 0)
    for level, below in zip(*sum_tree.downwards(tree), strict=True):
        nodes, ranks = _descend(level, nodes, ranks)
        nodes = jnp.minimum(nodes, below - 1)
    return nodes


def _descend(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From each row to the child that holds its rank, and the rank inside that child."""

    def step(row: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, before, counted = jnp.int32(0), jnp.int32(0), jnp.int32(0)
        for at in range(FANOUT - 1):
            counted = counted + row[..., 0, at].astype(jnp.int32)
            passed = counted <= rank
            child = child + passed
            before = jnp.where(passed, counted, before)
        return child, rank - before

    def loop(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            row = lax.dynamic_index_in_dim(level, rows[i], keepdims=False)
            child, rank = step(row, ranks[i])
            return (
                lax.dynamic_update_index_in_dim(found[0], rows[i] * FANOUT + child, i, 0),
                lax.dynamic_update_index_in_dim(found[1], rank, i, 0),
            )

        return lax.fori_loop(0, rows.shape[0], body, (jnp.zeros_like(rows), jnp.zeros_like(ranks)))

    def gather(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, rank = step(level.at[rows].get(mode="promise_in_bounds"), ranks)
        return rows * FANOUT + child, rank

    return lax.platform_dependent(level, rows, ranks, cpu=loop, default=gather)
