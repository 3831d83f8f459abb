"""The smallest value of a sum tree, from a slot on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.trees import sum_tree
from fbuf.trees.smallest import smallest
from fbuf.trees.sum_tree import Aggregate

KEEPS = (Aggregate.SUM, Aggregate.LARGEST_INVERSE)


@pytest.mark.first(2)
@pytest.mark.parametrize("capacity", [1, 15, 16, 300, 9000])
def test_it_is_the_next_one_around_the_end(capacity):
    rng = np.random.default_rng(0)
    tree = sum_tree.empty(capacity, KEEPS)
    slots = jnp.arange(capacity, dtype=jnp.int32)
    find, write = jax.jit(jax.vmap(smallest, (None, 0))), jax.jit(sum_tree.write)
    for kinds in ([1.0], [0.0, 3.0, 7.0], [2.0, 5.0, 5.0], [0.0]):
        values = rng.choice(kinds, capacity).astype(np.float32)
        if len(kinds) == 3:  # few slots have the smallest value
            values = np.where(rng.random(capacity) < 2 / capacity, values, max(kinds))
        values = values.astype(np.float32)
        tree = write(tree, slots, values)
        first = jnp.asarray(np.unique(rng.integers(capacity, size=40)), jnp.int32)
        slot, value = find(tree, first)
        if not values.any():
            assert not np.asarray(value).any()
            continue
        least = np.flatnonzero(values == values[values > 0].min())
        for begin, found in zip(np.asarray(first), np.asarray(slot), strict=True):
            assert found == least[np.argmin((least - begin) % capacity)]
        np.testing.assert_array_equal(value, values[least[0]])


def test_rows_of_one_priority_are_overwritten_as_in_a_ring():
    state = fbuf.init(jnp.int32(0), capacity=100, sampler=fbuf.EvictLowest())
    add = jax.jit(fbuf.add, donate_argnums=0)
    for number in range(0, 490, 7):
        state = add(state, number + jnp.arange(7, dtype=jnp.int32))
    assert sorted(fbuf.rows(state).data.tolist()) == list(range(390, 490))
