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


WIDE = [np.int64, np.uint8, np.uint32, np.uint64]


@pytest.mark.parametrize(
    "slots",
    [
        *(np.array([0, 2, 5], dtype) for dtype in WIDE),
        np.array([0, 2, 5], ">i8"),
        [0, 2, 5],
        (np.int64(0), 2, 5),
        [jnp.int32(0), 2, 5],
        [jnp.int32(0), jnp.int32(2), jnp.int32(5)],
        jnp.array([0, 2, 5], jnp.uint8),
    ],
    ids=str,
)
def test_integers_of_any_kind(slots):
    state = fbuf.init(jnp.int32(0), 4)
    state = programs.add(state, jnp.arange(3, dtype=jnp.int32))
    wanted = fbuf.ids_at(state, jnp.array([0, 2, 5], jnp.int32))
    assert wanted.slot.tolist() == [0, 2, -1]
    for found in (fbuf.ids_at(state, slots), jax.jit(lambda s: fbuf.ids_at(s, slots))(state)):
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert fbuf.ids_at(state, int(slots[1])).slot.tolist() == 2
    assert fbuf.ids_at(state, slots[:0]).slot.shape == (0,)


def test_a_wide_slot_is_not_cut_to_one_inside():
    """2**32 + 1 in 32 bits is 1."""
    state = programs.add(fbuf.init(jnp.int32(0), 4), jnp.arange(3, dtype=jnp.int32))
    unsigned = jnp.array([1, 2**32 - 1, 2**31 + 1], jnp.uint32)
    assert fbuf.ids_at(state, unsigned).slot.tolist() == [1, -1, -1]
    with jax.enable_x64(True):
        wide = jnp.array([1, 2**32 + 1, -(2**32) + 1, 2**63 - 1], jnp.int64)
        assert jax.jit(fbuf.ids_at)(state, wide).slot.tolist() == [1, -1, -1, -1]


@pytest.mark.parametrize(
    ("slots", "error", "message"),
    [
        (np.array([0, 2**40]), ValueError, f"slots is {2**40}, which int32 cannot hold"),
        ([-(2**33), 1], ValueError, f"slots is {-(2**33)}, which int32 cannot hold"),
        (2**31, ValueError, f"slots is {2**31}, which int32 cannot hold"),
        (np.zeros(2), TypeError, "slots must be integers, got float64; cast them with astype"),
        (jnp.zeros(2), TypeError, "slots must be integers, got float32; cast them with astype"),
        ([0.5], TypeError, "slots must be integers, got float64"),
        ([True, False], TypeError, r"slots must .* bool; for a mask give np.flatnonzero\(mask\)"),
        (jnp.ones(3, bool), TypeError, "slots must be integers, got bool"),
        ([[0], [1, 2]], TypeError, "slots must be integers of one shape"),
        ([2**70], TypeError, "slots must be integers, got object"),
        (np.ma.masked_array([0, 1], [True, False]), TypeError, "slots is a masked array"),
        (None, TypeError, "slots must be an array, got NoneType"),
        ("all", TypeError, "slots must be an array, got str"),
        (0.5, TypeError, "slots must be integers, got float"),
        (slice(3), TypeError, "slots must be an array, got slice"),
    ],
    ids=str,
)
def test_what_are_no_slots(slots, error, message):
    state = fbuf.init(0.0, 4)
    for call in (fbuf.ids_at, jax.jit(lambda state, slots=slots: fbuf.ids_at(state, slots))):
        given = (state,) if call is not fbuf.ids_at else (state, slots)
        with pytest.raises(error, match="fbuf.ids_at: " + message):
            call(*given)


def test_a_consumed_state():
    state = fbuf.init(0.0, 4)
    fbuf.add(state, 1.0)
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.ids_at(state, SLOTS)
