"""The mark tree by itself: every marked slot is found by its rank, and every rank by its slot."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trees

from fbuf.trees import bit_tree


def marked_tree(marked):
    slots = jnp.asarray(np.flatnonzero(marked), jnp.int32)
    return bit_tree.change(bit_tree.empty(marked.size), slots, jnp.ones_like(slots))


# The words are the top; one level of counts; two; three.
@pytest.mark.parametrize("capacity", [1, 31, 32, 33, 512, 16_384, 16_385, 262_145, 5_000_000])
@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
def test_every_marked_slot_is_found_by_its_rank(capacity, share):
    rng = np.random.default_rng(capacity)
    marked = rng.random(capacity) < share
    marked[rng.integers(capacity)] = True
    slots = np.flatnonzero(marked)
    tree = marked_tree(marked)
    np.testing.assert_array_equal(trees.marks(tree), marked)
    ranks = rng.permutation(slots.size)[:100_000].astype(np.int32)
    found = bit_tree.select(tree, jnp.asarray(ranks))
    np.testing.assert_array_equal(found, slots[ranks])
    given = jnp.asarray(rng.integers(0, capacity, ranks.size), jnp.int32)
    found = bit_tree.select_unless(tree, given, jnp.asarray(ranks))
    np.testing.assert_array_equal(found, np.where(marked[given], given, slots[ranks]))
    beyond = bit_tree.select(tree, jnp.array([slots.size, 2**31 - 1], jnp.int32))
    assert ((beyond >= 0) & (beyond < capacity)).all()
    some = np.r_[0, capacity, rng.integers(0, capacity + 1, 1000)].astype(np.int32)
    before = np.r_[0, np.cumsum(marked)]
    np.testing.assert_array_equal(bit_tree.rank(tree, jnp.asarray(some)), before[some])
    within = some[some < capacity]
    np.testing.assert_array_equal(bit_tree.read(tree, jnp.asarray(within)), marked[within])


def test_both_forms_give_the_same():
    """The loop of the CPU, and what a GPU does."""
    rng = np.random.default_rng(0)
    marked = rng.random(300_000) < 0.2
    tree, total = marked_tree(marked), int(marked.sum())
    ranks = jnp.asarray(rng.integers(0, total, 500), jnp.int32)
    slots = jnp.asarray(rng.integers(0, marked.size + 1, 500), jnp.int32)
    inside = jnp.minimum(slots, marked.size - 1)

    def all_three():
        found = bit_tree.select_unless(tree, inside, ranks)
        return bit_tree.select(tree, ranks), bit_tree.rank(tree, slots), found

    expected = all_three()
    trees_ = jax.tree.map(lambda x: jnp.stack([x, x]), tree)
    given, wanted = jnp.stack([inside, inside[::-1]]), jnp.stack([ranks, ranks[::-1]])
    found = jax.vmap(bit_tree.select_unless)(trees_, given, wanted)
    np.testing.assert_array_equal(jax.vmap(bit_tree.select)(trees_, wanted)[0], expected[0])
    np.testing.assert_array_equal(found, [expected[2], expected[2][::-1]])

    def one_form(*args, cpu, default):
        return default(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "platform_dependent", one_form)
        other = all_three()
    np.testing.assert_array_equal(expected, other)


def test_what_is_marked_can_be_unmarked():
    slots = jnp.array([3, 31, 40, 9000, 63], jnp.int32)
    tree = bit_tree.change(bit_tree.empty(10_000), slots, jnp.ones_like(slots))
    # In between a slot may be changed there and back.
    there_and_back = jnp.array([40, 41, 41, 40], jnp.int32)
    tree = bit_tree.change(tree, there_and_back, jnp.array([-1, 1, -1, 1], jnp.int32))
    np.testing.assert_array_equal(np.flatnonzero(trees.marks(tree)), np.sort(slots))
    tree = bit_tree.change(tree, slots, -jnp.ones_like(slots))
    assert not tree.nodes.any()
