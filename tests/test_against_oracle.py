"""Any history of operations, held against the oracle; everything is compared."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support import inside, restored, tags
from support.oracle import told
from support.pair import Pair, ShardedPair

import fbuf

BATCH = 16

# Environments, the length of a lane, whether they step together.
ONE, THREE, APART = (None, 6, True), (3, 4, True), (3, 4, False)
MANY = (20, 4, True)
"""More lanes than draws."""
EXACT = {"alpha": 1.0, "eps": 0.0}
STRIDE, GAPS = {"window": 3, "stride": 2}, {"window": 1, "stride": 2}
FIRST = {"window": 3, "first_only": True}
WINDOW, LONG = {"window": 2}, {"window": 4}
SHORT = {"window": 3, "strict": False}
BY_EPISODE = {"by": "episode"}


def uniform(**options):
    return fbuf.Uniform(**options)


def prioritized(**options):
    return fbuf.Prioritized(**(EXACT | options))


def mixture(recent=0.3, **options):
    return fbuf.Mixture(
        0.4, prioritized=0.3, recent=recent, recent_rows=4, priorities=prioritized(**options)
    )


CASES = [  # shapes, samplers, resets and sizes of adds: each with each in one of these
    ((None, 17, True), uniform(), "same_step", (6, 37)),
    ((None, 5, True), fbuf.Prioritized(alpha=0.7, eps=1e-3, floor=1.5), "same_step", (6, 9)),
    (
        (None, 1, True),
        prioritized(alpha=0.5, normalize="buffer", new_priority="largest_ever"),
        "next_step",
        (6, 9),
    ),
    ((None, 300, True), prioritized(normalize="buffer"), "same_step", (70, 170)),
    ((3, 6, True), uniform(**STRIDE), "next_step", (3, 9)),
    (ONE, uniform(**STRIDE, **BY_EPISODE), "same_step", (3, 9)),
    (THREE, uniform(**WINDOW, **BY_EPISODE), "next_step", (3, 9)),
    (APART, uniform(**WINDOW, **BY_EPISODE), "disabled", (3, 9)),
    (THREE, prioritized(**FIRST), "same_step", (3, 9)),
    (APART, prioritized(**STRIDE), "next_step", (3, 9)),
    (THREE, mixture(**WINDOW), "next_step", (3, 9)),
    (ONE, fbuf.Shuffled(**FIRST), "same_step", (3, 9)),
    (APART, fbuf.Shuffled(), "next_step", (3, 9)),
    (ONE, uniform(**GAPS, **BY_EPISODE), "disabled", (3, 9)),
    (THREE, uniform(**SHORT, **BY_EPISODE), "next_step", (3, 9)),
]
SOON = (1, 7, 9)
"""The cases of `make test`, with few seeds."""
SWEPT = [
    ((None, 5, True), uniform(), "next_step"),
    ((None, 17, True), prioritized(alpha=0.5, new_priority="largest_ever"), "same_step"),
    *((ONE, uniform(**o), "same_step") for o in (WINDOW, LONG, STRIDE, FIRST)),
    *(
        (THREE, uniform(**o), "same_step")
        for o in ({}, WINDOW, LONG, FIRST, {"window": 1, "first_only": True})
    ),
    *((APART, uniform(**o), "next_step") for o in ({}, WINDOW, STRIDE)),
    *((ONE, uniform(**o, **BY_EPISODE), "next_step") for o in ({}, WINDOW, LONG, FIRST)),
    *((THREE, uniform(**o, **BY_EPISODE), "same_step") for o in ({}, STRIDE, GAPS)),
    *((APART, uniform(**o, **BY_EPISODE), "same_step") for o in ({}, STRIDE)),
    (MANY, uniform(**WINDOW, **BY_EPISODE), "same_step"),
    *((ONE, prioritized(**o), "same_step") for o in (WINDOW, STRIDE, FIRST)),
    *((THREE, prioritized(**o), "disabled") for o in ({}, WINDOW)),
    *((APART, prioritized(**o), "same_step") for o in ({}, WINDOW)),
    *((ONE, mixture(**o), "same_step") for o in ({}, LONG)),
    *((THREE, mixture(**o), "next_step") for o in ({}, STRIDE)),
    (ONE, mixture(**WINDOW), "next_step"),
    *((APART, mixture(0.0, **o), "same_step") for o in ({}, WINDOW)),
    *((ONE, fbuf.Shuffled(**o), "same_step") for o in ({}, STRIDE)),
    (THREE, fbuf.Shuffled(**WINDOW), "next_step"),
    (APART, fbuf.Shuffled(**WINDOW), "same_step"),
    (THREE, uniform(**SHORT), "same_step"),
    (APART, uniform(**SHORT, **BY_EPISODE), "same_step"),
    (ONE, uniform(**SHORT, **BY_EPISODE, stride=2), "next_step"),
    (ONE, uniform(**SHORT, first_only=True), "same_step"),
    *((shape, prioritized(**SHORT), "same_step") for shape in (ONE, APART)),
    (ONE, mixture(**SHORT), "next_step"),
    (ONE, fbuf.Shuffled(**SHORT, **BY_EPISODE), "same_step"),
    (THREE, fbuf.Shuffled(**WINDOW, **BY_EPISODE), "next_step"),
]
MARKED = [
    *(pytest.param(*CASES[n], range(3), id=f"case{n:02}") for n in SOON),
    *(
        pytest.param(*case, range(8), id=f"every{n:02}", marks=pytest.mark.optimised)
        for n, case in enumerate(CASES)
    ),
    *(
        pytest.param(*case, (1, 3, 9), range(8), id=f"swept{n:02}", marks=pytest.mark.sweep)
        for n, case in enumerate(SWEPT)
    ),
]


@pytest.mark.parametrize(("shape", "sampler", "autoreset", "sizes", "seeds"), MARKED)
def test_any_history(shape, sampler, autoreset, sizes, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        pair, often = Pair(shape, sampler, autoreset), (0.1, 0.5, 0.9)[seed % 3]
        agree(pair, rng)
        for _ in range(14):
            pair.step(rng, sizes, often, odd=True)
            agree(pair, rng)


SHARDED_TOGETHER, SHARDED_APART = (8, 4, True), (4, 6, False)
"""Environments of all four shards."""
OVER_SHARDS = [
    (SHARDED_TOGETHER, uniform(), "next_step"),
    (SHARDED_APART, uniform(**WINDOW), "same_step"),
    (SHARDED_TOGETHER, uniform(**WINDOW, **BY_EPISODE), "next_step"),
    (SHARDED_TOGETHER, prioritized(new_priority="largest_ever"), "same_step"),
    (SHARDED_APART, prioritized(alpha=0.5, normalize="buffer"), "disabled"),
    (SHARDED_APART, prioritized(**SHORT), "next_step"),
    (
        SHARDED_TOGETHER,
        fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, recent_rows=8, priorities=prioritized()),
        "same_step",
    ),
    (SHARDED_TOGETHER, fbuf.Shuffled(), "same_step"),
    (SHARDED_APART, fbuf.Shuffled(**WINDOW, **BY_EPISODE), "same_step"),
]


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize(("shape", "sampler", "autoreset"), OVER_SHARDS)
def test_any_history_over_shards(shape, sampler, autoreset):
    """Four shards on two devices are one buffer: its draws, its largest priority, its rows."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        pair, often = ShardedPair(shape, sampler, autoreset), (0.1, 0.5, 0.9)[seed % 3]
        agree(pair, rng)
        for _ in range(14):
            pair.step(rng, (3, 9), often, odd=True)
            agree(pair, rng)


