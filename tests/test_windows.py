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


@functools.cache
def functions():
    write = {"static_argnames": "time_major"}
    return jax.jit(fbuf.add, **write), jax.jit(fbuf.remove), jax.jit(fbuf.end_episode)


@functools.cache
def drawing():
    return jax.jit(
        lambda state, key, beta, step=None: fbuf.sample(state, key, 16, beta=beta, step=step)
    )


def marked(tree, state):
    """The marked slots that hold a row."""
    slots = np.flatnonzero(trees.marks(tree)).astype(np.int32)
    return set(slots[np.asarray(fbuf._ring.holds(state.ring, jnp.asarray(slots)))].tolist())


def agree(state, lanes, sampler):
    """The index is what a look at all rows finds, and what is drawn is what it says."""
    given = getattr(sampler, "priorities", sampler)
    options = (given.window, given.stride, given.starts == "first")
    starts, stored = lanes.starts(*options), lanes.stored()
    assert int(fbuf.size(state)) == len(stored)
    share = shares(state, lanes, sampler, starts)
    assert abs(sum(share.values()) - bool(share)) < 1e-6
    if not (isinstance(sampler, fbuf.Uniform) and sampler._window.every_row):
        assert int(fbuf.stats(state).get("starts", len(starts))) == len(starts)
    assert bool(fbuf.can_sample(state)) == bool(share)
    if isinstance(sampler, fbuf.Shuffled):
        an_epoch(state, starts)
        return
    key = jax.random.key(sum(len(rows) for rows in lanes.lanes))
    sample = drawing()(state, key, 0.7)
    assert bool(sample.mask.all()) == bool(share) == bool(sample.mask.any())
    if not share:
        assert not sample.probability.any()
        assert not sample.weight.any()
        return
    slots = np.asarray(sample.ids.slot).tolist()
    expected = [share[slot] for slot in slots]  # a slot that may not be drawn is no key
    np.testing.assert_allclose(sample.probability, expected, rtol=1e-5)
    weight = (min(expected) / np.array(expected)) ** 0.7
    np.testing.assert_allclose(sample.weight, weight, rtol=1e-4)
    for slot, item in zip(slots, np.asarray(sample.data).tolist(), strict=True):
        assert lanes.at(slot).item == item


def shares(state, lanes, sampler, starts):
    """How likely each slot is that may be drawn; what the index holds besides is what it should."""
    index, even = state.index, dict.fromkeys(starts, 1 / max(len(starts), 1))
    if isinstance(sampler, fbuf.Prioritized):
        return priorities(index, sampler, lanes, starts)
    tree = index.tree if isinstance(sampler, fbuf.Shuffled) else index.starts.tree
    assert marked(tree, state) == starts
    if isinstance(sampler, fbuf.Mixture):
        newest = lanes.newest(sampler.recent_rows) & starts
        ways = [
            (sampler.uniform, even),
            (sampler.prioritized, priorities(index.priorities, sampler.priorities, lanes, starts)),
            (sampler.recent, dict.fromkeys(newest, 1 / max(len(newest), 1))),
        ]
        whole = sum(part for part, likely in ways if likely)
        found = {}
        for part, likely in ways:
            for slot in likely if part else ():
                found[slot] = found.get(slot, 0) + part / whole * likely[slot]
        return found
    if getattr(sampler, "by", "start") == "episode":
        runs = lanes.runs(sampler.window, sampler.stride, sampler.starts == "first")
        episodes(state, lanes, runs)
        return {slot: 1 / len(runs) / len(run) for run in runs for slot in run}
    return even


