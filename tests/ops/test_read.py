"""Rows read by their names: those of the newest rows, and what `read` makes of names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.pair import Pair

import fbuf

SHAPES = [
    pytest.param((None, 6, True), marks=pytest.mark.sweep),
    pytest.param((3, 4, True), marks=pytest.mark.sweep),
    (3, 4, False),
]


def newest(oracle, lane, count):
    """The names of the newest rows of a lane, the oldest first; (-1, 0) where there is none."""
    found = [(-1, 0)] * count
    for number in oracle.there(lane)[-count:]:
        row, back = oracle.lanes[lane][number], len(oracle.lanes[lane]) - number
        if not row.removed and not row.dummy:
            found[-back] = (oracle.slot(lane, number), row.generation)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_newest_rows_of_each_lane_are_named_the_oldest_first(shape):
    pair, rng = Pair(shape, autoreset="next_step"), np.random.default_rng(0)
    seen = set()
    for _ in range(30):
        pair.step(rng, (1, 3, 7), 0.3)
        ids = jax.tree.map(np.asarray, fbuf.newest_ids(pair.state, 4))
        expected = [newest(pair.oracle, lane, 4) for lane in range(pair.oracle.envs)]
        expected = np.array(expected[0] if pair.one_lane else expected)
        np.testing.assert_array_equal(ids.slot, expected[..., 0])
        np.testing.assert_array_equal(ids.generation, expected[..., 1])
        seen |= set((ids.slot >= 0).all(axis=-1).ravel().tolist())
    assert seen == {True, False}


def stored():
    """Rows 1 to 5 in a buffer of 6, of which the second ends an episode and the fourth is gone."""
    ends = jnp.array([False, True, False, False, False])
    state = fbuf.init(jnp.int32(0), 6)
    state = fbuf.add(state, jnp.arange(1, 6, dtype=jnp.int32), terminated=ends, truncated=ends)
    return fbuf.remove(state, fbuf.ids_at(state, jnp.int32([3])))


def names():
    """Ids of the third row and the second, a removed row, no row, a stale one, and one outside."""
    slots = jnp.array([[2, 1, 3], [-1, 1, 6]], jnp.int32)
    return fbuf.Ids(slots, jnp.array([[0, 0, 0], [0, 7, 0]], jnp.int32))


@pytest.mark.sweep
def test_what_names_no_row_is_masked_and_zero():
    batch = fbuf.read(stored(), names())
    assert batch.mask.tolist() == [[True, True, False], [False, False, False]]
    assert batch.data.tolist() == [[3, 2, 0], [0, 0, 0]]
    assert batch.ids.slot.tolist() == [[2, 1, -1], [-1, -1, -1]]
    assert not batch.ids.generation.any()
    for flag in (batch.terminated, batch.truncated):
        assert flag.tolist() == [[False, True, False], [False, False, False]]


def test_where_all_names_are_of_no_row_no_flag_is_set():
    """Slot 0 is read in their place, so that its flags must not come through."""
    state = fbuf.add(fbuf.init(jnp.int32(0), 2), jnp.int32([5]), terminated=jnp.array([True]))
    gone = fbuf.Ids(jnp.int32([-1, 0]), jnp.int32([0, 3]))
    batch = fbuf.read(state, gone)
    assert not any(leaf.any() for leaf in (batch.data, batch.mask, batch.terminated))


@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_of_names(time_major):
    view = fbuf.Sequence(2, boundary="pad", time_major=time_major)
    ids = jax.tree.map(jnp.ravel, names())
    batch = fbuf.read(stored(), fbuf.Ids(ids.slot.at[2].set(0), ids.generation), view=view)
    turned = jnp.transpose if time_major else lambda leaf: leaf
    rows, none = [[3, 0], [2, 0], [1, 2]], [[0, 0]] * 3
    assert turned(batch.data.item).tolist() == rows + none
    valid = [[True, False], [True, False], [True, True]]
    assert turned(batch.data.valid).tolist() == valid + [[False, False]] * 3
    ends = [[False, False], [True, False], [False, True]]
    assert turned(batch.terminated).tolist() == ends + [[False, False]] * 3
    assert batch.mask.tolist() == [True] * 3 + [False] * 3