@pytest.fixture(autouse=True, scope="module")
def _generations_wrap_around():
    with tags.all_of(tags.LARGE):
        yield


SAVED = [n for n, case in enumerate(CASES) if case[1].window > 1]


@pytest.mark.sweep
@pytest.mark.parametrize("case", SAVED)
def test_any_history_with_saves(tmp_path, case):
    """A buffer that was saved or loaded goes on as if nothing had been, windows and all."""
    shape, sampler, autoreset, sizes = CASES[case]
    for seed in range(2):
        rng, path = np.random.default_rng(seed), tmp_path / str(seed)
        pair = Pair(shape, sampler, autoreset)
        for _ in range(16):
            pair.step(rng, sizes, 0.3, odd=True)
            if rng.random() < 0.6:
                pair.state = fbuf.save(path, pair.state, background=bool(rng.random() < 0.3))
            if path.exists() and rng.random() < 0.4:
                saved = fbuf.save(path, pair.state)
                pair.state = restored.load(path).state if rng.random() < 0.7 else saved
            agree(pair, rng)


def agree(pair, rng):
    """The state is what the oracle says, and what is drawn from it is as likely."""
    oracle, sampler = pair.oracle, pair.sampler
    stored = oracle.stored()
    starts, share = likelihoods(pair)
    key, beta = jax.random.key(int(rng.integers(100))), 0.7
    step = 0 if isinstance(sampler, fbuf.Shuffled) else None
    sample, size, can_sample, stats, *rest = pair.look(key, step, beta, batch_size=BATCH)
    assert int(size) == int(stats["size"]) == len(stored)
    assert bool(can_sample) == bool(share)
    assert told(stats["fault"]) == oracle.fault
    dummies = [at for at in range(oracle.capacity) if (row := oracle.at(at)) and row.dummy]
    taken = sum(len(oracle.there(lane)) for lane in range(oracle.envs))
    assert int(stats["removed"]) == taken - len(stored)
    assert "num_starts" not in stats or int(stats["num_starts"]) == len(starts)
    names(pair, stored)
    if rest:
        likely, everything = rest
        in_order(pair, everything)
        expected = [share.get(slot, 0) for slot in range(oracle.capacity)]
        np.testing.assert_allclose(likely, expected, rtol=1e-5)
    if pair.per is not None:
        assert not set(dummies) & set(starts)
        np.testing.assert_allclose(stats["new_priority"], oracle.default(), rtol=1e-5)
    look_inside(pair, starts)
    if step is not None:
        an_epoch(pair, share, key)
        return
    drawn(pair, sample, share, beta)


