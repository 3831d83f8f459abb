"""The episodes in the flags of rows, on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.storage.episodes import spans
from fbuf.storage.stored_lanes import stored_lanes


def one_by_one(ends, outside, cut, unfinished, overwritten):
    """The episodes of `spans`, row by row."""
    found, current = [], None
    for row in range(len(ends)):
        if outside[row]:
            current = None
            continue
        if current is None:
            current = [row, row, not cut[row] and not (overwritten and row == 0), False]
            found.append(current)
        current[1], current[3] = row, bool(ends[row]) and not unfinished[row]
        if ends[row]:
            current = None
    return found


@pytest.mark.parametrize("overwritten", [False, True])
def test_spans_are_those_found_row_by_row(overwritten):
    rng = np.random.default_rng(0)
    for rows in [0, 1, 2, 3, 8, 20] * 20:
        outside = rng.random(rows) < 0.3
        ends, cut = (rng.random(rows) < 0.4) & ~outside, rng.random(rows) < 0.2
        given = ends, outside, cut, rng.random(rows) < 0.2, overwritten
        found = [list(of) for of in zip(*spans(*given), strict=True)]
        assert found == one_by_one(*given)


@pytest.mark.first(3)
@pytest.mark.parametrize("steps", [3, 8, 11])
@pytest.mark.parametrize(("envs", "lockstep"), [(None, True), (3, True), (3, False)])
def test_lanes_have_their_rows_in_order(envs, lockstep, steps):
    lanes = envs or 1
    state = fbuf.init(jnp.int32(0), 8 * lanes, num_envs=envs, lockstep=lockstep)
    number = jnp.arange(lanes * steps, dtype=jnp.int32).reshape(lanes, steps)
    ends = np.arange(steps) % 4 == 3
    rows, ends = (number, np.tile(ends, (lanes, 1))) if envs else (number[0], ends)
    state = fbuf.add(state, rows, terminated=ends)
    stored = np.zeros(8 * lanes, int)
    there = fbuf.rows(state)
    stored[np.asarray(there.ids.slot)[np.asarray(there.mask)]] = there.data[there.mask]
    for lane, expected in zip(stored_lanes(state.ring), np.asarray(number), strict=True):
        kept = expected[-8:]
        assert stored[lane.slots].tolist() == kept.tolist()
        last = np.flatnonzero(kept % steps % 4 == 3)
        assert lane.episodes.last[lane.episodes.ended].tolist() == last.tolist()
        assert lane.episodes.whole[0] == (steps <= 8)
        assert lane.episodes.whole[1:].all()


def test_removed_rows_cut_an_episode_in_two():
    state = fbuf.add(fbuf.init(jnp.int32(0), 8), jnp.arange(11, dtype=jnp.int32))
    state = fbuf.add(state, jnp.arange(2, dtype=jnp.int32), terminated=np.array([True, False]))
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([6, 7, 1], jnp.int32)))
    (lane,) = stored_lanes(state.ring)
    assert lane.slots.tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert [slots.tolist() for slots in lane.unbroken()] == [[5], [0], [2, 3], [4]]
    assert lane.episodes.first.tolist() == [0, 7]
