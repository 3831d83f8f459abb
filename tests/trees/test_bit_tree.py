"""The mark tree by itself: every marked slot is found by its rank, and every rank by its slot."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import inside

from fbuf.trees import bit_tree


@jax.jit
def marked_tree(marked):
    slots = jnp.arange(marked.size, dtype=jnp.int32)
    return bit_tree.change(bit_tree.empty(marked.size), slots, marked.astype(jnp.int32))


@jax.jit
def everything(tree, ranks, given, beyond, some, within):
    found, unless = bit_tree.select(tree, ranks), bit_tree.select_unless(tree, given, ranks)
    out, before = bit_tree.select(tree, beyond), bit_tree.rank(tree, some)
    return found, unless, out, before, bit_tree.read(tree, within)


# The words are the top; one level of counts; two; three.
@pytest.mark.parametrize(
    "capacity",
    [
        33,
        *(
            pytest.param(n, marks=pytest.mark.sweep)
            for n in (1, 31, 32, 512, 16_384, 16_385, 262_145, 5_000_000)
        ),
    ],
)
def test_every_marked_slot_is_found_by_its_rank(capacity):
    """All numbers of marks share the programs: slots, ranks and questions are padded."""
    for share in (0.001, 0.3, 1.0):
        every_marked_slot(capacity, share)


def every_marked_slot(capacity, share):
    rng = np.random.default_rng(capacity)
    marked = rng.random(capacity) < share
    marked[rng.integers(capacity)] = True
    slots = np.flatnonzero(marked)
    tree = marked_tree(marked)
    np.testing.assert_array_equal(inside.marks(tree), marked)
    ranks = np.resize(rng.permutation(slots.size), 2000).astype(np.int32)
    given = rng.integers(0, capacity, ranks.size).astype(np.int32)
    beyond = np.array([slots.size, 2**31 - 1], np.int32)
    some = np.r_[0, capacity, rng.integers(0, capacity + 1, 1000)].astype(np.int32)
    within = np.minimum(some, capacity - 1)
    asked = everything(tree, *map(jnp.asarray, (ranks, given, beyond, some, within)))
    found, unless, out, before, read = map(np.asarray, asked)
    np.testing.assert_array_equal(found, slots[ranks])
    np.testing.assert_array_equal(unless, np.where(marked[given], given, slots[ranks]))
    assert ((out >= 0) & (out < capacity)).all()
    np.testing.assert_array_equal(before, np.r_[0, np.cumsum(marked)][some])
    np.testing.assert_array_equal(read, marked[within])


def test_slots_of_several_trees():
    """One loop over all trees; the trees differ, and so do the numbers of their ranks."""
    rng = np.random.default_rng(1)
    capacity, batch = 20_000, 64
    marked = rng.random((2, 3, capacity)) < np.array([0.01, 0.5, 0.99])[:, None]
    slots = jnp.asarray(rng.integers(0, capacity, (2, 3, batch)), jnp.int32)
    ranks = jnp.asarray(rng.integers(0, 100, (2, 3, batch)), jnp.int32)
    trees = jax.vmap(jax.vmap(marked_tree))(jnp.asarray(marked))

    def expected(marked, slots, ranks):
        return np.where(marked[slots], slots, np.flatnonzero(marked)[ranks])

    over = [(marked[i, j], slots[i, j], ranks[i, j]) for i in range(2) for j in range(3)]
    every = np.reshape([expected(*each) for each in over], slots.shape)
    of_each = jax.vmap(bit_tree.select_unless)
    np.testing.assert_array_equal(jax.jit(jax.vmap(of_each))(trees, slots, ranks), every)

    one, *_ = jax.tree.leaves(trees)
    one = bit_tree.BitTree(one[0, 1], capacity)
    of_one = jax.vmap(bit_tree.select_unless, in_axes=(None, 0, 0))
    found = jax.jit(jax.vmap(of_one, in_axes=(None, 0, None)))(one, slots, ranks[0])
    every = [[expected(marked[0, 1], slots[i, j], ranks[0, j]) for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(found, every)


@pytest.mark.sweep
def test_both_forms_give_the_same():
    """The loop of the CPU, and what a GPU does."""
    rng = np.random.default_rng(0)
    marked = rng.random(300_000) < 0.2
    tree, total = marked_tree(marked), int(marked.sum())
    ranks = jnp.asarray(rng.integers(0, total, 500), jnp.int32)
    slots = jnp.asarray(rng.integers(0, marked.size + 1, 500), jnp.int32)
    within = jnp.minimum(slots, marked.size - 1)

    def all_three():
        one = lambda tree, ranks, slots, given: (
            bit_tree.select(tree, ranks),
            bit_tree.rank(tree, slots),
            bit_tree.select_unless(tree, given, ranks),
        )
        return jax.jit(one)(tree, ranks, slots, within)

    expected = all_three()
    trees_ = jax.tree.map(lambda x: jnp.stack([x, x]), tree)
    given, wanted = jnp.stack([within, within[::-1]]), jnp.stack([ranks, ranks[::-1]])
    found = jax.jit(jax.vmap(bit_tree.select_unless))(trees_, given, wanted)
    first = jax.jit(jax.vmap(bit_tree.select))(trees_, wanted)[0]
    np.testing.assert_array_equal(first, expected[0])
    np.testing.assert_array_equal(found, [expected[2], expected[2][::-1]])

    jax.clear_caches()  # of what has been traced with the other form
    with inside.forms_of_other_platforms():
        other = all_three()
    jax.clear_caches()
    np.testing.assert_array_equal(expected, other)


@pytest.mark.sweep
def test_what_is_marked_can_be_unmarked():
    slots = jnp.array([3, 31, 40, 9000, 63], jnp.int32)
    tree = bit_tree.change(bit_tree.empty(10_000), slots, jnp.ones_like(slots))
    # In between a slot may be changed there and back.
    there_and_back = jnp.array([40, 41, 41, 40], jnp.int32)
    tree = bit_tree.change(tree, there_and_back, jnp.array([-1, 1, -1, 1], jnp.int32))
    np.testing.assert_array_equal(np.flatnonzero(inside.marks(tree)), np.sort(slots))
    tree = bit_tree.change(tree, slots, -jnp.ones_like(slots))
    assert not tree.nodes.any()
