"""The count tree by itself: every row that is left is found by its rank."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import trees

from fbuf.trees import count_tree


def counted(removed):
    slots = jnp.asarray(np.flatnonzero(removed), jnp.int32)
    return count_tree.add(count_tree.empty(removed.size), slots, jnp.ones_like(slots))


# One level, one level and a bit, two levels, three levels.
@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 8192, 8193, 140_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("stored", [0.001, 0.4, 1.0])
def test_every_row_that_is_left_is_found_in_order(capacity, share, stored):
    """Rows removed behind the newest one are counted as well, and do no harm."""
    rng = np.random.default_rng(capacity)
    removed = rng.random(capacity) < share
    stored = max(1, int(stored * capacity))
    left = np.flatnonzero(~removed[:stored])
    tree = counted(removed)
    trees.check_counts(tree, removed * np.uint8(4))
    ranks = rng.permutation(left.size).astype(np.int32)
    found = count_tree.select(
        tree, jnp.asarray(removed), jnp.int32(stored), jnp.append(jnp.asarray(ranks), 0)
    )
    np.testing.assert_array_equal(found[:-1], left[ranks])
    assert ((found >= 0) & (found < stored)).all()


def test_what_is_added_can_be_taken_away():
    slots = jnp.array([3, 40, 40, 9000], jnp.int32)
    tree = count_tree.add(count_tree.empty(10_000), slots, jnp.ones_like(slots))
    tree = count_tree.add(tree, slots, -jnp.ones_like(slots))
    assert not tree.counts.any()
