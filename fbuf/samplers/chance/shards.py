"""The choice of a shard: one more level above those of a sampler.

Over a mesh a buffer is several shards, each a buffer of its own. Every device knows the totals of
all shards, and so makes the same choices, from the same random bits. One shard leaves no choice,
and no bit is spent: the draws are those of a plain buffer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.samplers.chance import random_bits, wide
from fbuf.samplers.chance.wide import Wide
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import Points
from fbuf.xla.across import largest as largest
from fbuf.xla.tie import tie

_CHOICE = 2
"""The number folded into the key of a batch for the choice of shards; 1 stands for the view."""


def by_count(counts: jax.Array, key: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Choose items of all shards, all equally likely.

    Args:
        counts: int32 `[S]`: the number of items of each shard.
        key: The key of the batch.
        bits: uint32 `[2, B]`; random bits, enough if there is one shard.

    Returns:
        int32 `[B]` twice: the shard, and the number of the item in it, from 0. 0 for no item.
    """
    if counts.shape[0] == 1:
        rank = random_bits.below(bits, counts[0])
        return jnp.zeros_like(rank), rank
    shape = (3, bits.shape[1])
    words = random_bits.bits(random_bits.fold_in(key, _CHOICE), shape, counts)
    ends = wide.running_sums(counts)
    return of_rank(counts, wide.below(words, Wide(ends.high[-1], ends.low[-1])))


def of_rank(counts: jax.Array, rank: Wide) -> tuple[jax.Array, jax.Array]:
    """Return the shard of a rank among the items of all shards, and the rank there: int32 `[B]`."""
    ends = wide.running_sums(counts)
    shard = jnp.minimum(wide.first_above(ends, rank), counts.shape[0] - 1)
    before = Wide(*(jnp.concatenate([jnp.zeros(1, jnp.uint32), word[:-1]]) for word in ends))
    return shard, wide.minus(rank, Wide(before.high[shard], before.low[shard]))


def by_total(totals: jax.Array, key: jax.Array, batch_size: int) -> jax.Array:
    """Choose shards in proportion to float32 `[S]` totals: int32 `[B]`."""
    if totals.shape[0] == 1:
        return jnp.zeros(batch_size, jnp.int32)
    tree = sum_tree.of(totals)
    key = random_bits.fold_in(key, _CHOICE)
    uniforms = random_bits.uniforms_of_rows(key, sum_tree.picks(tree), batch_size, totals)
    return sum_tree.draw(tree, uniforms)[0]


def by_point(totals: jax.Array, key: jax.Array, fractions: jax.Array) -> tuple[jax.Array, Points]:
    """Find the shards at points along all totals laid end to end, and the points inside these.

    Args:
        totals: float32 `[S]`.
        key: The key of the batch.
        fractions: float32 `[B]` in `[0, 1)`; fractions of the sum of all totals.
    """
    points = Points(fractions, jnp.full_like(fractions, 2.0**-24))
    if totals.shape[0] == 1:
        return jnp.zeros(fractions.shape, jnp.int32), points
    tree = sum_tree.of(totals)
    key = random_bits.fold_in(tie(key, totals), _CHOICE)
    uniforms = random_bits.uniforms_of_rows(key, sum_tree.picks(tree), fractions.size)
    shard, _, inside = sum_tree.draw_stratified(tree, points, uniforms)
    return shard, inside


def sum_of_counts(counts: jax.Array) -> jax.Array:
    """Return the sum of int32 `[S]` counts: a float32 scalar."""
    if counts.shape[0] == 1:
        return counts[0].astype(jnp.float32)
    ends = wide.running_sums(counts)
    return wide.as_float(Wide(ends.high[-1], ends.low[-1]))


def sum_of_totals(totals: jax.Array) -> jax.Array:
    """Return the sum of float32 `[S]` totals, always in one order."""
    return totals[0] if totals.shape[0] == 1 else sum_tree.total(sum_tree.of(totals))
