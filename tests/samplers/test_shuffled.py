"""Shuffled: every row once an epoch, in an order that nothing but the key says."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import programs

import fbuf
from fbuf.samplers.chance import permutation

SWEEP = pytest.mark.sweep
everywhere = lambda found: jnp.ones(found.shape, bool)
permute = jax.jit(lambda *given: permutation.permute(*given, everywhere))
sample = programs.sample


@pytest.mark.parametrize(
    "n", [7, *(pytest.param(n, marks=SWEEP) for n in (1, 2, 8, 9, 1000, 65_537))]
)
def test_it_is_a_permutation(n):
    for seed in range(3):
        made = permute(jax.random.key(seed), jnp.arange(n, dtype=jnp.int32), jnp.int32(n))
        np.testing.assert_array_equal(np.sort(made), np.arange(n))


@SWEEP
@pytest.mark.parametrize("n", [3, 6, 13])
def test_places_and_pairs_are_alike(n):
    """Over many keys, where a number goes, and where two neighbours go, is anywhere."""
    keys = jax.random.split(jax.random.key(0), 40_000)
    every = jax.vmap(permute, (0, None, None))(keys, jnp.arange(n, dtype=jnp.int32), jnp.int32(n))
    made = np.asarray(every)
    for at in (0, n // 2, n - 1):
        assert stats.chisquare(np.bincount(made[:, at], minlength=n)).pvalue > 1e-4
    pairs = np.bincount(made[:, 0] * n + made[:, 1], minlength=n * n)
    off = ~np.eye(n, dtype=bool).reshape(-1)
    assert pairs[~off].sum() == 0
    assert stats.chisquare(pairs[off]).pvalue > 1e-4


def epoch(state, key, batch_size, first, batches):
    found = []
    for step in range(first, first + batches):
        batch = sample(state, key, batch_size, step=step)
        mask = np.asarray(batch.mask)
        np.testing.assert_array_equal(batch.weight, mask)
        found += np.asarray(batch.data)[mask].tolist()
    return found


@pytest.mark.parametrize(
    ("sampler", "batch_size"),
    [
        pytest.param(fbuf.Shuffled(), 17, marks=SWEEP),
        (fbuf.Shuffled(window=3), 4),
        *(pytest.param(fbuf.Shuffled(), n, marks=SWEEP) for n in (1, 4, 40)),
        *(pytest.param(fbuf.Shuffled(window=3), n, marks=SWEEP) for n in (1, 17, 40)),
    ],
)
def test_an_epoch_holds_every_start_once(sampler, batch_size):
    state = fbuf.init(jnp.int32(0), 20, sampler=sampler)
    state = fbuf.add(state, jnp.arange(33, dtype=jnp.int32))
    state = fbuf.remove(state, fbuf.Ids(jnp.int32([1, 17]), jnp.int32([1, 0])))
    there = set(range(13, 33)) - {21, 17}  # the slots 1 and 17 hold the rows 21 and 17
    expected = {row for row in there if {row + n for n in range(sampler.window)} <= there}
    batches = -(-len(expected) // batch_size)
    orders = [epoch(state, jax.random.key(3), batch_size, batches * e, batches) for e in range(3)]
    for order in orders:
        assert sorted(order) == sorted(expected)
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != epoch(state, jax.random.key(4), batch_size, 0, batches)


@SWEEP
def test_an_epoch_while_rows_are_written():
    """At most one row drawn twice, and one left out, for each row written since it began."""
    state = fbuf.init(jnp.int32(0), 1000, sampler=fbuf.Shuffled())
    state = fbuf.add(state, jnp.arange(600, dtype=jnp.int32))
    drawn, written = [], 0
    for step in range(19):  # 19 batches of 32 are 608
        batch = sample(state, jax.random.key(0), 32, step=step)
        there = np.asarray(batch.data)[np.asarray(batch.mask)].tolist()
        assert len(set(there)) == len(there)
        drawn += there
        if step % 3 == 0 and written < 8:
            state = fbuf.add(state, jnp.array([600 + written], jnp.int32))
            written += 1
    counts = collections.Counter(drawn)
    twice = sum(count - 1 for count in counts.values())
    missing = set(range(600)) - set(drawn)
    assert written > 5
    assert twice <= written
    assert len(missing) <= written


ENDS = jnp.zeros(4, bool).at[2].set(True)
EVENTS = [
    (fbuf.Shuffled(), {}, lambda s: fbuf.remove(s, fbuf.Ids(jnp.int32([3]), jnp.int32([0]))), 1),
    (fbuf.Shuffled(window=4), {}, lambda s: fbuf.add(s, rows(4), truncated=ENDS), 4 + 8),
    (
        fbuf.Shuffled(),
        {"autoreset": "next_step"},
        lambda s: fbuf.add(s, rows(2), truncated=jnp.array([True, False])),
        2,
    ),
    (
        fbuf.Shuffled(),
        {"num_envs": 4, "lockstep": False},
        lambda s: fbuf.add(s, rows(4), mask=jnp.arange(4) == 1),
        1,
    ),
]


def rows(count):
    return jnp.arange(count, dtype=jnp.int32)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sampler", "options", "event", "changed"),
    [EVENTS[0], *(pytest.param(*event, marks=SWEEP) for event in EVENTS[1:])],
)
def test_an_epoch_in_which_something_happens(sampler, options, event, changed):
    """Only a few of the draws before and after the change come twice or not at all."""
    for stored in (1000, 760):
        an_epoch_with(sampler, options, event, changed, stored)


def an_epoch_with(sampler, options, event, changed, stored):
    state = fbuf.init(jnp.int32(0), 1000, sampler=sampler, **options)
    if options.get("num_envs"):
        state = fbuf.add(state, rows(stored).reshape(4, -1))
    else:
        state = fbuf.add(state, rows(stored))
    count = stored if sampler.window == 1 else stored - 3
    drawn = []
    for step in range(-(-count // 32)):
        batch = sample(state, jax.random.key(0), 32, step=step)
        drawn += np.asarray(batch.ids.slot)[np.asarray(batch.mask)].tolist()
        if step == 15:
            state = event(state)
    counts = collections.Counter(drawn)
    assert sum(n - 1 for n in counts.values()) <= 2 * changed
    assert count - len(counts) <= 2 * changed


@SWEEP
def test_few_starts_among_many_slots():
    state = fbuf.init(jnp.int32(0), 4000, sampler=fbuf.Shuffled(first_only=True))
    state = fbuf.add(state, rows(4000), truncated=rows(4000) % 100 == 99)
    drawn = epoch(state, jax.random.key(0), 16, 0, 3)
    assert sorted(drawn) == list(range(0, 4000, 100))


@SWEEP
def test_a_full_ring_keeps_its_order_while_it_is_written():
    state = fbuf.init(jnp.int32(0), 64, sampler=fbuf.Shuffled())
    state = fbuf.add(state, jnp.arange(64, dtype=jnp.int32))
    slots = []
    for step in range(8):
        slots += np.asarray(sample(state, jax.random.key(0), 8, step=step).ids.slot).tolist()
        state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
    assert sorted(slots) == list(range(64))


def test_an_empty_buffer_and_bad_input():
    state = fbuf.init(jnp.int32(0), 8, sampler=fbuf.Shuffled())
    assert not fbuf.sample(state, jax.random.key(0), 4, step=0).mask.any()
    for options, match in (
        ({}, "give step=i"),
        ({"step": -1}, "step must be from 0"),
        ({"step": 0.5}, "step must be an int"),
        ({"step": jnp.zeros(2, jnp.int32)}, "step must be one integer"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fbuf.sample(state, jax.random.key(0), 4, **options)
    with pytest.raises(ValueError, match="keeps no priorities"):
        fbuf.add(state, jnp.int32([1]), priority=jnp.ones(1))
    for sampler in (fbuf.Uniform(), fbuf.Prioritized(), fbuf.Mixture()):
        with pytest.raises(ValueError, match="draws with replacement"):
            fbuf.sample(fbuf.init(jnp.int32(0), 8, sampler=sampler), jax.random.key(0), 4, step=0)
    with pytest.raises(TypeError, match="first_only must be"):
        fbuf.Shuffled(first_only="last")


@pytest.mark.sweep
def test_batches_of_several_sizes_share_an_epoch():
    state = fbuf.init(jnp.int32(0), 20, sampler=fbuf.Shuffled())
    state = fbuf.add(state, jnp.arange(13, dtype=jnp.int32))
    assert int(fbuf.stats(state)["epoch_size"]) == 13
    key, orders = jax.random.key(5), []
    for number, sizes in enumerate(([5, 3, 5], [1, 8, 4], [8, 8])):
        found, first = [], 0
        for size in sizes:
            batch = sample(state, key, 8, step=(number, first), count=size)
            assert int(batch.mask.sum()) == min(size, 13 - first)
            found += np.asarray(batch.data)[np.asarray(batch.mask)].tolist()
            first += size
        assert sorted(found) == list(range(13))
        orders.append(found)
    again = sample(state, key, 8, step=(0, 0), count=8).data
    assert np.asarray(again).tolist() == orders[0][:8] != orders[1][:8]
    with pytest.raises(ValueError, match=r"step must be one integer, or two: \(epoch, first\)"):
        fbuf.sample(state, key, 8, step=(0, 1, 2))


@SWEEP
def test_an_epoch_by_episode_draws_a_new_start_in_each():
    state = fbuf.init(jnp.int32(0), 64, sampler=fbuf.Shuffled(by="episode"))
    state = fbuf.add(state, jnp.arange(64, dtype=jnp.int32), terminated=jnp.arange(64) % 8 == 7)
    key, starts = jax.random.key(0), collections.Counter()
    for number in range(200):
        batches = [sample(state, key, 4, step=(number, first)) for first in (0, 4)]
        rows = np.concatenate([batch.data for batch in batches])
        assert sorted(rows // 8) == list(range(8))
        starts.update((rows % 8).tolist())
    assert stats.chisquare([starts[n] for n in range(8)]).pvalue > 1e-4
    # The two batches of an epoch choose their starts apart.
    alike = [np.mean(np.asarray(a.data) % 8 == np.asarray(b.data) % 8) for a, b in [batches]]
    assert np.mean(alike) < 1


@jax.jit
def numbered(state, steps):
    """A batch of each step, or of each pair of an epoch and a place."""
    module = fbuf if isinstance(state, fbuf.State) else fbuf.sharded
    return jax.lax.map(lambda step: module.sample(state, jax.random.key(0), 4, step=step), steps)


@pytest.mark.first(1)
@pytest.mark.parametrize("form", ["starts", "episodes", "mesh"])
def test_a_traced_number_below_0_is_an_epoch_of_its_own_or_no_row(form):
    """A counter that goes around is not refused, for it is traced."""
    sampler = fbuf.Shuffled(by="episode" if form == "episodes" else "start")
    numbers = jnp.arange(10, dtype=jnp.int32)
    if form == "mesh":
        mesh = jax.make_mesh((1,), ("data",))
        state = fbuf.sharded.init(jnp.int32(0), 16, mesh=mesh, shards=2, sampler=sampler)
        state = fbuf.sharded.add(state, numbers)
    else:
        state = fbuf.init(jnp.int32(0), 16, sampler=sampler)
        state = fbuf.add(state, numbers, terminated=jnp.ones(10, bool))
    batches = jax.device_get(numbered(state, jnp.arange(-6, 3, dtype=jnp.int32)))
    for epoch in range(3):
        part = jax.tree.map(lambda leaf, at=epoch: leaf[3 * at : 3 * at + 3], batches)
        assert sorted(part.data[part.mask].tolist()) == list(range(10))
    orders = {tuple(batches.data[at : at + 2].ravel().tolist()) for at in (0, 3, 6)}
    assert len(orders) == 3
    places = jnp.int32([-1, -4, -(2**31), 10, 2**31 - 1, 8])
    behind = jax.device_get(numbered(state, (jnp.full_like(places, -1), places)))
    np.testing.assert_array_equal(behind.mask.sum(1), [0, 0, 0, 0, 0, 2])
    slots = np.asarray(behind.ids.slot)
    assert (slots[~np.asarray(behind.mask)] == -1).all()
    assert (np.asarray(behind.probability)[~np.asarray(behind.mask)] == 0).all()
