"""Windows: the starts kept at write time are those that a look at all rows would find."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trees
from hypothesis import given, settings
from jax import lax
from lanes import Lanes
from scipy import stats

import fbuf
from fbuf._ring import START


@functools.cache
def functions():
    return jax.jit(fbuf.add, static_argnames="time_major"), jax.jit(fbuf.remove)


def agree(state, lanes, sampler):
    expected = lanes.starts(sampler.window, sampler.stride, sampler.starts == "first")
    flags = np.asarray(state.ring.flags) & START > 0
    there = np.flatnonzero(flags[: int(state.ring.stored)])
    assert set(there.tolist()) == expected
    trees.check_counts(state.index.tree, flags)
    total = state.index.total
    assert len(expected) == int(state.ring.stored - state.ring.removed if total is None else total)
    assert int(fbuf.size(state)) == len(lanes.stored())
    assert bool(fbuf.can_sample(state)) == bool(expected)
    sample = fbuf.sample(state, jax.random.key(int(state.ring.head)), 8)
    assert bool(sample.mask.all()) == bool(expected) == bool(sample.mask.any())
    if expected:
        assert set(np.asarray(sample.ids.slot).tolist()) <= expected
        np.testing.assert_allclose(sample.probability, 1 / len(expected), rtol=1e-6)
        for slot, item in zip(sample.ids.slot.tolist(), sample.data.tolist(), strict=True):
            assert lanes.at(slot).item == item


STEPS = [1, 2, 3, 7]
often_ = st.sampled_from([0.1, 0.5, 0.9])
operations = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(STEPS), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("add"), st.sampled_from(STEPS), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("remove"), st.lists(st.integers(0, 1000), min_size=3, max_size=3)),
    st.tuples(st.just("clear")),
)

SHAPES = [(None, 5), (None, 6), (3, 4), (2, 6)]  # environments, and the length of a lane
SAMPLERS = [
    {"window": 1},
    {"window": 2},
    {"window": 3, "stride": 2},
    {"window": 4},
    {"window": 3, "starts": "first"},
    {"window": 1, "starts": "first"},
]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("options", SAMPLERS, ids=str)
@pytest.mark.parametrize(("envs", "length"), SHAPES)
@settings(max_examples=6)
@given(
    history=st.lists(operations, min_size=1, max_size=14), often=st.sampled_from([0.1, 0.5, 0.9])
)
def test_any_history(envs, length, options, autoreset, history, often):
    if length % options.get("stride", 1):
        return
    sampler, count = fbuf.Uniform(**options), envs or 1
    state = fbuf.init(
        jnp.int32(0), length * count, num_envs=envs, sampler=sampler, autoreset=autoreset
    )
    lanes, number = Lanes(count, length, autoreset), 0
    add, remove = functions()
    for operation in history:
        if operation[0] == "add":
            rng = np.random.default_rng(operation[2])
            shape = (operation[1], count)
            items = np.arange(number, number + operation[1] * count, dtype=np.int32).reshape(shape)
            number += items.size
            terminated, truncated = rng.random((2, *shape)) < often / 2
            lanes.add(items, terminated | truncated)
            given_ = [x.T if envs else x[:, 0] for x in (items, terminated, truncated)]
            if envs and rng.random() < 0.5:
                items, terminated, truncated = (jnp.asarray(x.T) for x in given_)
                state = add(
                    state, items, terminated=terminated, truncated=truncated, time_major=True
                )
            else:
                items, terminated, truncated = map(jnp.asarray, given_)
                state = add(state, items, terminated=terminated, truncated=truncated)
        elif operation[0] == "clear":
            lanes.clear()
            state = fbuf.clear(state)
        elif lanes.stored():
            slots = [lanes.stored()[n % len(lanes.stored())] for n in operation[1]]
            lanes.remove(slots)
            chosen = jnp.array(slots, jnp.int32)
            state = remove(state, fbuf._ring.name(state.ring, chosen, jnp.ones(3, bool)))
        agree(state, lanes, sampler)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=7, max_size=7), st.integers(1, 3))
@settings(max_examples=100)
def test_a_mask_leaves_no_gap_in_a_window(rows, window):
    """With a mask, the rows that are left are as if they alone had been added."""
    sampler = fbuf.Uniform(window=window)
    masked = alone = fbuf.init(jnp.int32(0), 5, sampler=sampler, autoreset="next_step")
    add, _ = functions()
    for turn in range(2):
        mask, ends = (np.array(x) for x in zip(*rows[turn:] + rows[:turn], strict=True))
        items = np.arange(7, dtype=np.int32) + 10 * turn
        masked = add(masked, jnp.array(items), terminated=jnp.array(ends), mask=jnp.array(mask))
        for item, end in zip(items[mask], ends[mask], strict=True):
            alone = add(alone, jnp.array([item]), terminated=jnp.array([end]))
    there = int(alone.ring.stored)
    np.testing.assert_array_equal(masked.ring.cursor, alone.ring.cursor)
    np.testing.assert_array_equal(masked.ring.flags[:there], alone.ring.flags[:there])
    jax.tree.map(np.testing.assert_array_equal, masked.ring.open, alone.ring.open)
    assert int(masked.ring.removed) == int(alone.ring.removed)


prioritised = st.one_of(
    operations,
    st.tuples(st.just("update"), st.lists(st.integers(0, 1000), min_size=3, max_size=3)),
)


def agree_by_priority(state, lanes, sampler):
    tree, stored = state.index.tree, lanes.stored()
    trees.check(tree)
    starts = lanes.starts(sampler.window, sampler.stride, sampler.starts == "first")
    leaves = np.asarray(tree.leaves).reshape(-1)
    expected = np.zeros(state.capacity)
    for slot in stored:
        priority = lanes.at(slot).priority
        assert abs(leaves[slot]) == np.float32(priority)
        assert np.signbit(leaves[slot]) == (slot not in starts)
        expected[slot] = priority if slot in starts else 0
    total = expected.sum()
    np.testing.assert_allclose(np.asarray(tree.nodes[-1])[..., 0].sum(), total, rtol=1e-5)
    sample = fbuf.sample(state, jax.random.key(int(state.ring.head)), 8, beta=1.0)
    assert bool(sample.mask.all()) == bool(total) == bool(sample.mask.any())
    if total:
        share = expected[np.asarray(sample.ids.slot)] / total
        assert (share > 0).all()
        np.testing.assert_allclose(sample.probability, share, rtol=1e-5)
        np.testing.assert_allclose(sample.weight, share.min() / share, rtol=1e-4)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("options", [SAMPLERS[1], SAMPLERS[2], SAMPLERS[4], SAMPLERS[5]], ids=str)
@pytest.mark.parametrize(("envs", "length"), [(None, 6), (3, 4)])
@settings(max_examples=6)
@given(history=st.lists(prioritised, min_size=1, max_size=14), often=often_)
def test_any_history_by_priority(envs, length, options, autoreset, history, often):
    sampler, count = fbuf.Prioritized(alpha=1.0, eps=0.0, **options), envs or 1
    state = fbuf.init(
        jnp.int32(0), length * count, num_envs=envs, sampler=sampler, autoreset=autoreset
    )
    lanes = Lanes(count, length, autoreset)
    add, remove = functions()
    for operation in history:
        if operation[0] == "add":
            rng = np.random.default_rng(operation[2])
            shape = (operation[1], count)
            items, ends = np.zeros(shape, np.int32), rng.random(shape) < often
            given_ = priority = rng.integers(0, 5, shape).astype(np.float32)
            if operation[2] % 2:
                rows = [lanes.at(slot).priority for slot in lanes.stored()]
                priority, given_ = np.full(shape, max(rows, default=0) or 1), None
            before = [len(rows) for rows in lanes.lanes]
            lanes.add(items, ends)
            for lane, rows in enumerate(lanes.lanes):
                for at in range(before[lane], len(rows)):
                    if not rows[at].dummy:
                        rows[at].priority = float(priority[at - before[lane], lane])
            turn = (lambda x: x.T) if envs else (lambda x: x[:, 0])
            given_ = None if given_ is None else jnp.asarray(turn(given_))
            items, ends = jnp.asarray(turn(items)), jnp.asarray(turn(ends))
            state = add(state, items, truncated=ends, priority=given_)
        elif operation[0] == "clear":
            lanes.clear()
            state = fbuf.clear(state)
        elif lanes.stored():
            slots = [lanes.stored()[n % len(lanes.stored())] for n in operation[1]]
            ids = fbuf._ring.name(state.ring, jnp.array(slots, jnp.int32), jnp.ones(3, bool))
            if operation[0] == "remove":
                lanes.remove(slots)
                state = remove(state, ids)
            else:
                new = [float(n % 7) for n in operation[1]]
                for slot, priority in zip(slots, new, strict=True):
                    lanes.at(slot).priority = priority
                state = fbuf.update_priority(state, ids, jnp.array(new))
        agree_by_priority(state, lanes, sampler)


def test_every_start_is_drawn_alike():
    sampler = fbuf.Uniform(window=3)
    state = fbuf.init(jnp.int32(0), 60, num_envs=3, sampler=sampler)
    rng = np.random.default_rng(0)
    lanes = Lanes(3, 20, "same_step")
    for number in range(4):
        items = np.arange(27, dtype=np.int32).reshape(9, 3) + 27 * number
        ends = rng.random((9, 3)) < 0.15
        lanes.add(items, ends)
        state = fbuf.add(state, jnp.array(items), terminated=jnp.array(ends), time_major=True)
    keys = jax.random.split(jax.random.key(0), 100)
    _, slots = lax.scan(lambda c, k: (c, fbuf.sample(state, k, 2000).ids.slot), 0, keys)
    counts = np.bincount(np.asarray(slots).reshape(-1), minlength=60)
    starts = sorted(lanes.starts(3, 1, False))
    assert counts.sum() == counts[starts].sum() == 200_000
    assert stats.chisquare(counts[starts]).pvalue > 1e-4


def test_what_cannot_be_right_is_refused():
    for options, match in (
        ({"window": 0}, "window must be from 1"),
        ({"window": 2.0}, "window must be an int"),
        ({"stride": -1}, "stride must be from 1"),
        ({"starts": "last"}, "starts must be 'any' or 'first'"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.Uniform(**options)
    item = jnp.zeros(())
    for sampler, envs, match in (
        (fbuf.Uniform(window=5), 3, "longer than a lane, which has 4 rows"),
        (fbuf.Uniform(stride=3), 3, "must divide the length of a lane, 4 rows"),
        (fbuf.Uniform(), 5, "capacity must be a multiple of num_envs, 5.*take 10"),
        (fbuf.Uniform(), 0, "num_envs must be from 1 to 12"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.init(item, 12, num_envs=envs, sampler=sampler)
    with pytest.raises(ValueError, match="autoreset must be one of"):
        fbuf.init(item, 12, autoreset="never")
    lanes = fbuf.init(item, 12, num_envs=3)
    for items, options, match in (
        (jnp.zeros(()), {}, r"\(3,\) for one step of all environments, or \(3, T\)"),
        (jnp.zeros((4,)), {}, r"\(3,\) for one step"),
        (jnp.zeros((2, 3)), {}, r"\(3, T\) for T"),
        (jnp.zeros((3, 2)), {"time_major": True}, r"\(T, 3\) for T"),
        (jnp.zeros((3, 2)), {"terminated": jnp.zeros((2, 3), bool)}, r"shape \(3, 2\)"),
        (jnp.zeros((3,)), {"mask": jnp.ones(3, bool)}, "step together"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.add(lanes, items, **options)
    with pytest.raises(ValueError, match="time_major is for buffers made with num_envs"):
        fbuf.add(fbuf.init(item, 4), jnp.zeros(3), time_major=True)