def names(pair, stored):
    """Every row has its name, and its item and flags where it lies."""
    for number, part in enumerate(pair.parts()):
        ids = jax.tree.map(np.asarray, inside.names(part, range(part.capacity)))
        items, flags = np.asarray(inside.rows(part)), np.asarray(part.ring.flags)
        for own in range(part.capacity):
            slot = number * part.capacity + own
            row = pair.oracle.at(slot)
            if row is not None:
                assert flags[own] & 3 == row.terminated + 2 * row.truncated
            if slot not in stored:
                assert ids.slot[own] == -1
                continue
            assert (ids.slot[own], ids.generation[own]) == (own, row.generation)
            assert items[own] == row.number


def in_order(pair, everything):
    """All rows come lane by lane, the newest last; where there is none there are zeros."""
    oracle = pair.oracle
    slots = np.asarray(everything.ids.slot).reshape(oracle.envs, oracle.length)
    found = [np.asarray(x).reshape(slots.shape) for x in (everything.data, everything.mask)]
    for lane in range(oracle.envs):
        there = [oracle.slot(lane, at) for at in oracle.there(lane)]
        expected = [slot if slot in oracle.stored() else -1 for slot in there]
        expected = [-1] * (oracle.length - len(there)) + expected
        assert slots[lane].tolist() == expected
        items = [oracle.at(slot).number if slot >= 0 else 0 for slot in expected]
        assert found[0][lane].tolist() == items
        assert found[1][lane].tolist() == [slot >= 0 for slot in expected]


def likelihoods(pair):
    """The starts, and how likely each slot is that may be drawn."""
    oracle, sampler = pair.oracle, pair.sampler
    given = getattr(sampler, "priorities", sampler)
    options = (given.window, given.stride, given.first_only, given.strict)
    starts = oracle.starts(*options)
    if isinstance(sampler, fbuf.Prioritized):
        return starts, oracle.by_priority(starts)
    if isinstance(sampler, fbuf.Mixture):
        newest = oracle.newest(sampler.recent_rows) & starts
        return starts, oracle.mixed(
            [
                (sampler.uniform, oracle.evenly(starts)),
                (sampler.prioritized, oracle.by_priority(starts)),
                (sampler.recent, oracle.evenly(newest)),
            ]
        )
    if getattr(sampler, "by", "start") == "episode":
        return starts, oracle.by_episode(*options)
    return starts, oracle.evenly(starts)


