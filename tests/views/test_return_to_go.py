"""Return-to-go, and how far an episode goes: equal to a loop over the lane a row is in."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs
from support.pair import TOGETHER
from test_views import EVERY, every, item_of, played

import fbuf
from fbuf.views import episode

ALL = 10**6
GAMMA = 0.875
VIEW = fbuf.ReturnToGo(GAMMA)


@EVERY
def test_return_to_go(shape, autoreset):
    for oracle, slot, reading in every(VIEW, shape, autoreset):
        rows = oracle.ahead(slot, ALL)
        rewards = [float(item_of(row.number)["reward"]) for row in rows]
        expected = sum(GAMMA**k * reward for k, reward in enumerate(rewards))
        data = reading.data
        np.testing.assert_allclose(data.return_to_go, expected, rtol=1e-5, atol=1e-5)
        assert data.complete == rows[-1].end
        assert data.item["observation"] == rows[0].number
        assert reading.flags & 3 == rows[-1].terminated + 2 * rows[-1].truncated


@functools.cache
def reaches():
    return jax.jit(
        lambda ring, slots: (episode.remaining(ring, slots), episode.elapsed(ring, slots))
    )


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("often", [0, 0.003, 0.02, 0.5])
@pytest.mark.parametrize("steps", [0, 1, 2, 40, 299, 300, 301, 450, 600])
def test_reach_of_long_episodes(lanes, steps, often):
    """Rings of 300 steps, so that episodes end everywhere in a chunk, in any turn of the loop."""
    rng, length = np.random.default_rng(steps), 300
    size = length * lanes
    flags = rng.choice([0, 1, 2, 4, 12], size, p=[1 - often, *[often / 4] * 4]).astype(np.uint8)
    flags |= rng.choice([0, 16], size).astype(np.uint8)  # a bit that means nothing
    ring = fbuf.storage.ring.empty(size, lanes, True, "same_step", follow=False, removable=True)
    head, stored = steps % length * lanes, min(steps, length) * lanes
    cursor = jnp.array([[head], [steps // length], [stored], [0], [0]], jnp.int32)
    ring = dataclasses.replace(ring, cursor=cursor, flags=jnp.asarray(flags))
    slots = rng.integers(0, size, 64)
    ahead, behind = (np.asarray(x) for x in reaches()(ring, jnp.asarray(slots, jnp.int32)))
    for at, slot in enumerate(slots):
        number = (slot - head) // lanes % length - (length - stored // lanes)
        lane = [flags[(head + slot % lanes + k * lanes) % size] for k in range(length)]
        lane = lane[length - stored // lanes :]
        if number < 0 or lane[number] & 4:
            assert 0 <= ahead[at] < length  # never drawn; whatever it says, it says it soon
            assert 0 <= behind[at] < length
            continue
        last = first = number
        while not lane[last] & 3 and last + 1 < len(lane) and not lane[last + 1] & 4:
            last += 1
        while first > 0 and not lane[first - 1] & 7:
            first -= 1
        assert (ahead[at], behind[at]) == (last - number, number - first)


@pytest.mark.parametrize("rows", [1, 2, *range(31, 36), *range(63, 68)])
def test_a_removed_row_at_the_edge_of_a_chunk(rows):
    ring = fbuf.storage.ring.empty(300, 1, True, "same_step", follow=False, removable=True)
    ring = dataclasses.replace(ring, cursor=jnp.array([[rows], [0], [rows], [0], [0]], jnp.int32))
    for removed, expected in ((rows, (rows - 1, 0)), (rows - 1, (max(rows - 2, 0), 0))):
        flags = jnp.zeros(300, jnp.uint8).at[removed].set(4)
        found = reaches()(dataclasses.replace(ring, flags=flags), jnp.zeros(1, jnp.int32))
        assert tuple(int(x[0]) for x in found) == expected
    newest = jnp.full(1, rows - 1, jnp.int32)
    for removed, expected in ((rows, rows - 1), (0, max(rows - 2, 0))):
        flags = jnp.zeros(300, jnp.uint8).at[removed].set(4)
        found = reaches()(dataclasses.replace(ring, flags=flags), newest)
        assert tuple(int(x[0]) for x in found) == (0, expected)


@pytest.mark.sweep
def test_what_is_behind_the_end_does_not_leak():
    state = fbuf.init({"reward": 0.0}, 64, sampler=fbuf.Uniform(first_only=True))
    reward = jnp.array([1.0, 2.0, jnp.nan, 5.0])
    ends = jnp.array([False, True, False, False])
    state = fbuf.add(state, {"reward": reward}, terminated=ends)
    batch = fbuf.sample(state, jax.random.key(0), 32, view=VIEW)
    first = np.asarray(batch.ids.slot) == 0
    assert first.any()
    assert not first.all()
    np.testing.assert_array_equal(
        batch.data.return_to_go, np.where(first, 1 + GAMMA * 2, np.nan).astype(np.float32)
    )
    np.testing.assert_array_equal(batch.data.complete, first)
    np.testing.assert_array_equal(batch.terminated, first)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("gamma", "dtype"),
    [
        (0.999, "bool"),
        pytest.param(1.0, "float16", marks=pytest.mark.sweep),
        pytest.param(0, "int32", marks=pytest.mark.sweep),
        pytest.param(1, "int32", marks=pytest.mark.sweep),
    ],
)
def test_long_episodes_are_summed_up_exactly_enough(gamma, dtype):
    state = fbuf.init({"reward": jnp.zeros((), dtype)}, 5000, sampler=fbuf.Uniform(first_only=True))
    reward = np.random.default_rng(0).integers(0, 2, 5000).astype(dtype)
    state = fbuf.add(state, {"reward": jnp.asarray(reward)})
    data = fbuf.sample(state, jax.random.key(0), 3, view=fbuf.ReturnToGo(gamma)).data
    expected = np.sum(reward * float(gamma) ** np.arange(5000))
    np.testing.assert_allclose(data.return_to_go, expected, rtol=1e-6)
    assert data.return_to_go.dtype == jnp.float32


@pytest.mark.sweep
@pytest.mark.parametrize(
    "then", [pytest.param("nothing added", marks=pytest.mark.sweep), "all removed"]
)
def test_where_nothing_can_be_drawn_nothing_happens(then):
    state = fbuf.init({"reward": 0.0}, 64)
    if then == "all removed":
        state = fbuf.add(state, {"reward": jnp.ones(3)})
        state = fbuf.remove(state, fbuf.Ids(jnp.arange(3), jnp.zeros(3, jnp.int32)))
    batch = fbuf.sample(state, jax.random.key(0), 8, view=VIEW)
    assert not batch.mask.any()
    assert not (batch.terminated | batch.truncated).any()
    assert not batch.data.complete.any()
    np.testing.assert_array_equal(batch.data.return_to_go, 0)


@pytest.mark.sweep
def test_the_same_in_every_way():
    pair = played(TOGETHER, "next_step", 4, 0.15)
    draw = functools.partial(fbuf.sample, batch_size=64, view=VIEW)
    keys = jax.random.split(jax.random.key(1), 2)
    eager = programs.every_way(draw, pair.state, keys)
    assert eager.mask.all()
    assert 0 < eager.data.complete.mean() < 1


def test_what_cannot_be_right_is_refused():
    for arguments, error, match in (
        ({"gamma": 1.5}, ValueError, "fbuf.ReturnToGo: gamma must be from 0 to 1"),
        ({"gamma": float("nan")}, ValueError, "gamma must be from 0 to 1"),
        ({"gamma": "0.9"}, TypeError, "gamma must be a Python number"),
        ({"gamma": True}, TypeError, "gamma must be a Python number"),
        ({"gamma": 0.9, "fields": "reward"}, TypeError, "fields must be a tuple of names"),
    ):
        with pytest.raises(error, match=match):
            fbuf.ReturnToGo(**arguments)
    item = {"x": jnp.zeros(3), "c": jnp.zeros((), jnp.complex64), "deep": {"r": jnp.float32(0)}}
    item["one"] = jnp.zeros((1, 1))
    state = fbuf.add(fbuf.init(item, 8), item)
    for name, match in (
        ("reward", "reward names 'reward', but the items of this buffer have no such field"),
        ("x", r"reward='x' must name a field that is one real number, got float32\[3\]; keep"),
        ("c", r"must name a field that is one real number, got complex64\[\]; keep"),
        ("one", r"got float32\[1, 1\]; drop its axes, or look whether rows were given with one"),
        ("deep", "must name a field that is one real number, got {'r'"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.sample(state, jax.random.key(0), 2, view=fbuf.ReturnToGo(0.9, reward=name))
    view = fbuf.ReturnToGo(0.9, reward="deep.r", fields=("x",))
    assert list(fbuf.sample(state, jax.random.key(0), 2, view=view).data.item) == ["x"]
