"""Rows that move to a buffer with other limits are judged by these: plain NumPy beside it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

SWEEP = pytest.mark.sweep
ITEM = {"number": jnp.int32(0), "version": jnp.int32(0), "other": jnp.int32(0)}
ROWS, CAPACITY, LOWEST = 24, 32, 3
UNIFORM, WINDOW = fbuf.Uniform(), fbuf.Uniform(window=2)
PRIORITIES = fbuf.Prioritized(alpha=1.0, eps=0.0)
OF_WINDOWS = fbuf.Prioritized(alpha=1.0, eps=0.0, window=2)
OLD: dict[str, dict[str, int | str]] = {
    "uses": {"max_uses": 1},
    "age": {"max_age": 10},
    "uses and age": {"max_uses": 2, "max_age": 10},
    "all": {"max_uses": 2, "max_age": 15, "version": "version"},
}
NEW: dict[str, dict[str, int | str]] = {
    "one use": {"max_uses": 1},
    "more uses": {"max_uses": 3},
    "age alone": {"max_age": 12},
    "low age": {"max_age": 4},
    "both": {"max_uses": 2, "max_age": 20},
    "version": {"version": "version"},
    "other version": {"version": "other"},
}


def numbers(count=ROWS):
    number = np.arange(count, dtype=np.int32)
    return {"number": number, "version": number // 4, "other": np.zeros(count, np.int32)}


def priorities(count=ROWS):
    return 1 + np.arange(count, dtype=np.float32) % 7


def worn(sampler, limits):
    """A buffer of which some rows are used up, too old or expired; and how often each was drawn."""
    state = fbuf.init(ITEM, CAPACITY, sampler=fbuf.Limited(sampler, **limits))
    given = {"priority": priorities()} if sampler.keeps_priorities else {}
    state = fbuf.add(state, numbers(), **given)
    if "version" in limits:
        state = fbuf.expire(state, LOWEST)
    used = np.zeros(ROWS, int)
    for turn in range(2 if "max_uses" in limits else 0):
        state, batch = fbuf.draw(state, jax.random.key(turn), 8)
        np.add.at(used, np.asarray(batch.ids.slot)[np.asarray(batch.mask)], 1)
    return state, used


def live(used, old, new, window):
    """Which rows may be drawn under the new limits."""
    number = np.arange(ROWS)
    there = number <= ROWS - window
    if "max_uses" in new:
        there &= used < new["max_uses"]
    if "max_age" in new:
        there &= number >= ROWS - new["max_age"]
    if new.get("version", 0) == old.get("version", 1):
        there &= number // 4 >= LOWEST
    return there


CASES = [
    (sampler, old, new)
    for sampler in (UNIFORM, PRIORITIES, WINDOW, OF_WINDOWS)
    for old in OLD
    for new in NEW
]
QUICK = [
    (UNIFORM, "uses", "age alone"),
    (PRIORITIES, "uses", "more uses"),
    (PRIORITIES, "age", "low age"),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("sampler", "old", "new"),
    [
        *QUICK,
        *(pytest.param(*case, marks=SWEEP) for case in CASES if case not in QUICK),
    ],
)
def test_rows_are_judged_by_the_limits_of_the_buffer_they_come_to(sampler, old, new):
    state, used = worn(sampler, OLD[old])
    there = live(used, OLD[old], NEW[new], sampler.window)
    limited = fbuf.Limited(sampler, **NEW[new])
    moved = fbuf.extend(fbuf.init(ITEM, CAPACITY, sampler=limited), state)
    ids = fbuf.ids_at(moved, jnp.arange(ROWS, dtype=jnp.int32))
    assert int(fbuf.stats(moved)["live"]) == there.sum()
    assert bool(fbuf.can_sample(moved)) == there.any()
    likely = np.asarray(fbuf.probability(moved, ids))
    np.testing.assert_array_equal(likely > 0, there)
    np.testing.assert_allclose(likely.sum(), there.any(), rtol=1e-5)  # retired rows have no share
    if limited.notes_draws:
        _, batch = fbuf.draw(moved, jax.random.key(9), 4, donate=False)
    else:
        batch = fbuf.sample(moved, jax.random.key(9), 4)
    assert bool(batch.mask.any()) == there.any()
    drawn = np.asarray(batch.data["number"])[np.asarray(batch.mask)]
    assert there[drawn].all()
    np.testing.assert_array_equal(np.asarray(batch.probability)[: drawn.size], likely[drawn])
    if "max_uses" in NEW[new] and "max_uses" in OLD[old]:
        np.testing.assert_array_equal(fbuf.uses(moved, ids), used)
    if sampler.keeps_priorities:  # a row that had a priority keeps it, relative to the others
        had = there & (np.asarray(fbuf.probability(state, ids_of(state))) > 0)
        if sampler.window > 1:
            had = there  # those of windows stay stored
        ratio = likely[had] / priorities()[had]
        np.testing.assert_allclose(ratio, ratio[:1].repeat(ratio.size), rtol=1e-6)
        lost = there & ~had  # the others have that of a row of an empty buffer, 1
        if lost.any() and had.any():
            np.testing.assert_allclose(likely[lost], ratio[0], rtol=1e-6)


def ids_of(state):
    return fbuf.ids_at(state, jnp.arange(ROWS, dtype=jnp.int32))


@pytest.mark.parametrize("sampler", [PRIORITIES, pytest.param(fbuf.FreshFirst(), marks=SWEEP)])
def test_limits_put_around_a_sampler_take_over_what_it_had(sampler):
    """Priorities stay, and rows that a batch had are fresh no more."""
    state = fbuf.init(ITEM, CAPACITY, sampler=sampler)
    given = {"priority": priorities()} if sampler.keeps_priorities else {}
    state = fbuf.add(state, numbers(), **given)
    if sampler.notes_draws:
        state, _ = fbuf.draw(state, jax.random.key(0), 10)
    limited = fbuf.init(ITEM, CAPACITY, sampler=fbuf.Limited(sampler, max_uses=1))
    moved = fbuf.extend(limited, state)
    likely = fbuf.probability(moved, ids_of(moved))
    np.testing.assert_allclose(likely, fbuf.probability(state, ids_of(state)), rtol=1e-6)
    if sampler.notes_draws:
        assert int(fbuf.stats(moved)["fresh"]) == ROWS - 10


@SWEEP
def test_served_rows_with_a_higher_limit_are_not_fresh_again():
    fresh = fbuf.FreshFirst()
    state = fbuf.init(ITEM, CAPACITY, sampler=fbuf.Limited(fresh, max_uses=1))
    state, first = fbuf.draw(fbuf.add(state, numbers()), jax.random.key(0), 16)
    assert first.data["number"].tolist() == list(range(16))
    moved = fbuf.init(ITEM, CAPACITY, sampler=fbuf.Limited(fresh, max_uses=2))
    moved, batch = fbuf.draw(fbuf.extend(moved, state), jax.random.key(1), 16)
    assert batch.data["number"][:8].tolist() == list(range(16, 24))
    assert int(fbuf.stats(moved)["fresh"]) == 0
    assert bool(batch.mask.all())


@pytest.mark.sweep
@pytest.mark.parametrize(
    "limits", [pytest.param({"max_uses": 1}, marks=SWEEP), {"max_age": 5}], ids=str
)
def test_rows_that_were_retired_stay_so_where_the_limits_are_the_same(limits):
    """In a larger buffer, and in parts of it, where rows lie nearer to the newest one."""
    sampler = fbuf.Limited(**limits)
    state = fbuf.init(ITEM, CAPACITY, num_envs=2, sampler=sampler)
    rows = jax.tree.map(lambda leaf: leaf.reshape(2, 12), numbers())
    state = fbuf.add(state, rows, truncated=rows["number"] % 3 == 2)
    if sampler.notes_draws:
        state, _ = fbuf.draw(state, jax.random.key(0), 14)
    left = alive(state)
    assert alive(fbuf.resize(state, 40)) == left
    oldest, newest = fbuf.split(state, None, 0.5)
    assert alive(oldest) | alive(newest) <= left


def alive(state):
    rows = fbuf.rows(state)
    likely = np.asarray(fbuf.probability(state, rows.ids))
    kept = np.asarray(rows.mask) & (likely > 0)
    return set(np.asarray(rows.data["number"])[kept].tolist())
