"""The rows around a row, equal to those of a list in any history."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs, restored
from support.pair import Pair, ShardedPair

import fbuf
from fbuf import sharded

SWEEP = pytest.mark.sweep
STEPS = (-3, 0, 1, -1, 3, 2)
ONE, THREE, APART = (None, 9, True), (3, 7, True), (3, 7, False)
CASES = [
    (APART, "next_step", range(5)),
    *(
        pytest.param(shape, autoreset, range(5, 45), marks=SWEEP)
        for shape, autoreset in [
            (ONE, "same_step"),
            (ONE, "next_step"),
            (THREE, "next_step"),
            (THREE, "disabled"),
            (APART, "same_step"),
            (APART, "next_step"),
        ]
    ),
]
named = programs.compiled("neighbours")
over_shards = programs.compiled("neighbours", module=sharded)


def agree(pair, rng, call, count):
    """The neighbours of every row, and of names that are stale or strange."""
    oracle = pair.oracle
    names = [(slot, oracle.at(slot).generation) for slot in oracle.stored()]
    names += pair.ids(rng, 8, odd=True)
    names = (names + [(-1, 0)] * count)[:count]
    ids = jax.tree.map(np.asarray, call(pair, pair.named(names)))
    slot = ids.slot
    if hasattr(ids, "shard"):
        own = pair.slots_of_shard
        assert (ids.shard[slot < 0] == -1).all()
        slot = np.where(slot < 0, slot, ids.shard * own + slot)
    assert slot.shape == (count, len(STEPS))
    for name, slots, generations in zip(names, slot, ids.generation, strict=True):
        expected = oracle.neighbours(name, STEPS)
        assert list(zip(slots.tolist(), generations.tolist(), strict=True)) == expected, name


def history(pair, seed, call, between=None, count=40):
    rng, often = np.random.default_rng(seed), (0.1, 0.3, 0.6)[seed % 3]
    for _ in range(12):
        pair.step(rng, (3, 9), often, odd=True)
        agree(pair, rng, call, count)
        if between is not None:
            between(pair, rng)


def plain(pair, ids):
    return named(pair.state, ids, steps=STEPS)


@pytest.mark.parametrize(("shape", "autoreset", "seeds"), CASES)
def test_any_history(shape, autoreset, seeds):
    for seed in seeds:
        history(Pair(shape, fbuf.Uniform(), autoreset), seed, plain)


@SWEEP
@pytest.mark.parametrize("shape", [ONE, THREE])
def test_any_history_with_saves(tmp_path, shape):
    for seed in range(10):
        path = tmp_path / str(seed)

        def saved(pair, rng, path=path):
            if rng.random() < 0.4:
                fbuf.save(path, pair.state)
                pair.state = restored.load(path).state

        history(Pair(shape), seed, plain, saved)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(
    ("shape", "autoreset", "seeds"),
    [
        ((4, 7, False), "same_step", range(2)),
        pytest.param((4, 7, False), "next_step", range(2, 27), marks=SWEEP),
        pytest.param((8, 7, True), "next_step", range(25), marks=SWEEP),
    ],
)
def test_any_history_over_shards(shape, autoreset, seeds):
    call = lambda pair, ids: over_shards(pair.state, ids, steps=STEPS)
    for seed in seeds:
        history(ShardedPair(shape, fbuf.Uniform(), autoreset), seed, call, count=64)


def test_a_resize_keeps_neighbours_neighbours():
    state = fbuf.init(jnp.int32(0), 12, num_envs=2)
    numbers = np.arange(20, dtype=np.int32).reshape(2, 10)  # the newest 6 of each stay
    state = fbuf.add(state, numbers, truncated=numbers % 10 == 6)
    for capacity in (8, 30):
        other = fbuf.resize(state, capacity)
        ids = fbuf.newest_ids(other, 4)
        found = fbuf.read(other, fbuf.neighbours(other, ids, (-2, -1, 1)))
        row = numbers[:, 6:, None]
        expected = row + np.array([-2, -1, 1])
        there = (expected // 10 == row // 10) & ((row % 10 < 7) == (expected % 10 < 7))
        there &= expected % 10 >= 10 - min(capacity // 2, 6)
        np.testing.assert_array_equal(found.mask, there)
        np.testing.assert_array_equal(found.data, np.where(there, expected, 0))


def filled(**options):
    state = fbuf.init(jnp.int32(0), 8, **options)
    ends = jnp.arange(11) % 4 == 3
    return fbuf.add(state, jnp.arange(11, dtype=jnp.int32), terminated=ends)


@pytest.mark.parametrize(
    "steps", [(0,), (-1,), (1,), (2, 3), (-3, -2), range(-3, 4), [2, -2], np.arange(-2, 3)], ids=str
)
def test_steps_of_any_kind_on_any_side(steps):
    state = filled()
    ids = fbuf.newest_ids(state, 8)
    found = fbuf.read(state, fbuf.neighbours(state, ids, steps))
    numbers = np.arange(3, 11)[:, None]
    expected = numbers + np.array(steps)
    there = (expected // 4 == numbers // 4) & (expected >= 3) & (expected <= 10)
    np.testing.assert_array_equal(found.mask, there)
    np.testing.assert_array_equal(found.data, np.where(there, expected, 0))


def test_a_removed_row_is_where_it_stops():
    state = filled()
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.int32([5])))
    ids = fbuf.newest_ids(state, 8)
    found = fbuf.read(state, fbuf.neighbours(state, ids, (-2, -1, 0, 1, 2)))
    assert found.data[1].tolist() == [0, 0, 4, 0, 0]  # before row 5, though row 6 is there
    assert found.data[3].tolist() == [0, 0, 6, 7, 0]  # and behind it
    assert not found.mask[2].any()


def test_any_shape_and_every_way():
    state = filled()
    ids = jax.tree.map(lambda leaf: leaf.reshape(2, 4), fbuf.newest_ids(state, 8))
    expected = fbuf.neighbours(state, ids, (-1, 1))
    assert expected.slot.shape == (2, 4, 2)
    one = jax.tree.map(lambda leaf: leaf[0, 1], ids)
    assert fbuf.neighbours(state, one, (-1, 1)).slot.shape == (2,)
    call = lambda ids: fbuf.neighbours(state, ids, steps=(-1, 1))
    for way in (jax.jit(call), jax.vmap(call), lambda ids: jax.lax.map(call, ids)):
        found = way(ids)
        np.testing.assert_array_equal(found.slot, expected.slot)
        np.testing.assert_array_equal(found.generation, expected.generation)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    many = jax.vmap(lambda s, i: fbuf.neighbours(s, i, (-1, 1)))(states, ids)
    np.testing.assert_array_equal(many.slot, expected.slot)
    with jax.enable_x64(True):
        assert fbuf.neighbours(state, ids, np.array([-1, 1])).slot.dtype == jnp.int32


def test_priorities_that_spread_to_the_rows_before():
    """As in prioritised sequence experience replay: no priority falls, the largest counts."""
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
    state = filled(sampler=sampler)
    state = fbuf.update_priority(state, fbuf.newest_ids(state, 8), np.full(8, 1.5, np.float32))
    ids = fbuf.Ids(*(leaf[::-1] for leaf in jax.tree.leaves(fbuf.newest_ids(state, 2))))
    around = fbuf.neighbours(state, ids, range(-2, 1))  # of rows 10 and 9, in the episode from 8
    decay = 0.5 ** np.arange(2, -1, -1, dtype=np.float32)
    old = fbuf.stats(state)["priority_total"] * fbuf.probability(state, around)
    new = jnp.maximum(np.array([[8.0], [2.0]], np.float32) * decay[None], old)
    order = jnp.argsort(new.reshape(-1))
    spread = jax.tree.map(lambda leaf: leaf.reshape(-1)[order], around)
    state = fbuf.update_priority(state, spread, new.reshape(-1)[order])
    assert int(state.fault) == 0
    likely = fbuf.probability(state, fbuf.newest_ids(state, 8))
    expected = np.array([1.5] * 5 + [2.0, 4.0, 8.0])
    np.testing.assert_allclose(likely, expected / expected.sum(), rtol=1e-6)


MISUSE = [
    ((), ValueError, "steps must have at least one number, got none"),
    (3, TypeError, "steps must be a sequence of ints, such as range"),
    ("12", TypeError, "steps must be a sequence of ints"),
    ({1, 2}, TypeError, "steps must be a sequence of ints"),
    ((0.5,), TypeError, "each of steps must be an int, got 0.5"),
    ((True,), TypeError, "each of steps must be an int, got True"),
    (np.ones((2, 2), int), TypeError, r"each of steps must be an int, got \[1, 1\]"),
    ((1 << 17,), ValueError, "each of steps must be from -65536 to 65536"),
    (range(-4, 5), ValueError, "steps span 9 steps, but a lane of this buffer has room for 8"),
    ((8,), ValueError, "steps span 9 steps"),
]


@pytest.mark.parametrize(("steps", "error", "message"), MISUSE)
def test_what_is_refused(steps, error, message):
    state = filled()
    ids = fbuf.newest_ids(state, 2)
    fbuf.neighbours(state, ids, (0, 1))  # a tuple is known by then
    with pytest.raises(error, match=r"fbuf\.neighbours: " + message):
        fbuf.neighbours(state, ids, steps)


def test_traced_steps_and_other_ids_are_refused():
    state = filled()
    ids = fbuf.newest_ids(state, 2)
    with pytest.raises(TypeError, match=r"fbuf\.neighbours: steps is traced.*give ints"):
        jax.jit(fbuf.neighbours)(state, ids, jnp.arange(2))
    with pytest.raises(TypeError, match=r"fbuf\.neighbours: ids must be a fbuf\.Ids"):
        fbuf.neighbours(state, ids.slot, (1,))
    with pytest.raises(ValueError, match="ids is empty"):
        fbuf.neighbours(state, jax.tree.map(lambda leaf: leaf[:0], ids), (1,))
    spread = sharded.init(jnp.int32(0), 8, mesh=jax.make_mesh((1,), ("data",)))
    with pytest.raises(TypeError, match=r"ids must be a fbuf\.sharded\.ShardedIds"):
        fbuf.neighbours(spread, ids, (1,))
    strange = dataclasses.replace(ids, slot=jnp.array([-1, 99], jnp.int32))
    assert fbuf.neighbours(state, strange, (0, 1)).slot.tolist() == [[-1, -1]] * 2
    assert int(state.fault) == 0
