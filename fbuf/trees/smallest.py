"""Finding the smallest value of a sum tree: of several, the first at or behind a slot."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.trees import sum_tree
from fbuf.trees.levels import FANOUT
from fbuf.trees.sum_tree import Aggregate, SumTree
from fbuf.xla.rows import read_rows


def smallest(tree: SumTree, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the next slot with the smallest value above 0, around the end of the slots.

    The search climbs from `first` to the lowest row with a smallest value at or behind it. Then it
    walks down. A node has a smallest value under it if its inverse is the largest of all.

    Args:
        tree: The tree, which must keep LARGEST_INVERSE.
        first: int32 scalar in `[0, capacity)`; the first slot of the search.

    Returns:
        The slot, and its value; any slot if there is no value above 0. Scalars.

    Cost: O(log N).
    """
    most, top = sum_tree.aggregate(tree, Aggregate.LARGEST_INVERSE), len(tree.nodes)
    at, node, place = first, jnp.int32(-1), jnp.int32(top)  # `place` is the level of `node`
    for number in range(top + 1):
        inverse, begin = _row(tree, number, at // FANOUT)
        steps = jnp.arange(inverse.shape[0], dtype=jnp.int32)
        behind = (inverse == most) & (begin + steps >= at)
        is_new = behind.any() & (node < 0)
        node = jnp.where(is_new, begin + _first(behind), node)
        place = jnp.where(is_new, number, place)
        at = at // FANOUT + 1
    everywhere, _ = _row(tree, top, at)
    node = jnp.where(node < 0, _first(everywhere == most), node)
    for number in reversed(range(top)):
        inverse, begin = _row(tree, number, node)
        node = jnp.where(place > number, begin + _first(inverse == inverse.max()), node)
    slot = jnp.minimum(node, tree.capacity - 1)
    return slot, sum_tree.values(tree, slot[None])[0]


def _row(tree: SumTree, number: int, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the inverses of a row, 0 without a value, and its first place; of the top, all."""
    level = (tree.leaves, *tree.nodes)[number]
    if number == len(tree.nodes):
        return level[..., tree.keeps.index(Aggregate.LARGEST_INVERSE)].reshape(-1), jnp.int32(0)
    row = jnp.minimum(row, level.shape[0] - 1)
    children = read_rows(level, row[None])[0]
    if number:
        inverse = children[..., tree.keeps.index(Aggregate.LARGEST_INVERSE)]
    else:
        inverse = jnp.where(children > 0, 1 / jnp.where(children > 0, children, 1), 0)
    return inverse, row * FANOUT


def _first(found: jax.Array) -> jax.Array:
    """Return the place of the first True: an int32 scalar."""
    return jnp.argmax(found).astype(jnp.int32)