def look_inside(pair, starts):
    """The trees hold what they should, also where nothing is drawn from now."""
    oracle, sampler, parts = pair.oracle, pair.sampler, pair.parts()
    if not isinstance(sampler, fbuf.Prioritized):
        marks = [inside.marks(inside.start_tree(part.index)) for part in parts]
        assert set(np.flatnonzero(np.concatenate(marks)).tolist()) == starts
    if pair.per is not None:
        trees = [inside.priority_tree(part.index) for part in parts]
        for tree in trees:
            inside.check(tree)
        leaves = np.concatenate([inside.leaves(tree) for tree in trees])
        stored = oracle.stored()
        expected = [oracle.at(slot).priority for slot in stored]
        np.testing.assert_allclose(np.abs(leaves[stored]), expected, rtol=1e-5)
        for slot in stored if trees[0].inactive else ():
            assert np.signbit(leaves[slot]) == (slot not in starts)
        reached = np.maximum(np.concatenate([inside.values(tree) for tree in trees]), 0)
        assert set(np.flatnonzero(reached).tolist()) == set(oracle.by_priority(starts))
    if getattr(sampler, "by", "start") == "episode":
        runs = oracle.runs(sampler.window, sampler.stride, sampler.first_only, sampler.strict)
        *trees, counts = zip(*[inside.episode_trees(part.index) for part in parts], strict=True)
        for of_shards, at in zip(trees, (0, -1), strict=True):
            expected = sorted(inside.lane_by_lane(oracle, run[at]) for run in runs)
            marks = np.concatenate([inside.marks(tree) for tree in of_shards])
            assert np.flatnonzero(marks).tolist() == expected
        assert sum(counts) == len(runs)


def drawn(pair, sample, share, beta):
    """Only what may be drawn is, with its probability, its weight and all that belongs to it."""
    sample = jax.tree.map(np.asarray, sample)
    mask, slots = sample.mask, sample.ids.slot.tolist()
    assert mask.all() == mask.any() == bool(share)
    if not share:
        assert not sample.probability.any()
        assert not sample.weight.any()
        assert set(slots) == {-1}
        return
    expected = np.array([share[slot] for slot in slots])  # what may not be drawn is no key
    np.testing.assert_allclose(sample.probability, expected, rtol=1e-5)
    whole = pair.per is not None and pair.per.normalize == "buffer"
    least = min(share.values()) if whole else expected.min()
    np.testing.assert_allclose(sample.weight, (least / expected) ** beta, rtol=1e-4)
    for at, slot in enumerate(slots):
        row = pair.oracle.at(slot)
        assert sample.ids.generation[at] == row.generation
        assert sample.data[at] == row.number
        assert (sample.terminated[at], sample.truncated[at]) == (row.terminated, row.truncated)


def an_epoch(pair, share, key):
    """The batches of an epoch hold every start once, or one start of every episode."""
    sampler, found = pair.sampler, []
    options = (sampler.window, sampler.stride, sampler.first_only, sampler.strict)
    runs = pair.oracle.runs(*options)
    groups = runs if sampler.by == "episode" else [[slot] for run in runs for slot in run]
    for step in range(max(-(-len(groups) // BATCH), 1)):
        batch = pair.look(key, step, batch_size=BATCH)[0]
        mask = np.asarray(batch.mask)
        slots = np.asarray(batch.ids.slot)
        found += slots[mask].tolist()
        np.testing.assert_array_equal(batch.weight, mask)
        likely = [share.get(slot, 0) for slot in slots.tolist()]
        np.testing.assert_allclose(batch.probability, np.where(mask, likely, 0), rtol=1e-6)
    of_group = {slot: number for number, group in enumerate(groups) for slot in group}
    assert sorted(of_group[slot] for slot in found) == list(range(len(groups)))
