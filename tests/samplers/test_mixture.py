"""Mixtures: of ways to draw from one buffer, and of buffers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats
from support.pair import Pair

import fbuf
from fbuf.samplers.chance.weights import renormalised

PER = fbuf.Prioritized(alpha=1.0, eps=0.0)


WAYS = [
    ((0.5, 0.3, 0.2), 3),
    pytest.param((0.0, 1.0, 1.0), 1, marks=pytest.mark.sweep),
    pytest.param((0.5, 0.3, 0.2), 1, marks=pytest.mark.sweep),
    pytest.param((0.0, 1.0, 1.0), 3, marks=pytest.mark.sweep),
    pytest.param((0.0, 0.0, 1.0), 1, marks=pytest.mark.sweep),
    pytest.param((0.0, 0.0, 1.0), 3, marks=pytest.mark.sweep),
]


@jax.jit
def drawn(state):
    keys = jax.random.split(jax.random.key(0), 20)
    return lax.scan(lambda c, k: (c, fbuf.sample(state, k, 1000, beta=0.5)), 0, keys)[1]


@pytest.mark.sweep
@pytest.mark.parametrize(("given", "window"), WAYS, ids=str)
def test_a_row_is_as_likely_as_all_ways_together_make_it(given, window):
    per = fbuf.Prioritized(alpha=1.0, eps=0.0, window=window)
    sampler = fbuf.Mixture(
        given[0], prioritized=given[1], recent=given[2], recent_rows=5, priorities=per
    )
    for rows in (4, 10, 14, 21):  # not full; full; around the seam
        pair, rng = Pair((None, 10, True), sampler), np.random.default_rng(rows)
        pair.add(7, rng)
        pair.clear()
        for _ in range(rows // 7 + 1):
            pair.add(7, rng, 0.15)
        if rows > 4:
            pair.remove(rng, 1)
        state, oracle = pair.state, pair.oracle
        starts = oracle.starts(window)
        ways = [oracle.evenly(starts), oracle.by_priority(starts)]
        ways.append(oracle.evenly(oracle.newest(5) & starts))
        likely = oracle.mixed(list(zip(given, ways, strict=True)))
        expected = np.array([likely.get(slot, 0) for slot in range(10)])
        if not likely:
            continue
        batch = drawn(state)
        slots = np.asarray(batch.ids.slot)
        np.testing.assert_allclose(batch.probability, expected[slots], rtol=1e-4)
        raw = expected[slots] ** -0.5
        np.testing.assert_allclose(batch.weight, raw / raw.max(axis=1, keepdims=True), rtol=1e-3)
        counts, there = np.bincount(slots.reshape(-1), minlength=10), expected > 0
        assert counts[~there].sum() == 0
        if there.sum() > 1:
            assert stats.chisquare(counts[there], expected[there] * 20_000).pvalue > 1e-4


@pytest.mark.sweep
def test_a_mixture_can_be_updated_and_emptied():
    sampler = fbuf.Mixture(0.0, prioritized=1.0, priorities=PER)
    state = fbuf.add(fbuf.init(jnp.int32(0), 8, sampler=sampler), jnp.arange(8, dtype=jnp.int32))
    ids = fbuf.Ids(jnp.arange(8, dtype=jnp.int32), jnp.zeros(8, jnp.int32))
    state = fbuf.update_priority(state, ids, jnp.array([0.0] * 6 + [1.0, 3.0]))
    batch = fbuf.sample(state, jax.random.key(0), 64)
    assert set(np.asarray(batch.data).tolist()) == {6, 7}
    state = fbuf.update_priority(state, ids, jnp.zeros(8))
    assert not bool(fbuf.can_sample(state))
    assert not fbuf.sample(state, jax.random.key(0), 64).mask.any()
    assert set(fbuf.stats(state)) >= {"priority_total", "size"}
    assert not bool(fbuf.can_sample(fbuf.clear(state)))


@functools.cache
def buffers():
    rows = jnp.arange(40, dtype=jnp.int32)
    plain = fbuf.add(fbuf.init(jnp.int32(0), 40), rows)
    per = fbuf.init(jnp.int32(0), 80, sampler=PER)
    per = fbuf.add(per, rows + 100, priority=(rows % 4 + 1).astype(jnp.float32))
    windows = fbuf.Prioritized(alpha=1.0, eps=0.0, window=5)
    apart = fbuf.add(fbuf.init(jnp.int32(0), 40, sampler=windows), rows + 200)
    return plain, per, apart


@pytest.mark.sweep
@pytest.mark.parametrize("jitted", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_a_batch_from_several_buffers(jitted):
    plain, per, apart = buffers()
    mix = lambda states, key: fbuf.sample_mixed(
        list(zip(states, (2, 1, 1), strict=True)), key, 400, beta=1.0
    )
    mixed = (jax.jit(mix) if jitted else mix)((plain, per, apart), jax.random.key(0))
    sample = mixed.sample
    assert mixed.counts == (200, 100, 100)
    np.testing.assert_array_equal(mixed.source, [0] * 200 + [1] * 100 + [2] * 100)
    np.testing.assert_array_equal(np.asarray(sample.data) // 100, mixed.source)
    priority = np.asarray(sample.data) % 4 + 1.0
    probability = np.r_[np.full(200, 1 / 40), priority[200:300] / 100, np.full(100, 1 / 36)]
    np.testing.assert_allclose(sample.probability, probability, rtol=1e-5)
    # N * probability is 1 where all are alike, whatever N is.
    relative = np.r_[np.ones(200), 40 * priority[200:300] / 100, np.ones(100)]
    np.testing.assert_allclose(sample.weight, relative.min() / relative, rtol=1e-4)
    # With weights, draws by priority count as much as uniform ones.
    mean = np.average(priority[200:300], weights=sample.weight[200:300])
    assert abs(mean - 2.5) < 0.4
    per = fbuf.update_priority(per, mixed.ids(1), mixed.of(1, sample.weight), donate=False)
    fbuf.raise_on_fault(per, ignore=fbuf.Fault(0))


@pytest.mark.parametrize(
    ("given", "batch_size", "expected"),
    [
        pytest.param((1, 1), 7, (4, 3), marks=pytest.mark.sweep),
        pytest.param((0.5, 0.5), 256, (128, 128), marks=pytest.mark.sweep),
        ((0.1, 0.2, 0.7), 10, (1, 2, 7)),
        pytest.param((1, 1, 1), 256, (86, 85, 85), marks=pytest.mark.sweep),
        ((0.26, 0.74), 10, (3, 7)),
        pytest.param((1, 2), 4, (1, 3), marks=pytest.mark.sweep),
        pytest.param((3,), 5, (5,), marks=pytest.mark.sweep),
    ],
)
def test_counts_are_exact(given, batch_size, expected):
    sources = list(zip(buffers(), given, strict=False))
    draw = lambda key: fbuf.sample_mixed(sources, key, batch_size)
    mixed = jax.eval_shape(draw, jax.random.key(0))
    assert mixed.counts == expected
    assert mixed.source.shape == mixed.sample.data.shape == (batch_size,)


def test_the_same_buffer_twice_is_drawn_from_anew():
    plain, _, _ = buffers()
    mixed = fbuf.sample_mixed([(plain, 1), (plain, 1)], jax.random.key(0), 64)
    assert (mixed.of(0, mixed.sample.data) != mixed.of(1, mixed.sample.data)).any()


def test_weights_of_an_empty_batch_are_finite():
    """Masked draws do not count for the largest weight."""
    weight = renormalised(jnp.array([0.0, -1.0, 9.0]), jnp.array([True, True, False]))
    np.testing.assert_allclose(weight[:2], np.exp([0.0, -1.0]), rtol=1e-6)
    assert float(weight[2]) == 0


@pytest.mark.sweep
def test_an_empty_source_is_masked():
    plain, _, _ = buffers()
    empty = fbuf.init(jnp.int32(0), 8, sampler=PER)
    mixed = fbuf.sample_mixed([(plain, 1), (empty, 1)], jax.random.key(0), 8)
    np.testing.assert_array_equal(mixed.sample.mask, [True] * 4 + [False] * 4)
    np.testing.assert_array_equal(mixed.sample.weight, [1.0] * 4 + [0.0] * 4)
    nothing = fbuf.sample_mixed([(empty, 1)], jax.random.key(0), 4)
    assert not nothing.sample.weight.any()


def test_what_cannot_be_right_is_refused():
    for options, match in (
        ({"uniform": -1.0}, "uniform must be at least 0"),
        ({"recent": float("inf")}, "recent must be at least 0"),
        ({"uniform": "half"}, "uniform must be a Python number"),
        ({"uniform": 0, "prioritized": 0}, "all shares are 0"),
        ({"recent_rows": 0}, "recent_rows must be from 1"),
        ({"priorities": fbuf.Prioritized}, "priorities must be a Prioritized"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.Mixture(**options)
    sampler = fbuf.Mixture(recent=0.5)
    with pytest.raises(ValueError, match="environments that step together"):
        fbuf.init(jnp.int32(0), 8, num_envs=2, lockstep=False, sampler=sampler)
    plain, per, _ = buffers()
    other = fbuf.init(jnp.zeros(2), 4)
    for sources, match in (
        ([], "sources must be a list"),
        (plain, "sources must be a list"),
        ([plain], "must be a pair"),
        ([(plain, 0)], "a share must be above 0"),
        ([(plain, jnp.float32(1))], "a share must be a Python number"),
        ([(plain, 1), (other, 1)], "same items"),
        ([(fbuf.init(jnp.int32(0), 4, sampler=fbuf.Shuffled()), 1)], "batches are numbered"),
        ([(plain, 1), (per, 0.001)], "source 1 with share 0.001 would get none of"),
        ([(1, 1)], "state must be a fbuf.State"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.sample_mixed(sources, jax.random.key(0), 8)
    gone = fbuf.init(jnp.int32(0), 4)
    fbuf.clear(gone)
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.sample_mixed([(plain, 1), (gone, 1)], jax.random.key(0), 8)
