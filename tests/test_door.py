"""The way in: values of the host become the buffer's own, and nothing is consumed by mistake."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

ROWS = 1000


@jax.jit
def _busy(x):
    """The same number, a good while later."""
    y = jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ y / 400), jnp.ones((400, 400)))
    return x + (0 * y[0, 0]).astype(x.dtype)


def late(state):
    """A state on which everything else has to wait."""
    return dataclasses.replace(state, fault=_busy(state.fault))


def aligned(size, dtype):
    """An array of the host that JAX can read where it lies."""
    room = np.zeros(size * np.dtype(dtype).itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + size * np.dtype(dtype).itemsize].view(dtype)


def test_arrays_of_the_host_can_be_filled_anew_at_once():
    """What the call has not yet come to read by then, it does not see."""
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
    state = fbuf.init(jnp.int32(0), ROWS, sampler=sampler)
    items, priority = aligned(ROWS, np.int32), aligned(ROWS, np.float32)
    for number in range(3):
        items[:], priority[:] = number, number + 1
        state = fbuf.add(late(state), items, priority=priority)
        items[:], priority[:] = 99, 99
        assert set(np.asarray(fbuf.rows(state).data).tolist()) == {number}
        assert float(fbuf.stats(state)["priority_total"]) == (number + 1) * ROWS


def test_an_array_of_the_state_is_no_argument_of_a_call_that_consumes_it():
    state = fbuf.add(fbuf.init({"flag": jnp.uint8(0)}, 4), {"flag": jnp.ones(4, jnp.uint8)})
    with pytest.raises(ValueError, match=r"add: items\['flag'\] is an array of the state itself"):
        fbuf.add(state, {"flag": state.ring.flags})
    assert int(fbuf.size(fbuf.add(state, {"flag": state.ring.flags}, donate=False))) == 4
    state = fbuf.add(state, {"flag": jnp.copy(state.ring.flags)})
    assert fbuf.rows(state).data["flag"].tolist() == [0, 0, 0, 0]


def test_environments_come_first_unless_it_is_said_otherwise():
    items = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    one = fbuf.add(fbuf.init(jnp.int32(0), 8, num_envs=2), items)
    other = fbuf.add(fbuf.init(jnp.int32(0), 8, num_envs=2), items.T, time_major=True)
    for state in (one, other):
        np.testing.assert_array_equal(fbuf.rows(state).data[:, 1:], items)