def an_epoch(state, starts):
    """The batches of an epoch hold every start once."""
    found = []
    for step in range(max(-(-len(starts) // 16), 1)):
        batch = drawing()(state, jax.random.key(len(starts)), 0.7, step)
        mask = np.asarray(batch.mask)
        found += np.asarray(batch.ids.slot)[mask].tolist()
        np.testing.assert_array_equal(batch.weight, mask)
        likely = np.float32(1) / np.float32(max(len(starts), 1))
        np.testing.assert_array_equal(batch.probability, np.where(mask, likely, 0))
    assert sorted(found) == sorted(starts)


def priorities(index, sampler, lanes, starts):
    """Every leaf holds its row's priority, and those of starts are awake; how likely each is."""
    trees.check(index.tree)
    leaves = np.asarray(index.tree.leaves).reshape(-1)
    awake = sampler._window.every_row
    share = {}
    for slot in lanes.stored():
        priority = np.float32(lanes.at(slot).priority)
        assert abs(leaves[slot]) == priority
        assert np.signbit(leaves[slot]) == (slot not in starts and not awake)
        if slot in starts and priority > 0:
            share[slot] = float(priority)
    total = sum(share.values())
    top = np.asarray(index.tree.nodes[-1])[..., 0].sum()
    np.testing.assert_allclose(top, total, rtol=1e-5)
    return {slot: priority / total for slot, priority in share.items()}


def episodes(state, lanes, runs):
    """The first and the last start of every episode are marked, lane by lane."""
    order = [
        (slot % lanes.envs) * lanes.length + slot // lanes.envs for slot in range(state.capacity)
    ]
    for tree, at in ((state.index.runs.firsts, 0), (state.index.runs.lasts, -1)):
        found = np.flatnonzero(trees.marks(tree)).tolist()
        assert found == sorted(order[run[at]] for run in runs)
    assert int(state.index.runs.count) == len(runs)


seeds = st.integers(0, 2**32 - 1)
adds = st.tuples(st.just("add"), st.sampled_from([1, 3, 9]), seeds)
rows_ = st.lists(st.integers(0, 1000), min_size=3, max_size=3)
operations = st.one_of(
    adds,
    adds,
    adds,
    st.tuples(st.just("remove"), rows_),
    st.tuples(st.just("update"), rows_, seeds),
    st.tuples(st.just("end"), seeds),
    st.tuples(st.just("clear")),
)

# Environments, the length of a lane, whether they step together.
ONE, THREE, APART = (None, 6, True), (3, 4, True), (3, 4, False)
EVERY, WINDOW, LONG, STRIDE, GAPS, FIRST = (
    {},
    {"window": 2},
    {"window": 4},
    {"window": 3, "stride": 2},
    {"window": 1, "stride": 2},
    {"window": 3, "starts": "first"},
)
BY_EPISODE = {"by": "episode"}
UNIFORM = [
    *((shape, options) for shape in (ONE, THREE) for options in (WINDOW, LONG, STRIDE, FIRST)),
    *((APART, options) for options in (EVERY, WINDOW, STRIDE)),
    ((None, 5, True), WINDOW),
    (THREE, EVERY),
    (THREE, {"window": 1, "starts": "first"}),
    *((ONE, options | BY_EPISODE) for options in (EVERY, WINDOW, LONG, STRIDE, GAPS, FIRST)),
    *((THREE, options | BY_EPISODE) for options in (EVERY, WINDOW, STRIDE, GAPS)),
    *((APART, options | BY_EPISODE) for options in (EVERY, WINDOW, STRIDE)),
    ((20, 4, True), WINDOW | BY_EPISODE),  # more lanes than draws
]
PRIORITIZED = [
    *((ONE, options) for options in (WINDOW, STRIDE, FIRST)),
    *((THREE, options) for options in (WINDOW, FIRST)),
    *((APART, options) for options in (EVERY, WINDOW, STRIDE)),
]
DUMMIES = [  # with the dummies of autoreset="next_step" among the rows
    (ONE, fbuf.Uniform(window=2)),
    (THREE, fbuf.Uniform(window=3, stride=2)),
    (APART, fbuf.Uniform(window=2)),
    (ONE, fbuf.Uniform(window=3, starts="first")),
    (ONE, fbuf.Uniform(by="episode")),
    (THREE, fbuf.Uniform(window=2, by="episode")),
    (APART, fbuf.Uniform(window=2, by="episode")),
    (ONE, fbuf.Prioritized(alpha=1.0, eps=0.0, window=2)),
    (APART, fbuf.Prioritized(alpha=1.0, eps=0.0, window=3, stride=2)),
]
BY_HAND = [  # who resets the environments by hand
    (THREE, fbuf.Uniform(window=2)),
    (APART, fbuf.Uniform(window=2, by="episode")),
    (ONE, fbuf.Prioritized(alpha=1.0, eps=0.0, window=2)),
]
MIXED = [
    (ONE, EVERY),
    (ONE, LONG),
    (THREE, EVERY),
    (THREE, STRIDE),
    (APART, EVERY),
    (APART, WINDOW),
]
SHUFFLED = [
    *((ONE, o) for o in (EVERY, STRIDE, FIRST)),
    (THREE, WINDOW),
    (APART, EVERY),
    (APART, WINDOW),
]


def mixture(shape, **options):
    """All ways of a mixture, as far as there are newest rows of all environments together."""
    given_ = fbuf.Prioritized(alpha=1.0, eps=0.0, **options)
    return fbuf.Mixture(0.4, 0.3, 0.3 if shape[2] else 0.0, recent_rows=4, priorities=given_)


CASES = [
    *((shape, fbuf.Uniform(**options), "same_step") for shape, options in UNIFORM),
    *(
        (shape, fbuf.Prioritized(alpha=1.0, eps=0.0, **options), "same_step")
        for shape, options in PRIORITIZED
    ),
    *((shape, sampler, "next_step") for shape, sampler in DUMMIES),
    *((shape, sampler, "disabled") for shape, sampler in BY_HAND),
    *((shape, mixture(shape, **options), "same_step") for shape, options in MIXED),
    (THREE, mixture(THREE, window=2), "next_step"),
    *((shape, fbuf.Shuffled(**options), "same_step") for shape, options in SHUFFLED),
    (THREE, fbuf.Shuffled(window=2), "next_step"),
]


MARKED_CASES = [
    pytest.param(*case, marks=() if number % 3 == 0 else pytest.mark.sweep)
    for number, case in enumerate(CASES)
]
"""All of them; each takes a while to compile, so that most are for `make sweep`."""


@pytest.mark.parametrize(("shape", "sampler", "autoreset"), MARKED_CASES, ids=str)
@settings(max_examples=10)
@given(
    history=st.lists(operations, min_size=1, max_size=14), often=st.sampled_from([0.1, 0.5, 0.9])
)
def test_any_history(shape, sampler, autoreset, history, often):
    envs, length, lockstep = shape
    state = fbuf.init(
        jnp.int32(0),
        length * (envs or 1),
        num_envs=envs,
        sampler=sampler,
        autoreset=autoreset,
        lockstep=lockstep,
    )
    lanes, number = Lanes(envs or 1, length, autoreset), 0
    for operation in history:
        state, number = played(state, lanes, operation, often, number)
        agree(state, lanes, sampler)


def played(state, lanes, operation, often, number):
    """The state after an operation, which is done to the lanes, too."""
    envs, prioritized = (
        state.ring.num_envs,
        isinstance(state.sampler, fbuf.Prioritized | fbuf.Mixture),
    )
    add, remove, end_episode = functions()
    kind, rng = operation[0], np.random.default_rng(operation[-1] if len(operation) > 1 else 0)
    if kind == "add":
        shape = (operation[1], lanes.envs)
        items = np.arange(number, number + operation[1] * lanes.envs, dtype=np.int32).reshape(shape)
        terminated, truncated = rng.random((2, *shape)) < often / 2
        given_ = {"terminated": terminated, "truncated": truncated}
        if prioritized:
            given_["priority"] = rng.integers(0, 5, shape).astype(np.float32)
        if not state.ring.lockstep or envs is None:
            given_["mask"] = rng.random(shape) < rng.choice([0.3, 0.8, 1.0])
        lanes.add(
            items,
            terminated | truncated,
            terminated,
            given_.get("mask"),
            given_.get("priority"),
        )
        if envs is None:
            given_ = {name: value[:, 0] for name, value in given_.items()}
            state = add(state, jnp.asarray(items[:, 0]), **given_)
        else:
            state = add(state, jnp.asarray(items), **given_, time_major=True)
        return state, number + items.size
    if kind == "clear":
        lanes.clear()
        return fbuf.clear(state), number
    if kind == "end":
        chosen = rng.random(lanes.envs) < 0.5
        lanes.end_episode(chosen)
        return end_episode(state, jnp.asarray(chosen if envs else chosen[0])), number
    stored = lanes.stored()
    if stored:
        slots = [stored[n % len(stored)] for n in operation[1]]
        ids = fbuf._ring.name(state.ring, jnp.array(slots, jnp.int32), jnp.ones(3, bool))
        if kind == "remove":
            lanes.remove(slots)
            state = remove(state, ids)
        elif prioritized:
            priority = rng.integers(0, 5, 3).astype(np.float32)
            for slot, value in zip(slots, priority.tolist(), strict=True):
                lanes.at(slot).priority = value
            state = fbuf.update_priority(state, ids, jnp.asarray(priority))
    return state, number


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=7, max_size=7), st.integers(1, 3))
@settings(max_examples=100)
def test_a_mask_leaves_no_gap_in_a_window(rows, window):
    """With a mask, the rows that are left are as if they alone had been added."""
    sampler = fbuf.Uniform(window=window)
    masked = alone = fbuf.init(jnp.int32(0), 5, sampler=sampler, autoreset="next_step")
    add = functions()[0]
    for turn in range(2):
        mask, ends = (np.array(x) for x in zip(*rows[turn:] + rows[:turn], strict=True))
        items = np.arange(7, dtype=np.int32) + 10 * turn
        masked = add(masked, jnp.array(items), terminated=jnp.array(ends), mask=jnp.array(mask))
        for item, end in zip(items[mask], ends[mask], strict=True):
            alone = add(alone, jnp.array([item]), terminated=jnp.array([end]))
    there = int(alone.ring.stored[0])
    np.testing.assert_array_equal(masked.ring.cursor, alone.ring.cursor)
    np.testing.assert_array_equal(masked.ring.flags[:there], alone.ring.flags[:there])
    jax.tree.map(np.testing.assert_array_equal, masked.ring.open, alone.ring.open)
    assert int(masked.ring.removed) == int(alone.ring.removed)


SAMPLERS = [
    fbuf.Uniform(window=3),
    fbuf.Uniform(window=3, by="episode"),
    fbuf.Prioritized(alpha=1.0, eps=0.0, window=3),
]


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_draws_are_as_likely_as_they_should_be(sampler, lockstep):
    """A full ring that has gone around, with removed rows, and 200,000 draws."""
    state = fbuf.init(jnp.int32(0), 60, num_envs=3, sampler=sampler, lockstep=lockstep)
    lanes = Lanes(3, 20, "same_step")
    rng = np.random.default_rng(0)
    for number in range(4):
        items = np.arange(27, dtype=np.int32).reshape(9, 3) + 27 * number
        ends, priority = rng.random((9, 3)) < 0.15, rng.random((9, 3)).astype(np.float32)
        # In the first lane an episode goes around the seam, and another one follows.
        ends[:, 0] = (number == 3) & (np.arange(9) == 3)
        options = {"terminated": ends, "time_major": True}
        if isinstance(sampler, fbuf.Prioritized):
            options["priority"] = priority
        lanes.add(items, ends, priority=priority)
        state = fbuf.add(state, items, **options)
    slots = [7, 31]
    lanes.remove(slots)
    state = fbuf.remove(state, fbuf._ring.name(state.ring, jnp.int32(slots), jnp.ones(2, bool)))
    keys = jax.random.split(jax.random.key(0), 100)
    _, drawn = lax.scan(lambda c, k: (c, fbuf.sample(state, k, 2000).ids.slot), 0, keys)
    counts = np.bincount(np.asarray(drawn).reshape(-1), minlength=60)
    runs = lanes.runs(3)
    share = np.zeros(60)
    for run in runs:
        for slot in run:
            share[slot] = 1 / len(run) if getattr(sampler, "by", "") == "episode" else 1.0
            share[slot] *= lanes.at(slot).priority if "Prioritized" in str(sampler) else 1
    expected = share / share.sum() * 200_000
    assert len({len(run) for run in runs}) > 2  # episodes of different lengths
    around = [run for run in runs if run[0] > run[-1]]
    assert any({slot % 3 for slot in run} == {0} for run in around)
    assert sum(run[0] % 3 == 0 for run in runs) == 2
    assert counts[share == 0].sum() == 0
    assert stats.chisquare(counts[share > 0], expected[share > 0]).pvalue > 1e-4


def test_what_cannot_be_right_is_refused():
    for options, match in (
        ({"window": 0}, "window must be from 1"),
        ({"window": 2.0}, "window must be an int"),
        ({"stride": -1}, "stride must be from 1"),
        ({"starts": "last"}, "starts must be 'any' or 'first'"),
        ({"by": "row"}, "by must be 'start' or 'episode'"),
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
    with pytest.raises(ValueError, match="there is no num_envs"):
        fbuf.init(item, 12, lockstep=False)
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
    for mask, match in ((jnp.ones(2, bool), r"of shape \(3,\)"), (jnp.ones(3), "must be bool")):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.end_episode(lanes, mask)
    with pytest.raises(ValueError, match="time_major is for buffers made with num_envs"):
        fbuf.add(fbuf.init(item, 4), jnp.zeros(3), time_major=True)
