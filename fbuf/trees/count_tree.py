"""A K-ary count tree: the r-th marked slot, by rank.

It is the sum tree of ones and zeros, kept in integers: one byte a slot and a count above every 16
of them, 1.3 bytes a slot in all. Integers are exact at any size, so one rank suffices for the
whole way down. Writing is `sum_tree.write` and `sum_tree.write_span`; only the walk differs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.trees import _levels, sum_tree
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
    sums = sum_tree.running_sums(tree.nodes[-1][..., 0])
    found = sum_tree.first_above(sums, ranks)
    ranks = ranks - jnp.where(found > 0, sums[found - 1], 0)
    for level in sum_tree.below_top(tree):
        found, ranks = _descend(level, jnp.minimum(found, level.shape[0] - 1), ranks)
    return jnp.minimum(found, tree.capacity - 1)


def _descend(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From each row to the child that holds its rank, and the rank inside that child."""

    def step(row: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, before, counted = jnp.int32(0), jnp.int32(0), jnp.int32(0)
        for at in range(FANOUT - 1):
            counted = counted + row[..., at, 0].astype(jnp.int32)
            passed = counted <= rank
            child = child + passed.astype(jnp.int32)
            before = jnp.where(passed, counted, before)
        return child, rank - before

    def loop(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            child, rank = step(_levels.read_row(level, rows[i]), ranks[i])
            return found[0].at[i].set(rows[i] * FANOUT + child), found[1].at[i].set(rank)

        return lax.fori_loop(0, rows.shape[0], body, (jnp.zeros_like(rows), jnp.zeros_like(ranks)))

    def gather(level: jax.Array, rows: jax.Array, ranks: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, rank = step(level.at[rows].get(mode="promise_in_bounds"), ranks)
        return rows * FANOUT + child, rank

    return lax.platform_dependent(level, rows, ranks, cpu=loop, default=gather)
