"""Rows named by where they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs

import fbuf

SLOTS = jnp.array([-1, 0, 1, 2, 3, 4, 2**31 - 1], jnp.int32)


@pytest.mark.parametrize(
    ("lanes", "call"),
    [
        pytest.param({}, fbuf.ids_at, marks=pytest.mark.sweep),
        pytest.param({"num_envs": 2}, jax.jit(fbuf.ids_at), marks=pytest.mark.sweep),
        ({"num_envs": 2, "lockstep": False}, fbuf.ids_at),
    ],
)
def test_they_are_the_names_a_sample_gives(lanes, call):
    state = fbuf.init(jnp.int32(0), 4, **lanes)
    for step in range(9):
        if step in (0, 2, 4, 5, 8):
            the_names_of_a_sample(state, call)
        new = jnp.full(lanes.get("num_envs", ()), step, jnp.int32)
        state = programs.add(state, new)


def the_names_of_a_sample(state, call):
    ids = call(state, SLOTS)
    drawn = programs.sample(state, jax.random.key(0), 64)
    names = dict(zip(drawn.ids.slot.tolist(), drawn.ids.generation.tolist(), strict=True))
    names.pop(-1, None)
    for slot, found, generation in zip(SLOTS, ids.slot, ids.generation, strict=True):
        if int(slot) in names:
            assert (int(found), int(generation)) == (int(slot), names[int(slot)])
        else:
            assert int(found) == -1


def test_rows_that_are_gone_have_no_name():
    state = fbuf.add(fbuf.init(jnp.int32(0), 4), jnp.arange(4, dtype=jnp.int32))
    ids = fbuf.ids_at(state, jnp.array([1, 2], jnp.int32))
    state = fbuf.remove(state, ids)
    assert fbuf.ids_at(state, SLOTS).slot.tolist() == [-1, 0, -1, -1, 3, -1, -1]
    assert fbuf.ids_at(fbuf.clear(state), SLOTS).slot.tolist() == [-1] * 7


def test_any_shape_and_buffers_under_vmap():
    fill = jax.jit(jax.vmap(lambda x: fbuf.add(fbuf.init(jnp.int32(0), 4), x)))
    states = fill(jnp.arange(6, dtype=jnp.int32).reshape(2, 3))
    slots = jnp.array([[0, 3], [2, 1]], jnp.int32)
    ids = jax.jit(jax.vmap(fbuf.ids_at))(states, slots)
    np.testing.assert_array_equal(ids.slot, [[0, -1], [2, 1]])


def test_misuse():
    state = fbuf.init(0.0, 4)
    with pytest.raises(TypeError, match=r"fbuf\.ids_at: slots must be int32, got float32"):
        fbuf.ids_at(state, jnp.zeros(2))
    fbuf.add(state, 1.0)
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.ids_at(state, SLOTS)
