"""Frequencies of draws: chi-square tests with fixed keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats
from support import inside, programs

import fbuf

SWEEP = pytest.mark.optimised
DRAWS = 200_000
SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "independent": fbuf.Prioritized(alpha=1.0, eps=0.0),
    "stratified": fbuf.Prioritized(alpha=1.0, eps=0.0, draws="stratified"),
}


@jax.jit
def slots_of(state, keys):
    return lax.scan(lambda c, k: (c, fbuf.sample(state, k, 2000).ids.slot), 0, keys)[1]


def drawn(state):
    slots = slots_of(state, jax.random.split(jax.random.key(0), DRAWS // 2000))
    return np.bincount(np.asarray(slots).reshape(-1), minlength=state.capacity)


def assert_fits(counts, share):
    assert (counts[share == 0] == 0).all()
    kept = share > 0
    assert stats.chisquare(counts[kept], counts.sum() * share[kept]).pvalue > 1e-4


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[SWEEP] * (n != "uniform")) for n in SAMPLERS]
)
def test_rows_are_drawn_as_often_as_they_should_be(name):
    for case in ("part", "full", "wrapped", "removed"):
        as_often_as_they_should_be(name, case)


def as_often_as_they_should_be(name, case):
    state = fbuf.init(jnp.int32(0), 400, sampler=SAMPLERS[name])
    prioritised = name != "uniform"
    rows = {"part": 150, "full": 400, "wrapped": 400 * 2 + 123, "removed": 400}[case]
    for start in range(0, rows, 150):  # the last ones by a mask, so that one program does
        new = jnp.arange(start, start + 150, dtype=jnp.int32)
        state = programs.add(state, new, mask=new < rows)
    expected = np.where(np.arange(400) < rows, 1.0, 0.0)  # the default priority
    if prioritised:
        rng = np.random.default_rng(3)
        sample = fbuf.sample(state, jax.random.key(9), 300)
        new = jnp.array(rng.gamma(0.5, 2.0, 300), jnp.float32)
        state = fbuf.update_priority(state, sample.ids, new)
        for slot, value in zip(np.asarray(sample.ids.slot), np.asarray(new), strict=True):
            expected[slot] = value  # the last one wins
    if case == "removed":
        gone = fbuf.sample(state, jax.random.key(5), 200).ids
        state = fbuf.remove(state, gone)
        expected[np.asarray(gone.slot)] = 0
    if prioritised:
        np.testing.assert_allclose(inside.values(state.index.tree), expected, rtol=1e-6)
    assert np.count_nonzero(expected) == int(fbuf.size(state))
    assert_fits(drawn(state), expected / expected.sum())


@SWEEP
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_alpha_shapes_the_frequencies(alpha):
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Prioritized(alpha=alpha, eps=0.0))
    priority = jnp.array([0.5, 1, 2, 4, 8, 16, 0, 3], jnp.float32)
    state = fbuf.add(state, jnp.arange(8, dtype=jnp.int32), priority=priority)
    share = np.where(np.asarray(priority) > 0, np.asarray(priority, np.float64) ** alpha, 0)
    assert_fits(drawn(state), share / share.sum())


@pytest.mark.sweep
def test_batches_are_not_sorted():
    for sampler in SAMPLERS.values():
        state = fbuf.init(jnp.int32(0), 400, sampler=sampler)
        state = programs.add(state, jnp.arange(150, dtype=jnp.int32), mask=jnp.ones(150, bool))
        slots = np.asarray(slots_of(state, jax.random.split(jax.random.key(0), 100)))[0]
        assert 0.45 < (np.diff(slots) > 0).mean() < 0.55


@SWEEP
def test_twenty_million_equal_rows_can_all_be_drawn():
    capacity, draws = 20_000_000, 1_000_000
    state = fbuf.init(jnp.uint8(0), capacity, sampler=fbuf.Prioritized(alpha=1.0, eps=0.0))
    chunk = jnp.zeros(1_000_000, jnp.uint8)
    for _ in range(20):
        state = fbuf.add(state, chunk)
    keys = jax.random.split(jax.random.key(0), draws // 4000)
    draw = jax.jit(lambda s, ks: lax.map(lambda k: fbuf.sample(s, k, 4000).ids.slot, ks))
    slots = np.asarray(draw(state, keys)).reshape(-1)
    # If only a share of the rows could be drawn, fewer distinct ones would come.
    expected = capacity * -np.expm1(draws * np.log1p(-1 / capacity))
    assert abs(np.unique(slots).size - expected) < 6 * np.sqrt(draws - expected)
    for part in (slots % 4096, slots // 5000):
        assert stats.chisquare(np.bincount(part)).pvalue > 1e-4


@pytest.mark.parametrize("updates", [pytest.param(10_000, marks=SWEEP)])
def test_many_updates_leave_the_sums_exact(updates):
    capacity = 1_000_000
    state = fbuf.init(jnp.uint8(0), capacity, sampler=fbuf.Prioritized(alpha=1.0, eps=0.0))
    state = fbuf.add(state, jnp.zeros(700_000, jnp.uint8))
    first = fbuf.sample(state, jax.random.key(1), 5000)
    state = fbuf.remove(state, first.ids)

    def step(state, key):
        sample = fbuf.sample(state, key, 256)
        error = jax.random.exponential(key, (256,)) ** 4  # a heavy tail, and some exact zeros
        error = jnp.where(jax.random.bernoulli(key, 0.05, (256,)), 0.0, error)
        return fbuf.update_priority(state, sample.ids, error), None

    run = jax.jit(lambda s, k: lax.scan(step, s, k)[0], donate_argnums=0)
    state = run(state, jax.random.split(jax.random.key(2), updates))
    inside.check(state.index.tree)
    values = inside.values(state.index.tree).astype(np.float64)
    total = float(fbuf.stats(state)["priority_total"])
    assert abs(total - values.sum()) / values.sum() < 1e-6
    counts = np.zeros(capacity, np.int64)
    draw = jax.jit(lambda s, k: fbuf.sample(s, k, 10_000).ids.slot)
    for key in jax.random.split(jax.random.key(3), updates // 100):
        np.add.at(counts, np.asarray(draw(state, key)), 1)
    assert counts[values == 0].sum() == 0
    assert counts[700_000:].sum() == 0
    assert counts[np.asarray(first.ids.slot)].sum() == 0
    fbuf.raise_on_fault(state)
