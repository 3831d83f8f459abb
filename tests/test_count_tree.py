"""The count tree by itself: every marked slot is found by its rank."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import trees

from fbuf.trees import count_tree


def counted(marked):
    slots = jnp.asarray(np.flatnonzero(marked), jnp.int32)
    return count_tree.add(count_tree.empty(marked.size), slots, jnp.ones_like(slots))


# One level, one level and a bit, two levels, three levels.
@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 8192, 8193, 140_000])
@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
def test_every_marked_slot_is_found_by_its_rank(capacity, share):
    rng = np.random.default_rng(capacity)
    marked = rng.random(capacity) < share
    marked[rng.integers(capacity)] = True
    slots = np.flatnonzero(marked)
    tree = counted(marked)
    flags = jnp.asarray(marked * np.uint8(8) + rng.integers(0, 8, capacity).astype(np.uint8))
    trees.check_counts(tree, marked)
    ranks = rng.permutation(slots.size).astype(np.int32)
    found = count_tree.select(tree, flags, 8, jnp.asarray(ranks))
    np.testing.assert_array_equal(found, slots[ranks])
    beyond = count_tree.select(tree, flags, 8, jnp.array([slots.size, 2**31 - 1], jnp.int32))
    assert ((beyond >= 0) & (beyond < capacity)).all()


def test_what_is_added_can_be_taken_away():
    slots = jnp.array([3, 40, 40, 9000], jnp.int32)
    tree = count_tree.add(count_tree.empty(10_000), slots, jnp.ones_like(slots))
    tree = count_tree.add(tree, slots, -jnp.ones_like(slots))
    assert not tree.counts.any()
