"""Hindsight: goals come from where they may, each as often as it should, and rewards are right."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats
from test_return_to_go import ALL, not_copied, same_in_every_way
from test_views import APART, CASES, played

import fbuf

GOAL = {"place": jnp.zeros(2), "level": jnp.int32(0)}
ITEM = {"number": jnp.int32(0), "goal": GOAL, "achieved_goal": GOAL, "reward": jnp.float32(0)}
STRATEGIES = pytest.mark.parametrize("strategy", ["future", "final", "episode"])
DRAWS = 120_000


def item_of(number):
    """The row of this number: no goal is like what any row achieves."""
    number = np.asarray(number).astype(np.int32)
    half = number + np.float32(0.5)
    return {
        "number": number,
        "goal": {"place": np.stack([-half, half], -1), "level": -1 - number},
        "achieved_goal": {"place": np.stack([half, 2 * half], -1), "level": number},
        "reward": (number % 17 + 100_000).astype(np.float32),
    }


def reward_fn(achieved, goal):
    """Tells which two goals it was given, and in which order."""
    return 256 * achieved["level"] + goal["place"][0]


@functools.cache
def reader():
    def read(view, state, slots, key):
        return view.read(state, slots, key)

    return jax.jit(read, static_argnums=0)


def allowed(history, slot, strategy):
    """The rows a goal may come from."""
    ahead = history.ahead(slot, ALL)
    if strategy == "final":
        return ahead[-1:]
    return ahead if strategy == "future" else history.back(slot, ALL)[:-1] + ahead


@pytest.mark.parametrize(
    ("strategy", "envs", "length", "autoreset"),
    [
        ("future", None, 9, "same_step"),
        ("future", 3, 40, "next_step"),
        ("episode", None, 9, "next_step"),
        ("episode", 3, 40, "same_step"),
        ("final", 3, 8, "next_step"),
        ("future", APART, 9, "next_step"),
        ("episode", APART, 40, "same_step"),
        ("final", APART, 8, "same_step"),
    ],
)
@settings(max_examples=15)
@given(case=CASES)
def test_goals_are_of_the_same_episode(strategy, envs, length, autoreset, case):
    state, history = played(envs, length, autoreset, *case, spec=ITEM, make=item_of)
    slots = history.stored()
    if not slots:
        return
    slots = np.resize(slots, 150)
    view = fbuf.Hindsight(reward_fn, strategy, ratio=0.75)
    reading = reader()(view, state, jnp.asarray(slots, jnp.int32), jax.random.key(case[0]))
    item, relabelled, flags = jax.tree.map(
        np.asarray, (reading.data.item, reading.data.relabelled, reading.flags)
    )
    assert 0 < relabelled.mean() < 1
    for at, slot in enumerate(slots):
        row = history.at(slot)
        expected = item_of(row.item)
        if relabelled[at]:
            source = item["goal"]["level"][at]
            assert source in [other.item for other in allowed(history, slot, strategy)]
            expected["goal"] = item_of(source)["achieved_goal"]
            expected["reward"] = np.float32(256 * row.item + source + 0.5)
        found = jax.tree.map(lambda x, at=at: x[at], item)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert flags[at] & 3 == row.terminated + 2 * row.truncated


@functools.cache
def episodes():
    """Two lanes of 100 rows: 39 of an episode whose first ones are gone, and 61 of an open one."""
    numbers = np.arange(200).reshape(100, 2)
    ends = np.zeros((100, 2), bool)
    ends[[30, 31, 98]] = True
    state = fbuf.init(ITEM, 200, num_envs=2)
    items = jax.tree.map(jnp.asarray, item_of(np.concatenate([numbers, numbers[:60] + 200])))
    ends = jnp.asarray(np.concatenate([ends, np.zeros((60, 2), bool)]))
    return fbuf.add(state, items, truncated=ends, time_major=True)


@pytest.mark.parametrize(
    ("strategy", "slot", "numbers"),
    [
        ("future", 2 * 70, range(140, 198, 2)),
        ("future", 2 * 99 + 1, range(199, 320, 2)),
        ("episode", 2 * 70 + 1, range(121, 199, 2)),
        ("episode", 2 * 10 + 1, range(199, 320, 2)),
        ("future", 2 * 97, [194, 196]),
    ],
)
def test_every_row_that_may_be_the_goal_is_as_often(strategy, slot, numbers):
    # Step 99 is the first one of the open episode, which goes on around the ring.
    # Among those that are relabelled: whether and where must be independent.
    view = fbuf.Hindsight(reward_fn, strategy, ratio=0.5)
    slots = jnp.full(2 * DRAWS, slot, jnp.int32)
    data = reader()(view, episodes(), slots, jax.random.key(7)).data
    levels = np.asarray(data.item["goal"]["level"])[np.asarray(data.relabelled)]
    counts = np.bincount(levels, minlength=400)
    assert levels.size > 1e5
    assert counts[list(numbers)].sum() == levels.size
    assert stats.chisquare(counts[list(numbers)]).pvalue > 1e-4


@pytest.mark.parametrize("ratio", [0, 0.1, 0.8, 1.0])
def test_the_share_that_is_relabelled(ratio):
    view = fbuf.Hindsight(reward_fn, "final", ratio)
    state = episodes()
    slots = jnp.arange(DRAWS, dtype=jnp.int32) % 200
    data = reader()(view, state, slots, jax.random.key(3)).data
    count = int(data.relabelled.sum())
    assert abs(count - ratio * DRAWS) <= 5 * np.sqrt(DRAWS * ratio * (1 - ratio))
    kept = ~np.asarray(data.relabelled)
    stored = state.storage.rows()
    chosen = np.asarray(slots)[kept]
    for name in ("goal", "reward"):
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[chosen]),
            data.item[name],
            stored[name],
        )
    # Neighbours are independent: as often both as the share squared says.
    both = np.mean(~kept[::2] & ~kept[1::2])
    assert abs(both - ratio**2) < 5 / np.sqrt(DRAWS / 2)


def test_another_key_chooses_anew_and_the_choice_is_not_the_samplers():
    state, view = episodes(), fbuf.Hindsight(reward_fn, "future", 0.5)
    one, same, other = (fbuf.sample(state, jax.random.key(k), 64, view=view) for k in (0, 0, 1))
    assert (one.data.item["reward"] == same.data.item["reward"]).all()
    assert (one.data.relabelled != other.data.relabelled).any()
    plain = fbuf.sample(state, jax.random.key(0), 64)
    np.testing.assert_array_equal(plain.data["number"], one.data.item["number"])


def test_the_same_eagerly_jitted_scanned_and_under_vmap():
    state, _ = played(3, 40, "next_step", 5, 0.15, spec=ITEM, make=item_of)
    eager = same_in_every_way(fbuf.Hindsight(reward_fn, "episode", 0.5), state)
    assert 0 < eager.data.relabelled.mean() < 1


def unlike(achieved, goal):
    return jnp.abs(achieved - goal).sum()


def test_nothing_is_copied():
    view = fbuf.Hindsight(unlike, "episode", goal="obs", achieved="obs")
    not_copied(view, "sample, remove, add", seeds=8)


@STRATEGIES
def test_where_nothing_can_be_drawn_nothing_happens(strategy):
    state = fbuf.init(ITEM, 64)
    batch = fbuf.sample(state, jax.random.key(0), 8, view=fbuf.Hindsight(reward_fn, strategy))
    assert not batch.mask.any()
    np.testing.assert_array_equal(batch.weight, 0)


@pytest.mark.parametrize("stored", ["float32", "float16", "int8"])
def test_the_reward_keeps_its_dtype(stored):
    item = {"goal": jnp.int32(3), "achieved_goal": jnp.int32(3), "reward": jnp.ones((), stored)}
    state = fbuf.add(fbuf.init(item, 8), item)
    for function in (lambda a, g: a == g, lambda a, g: (a == g).astype(jnp.int32), lambda a, g: 1):
        view = fbuf.Hindsight(function, ratio=1, fields=("reward",))
        item = fbuf.sample(state, jax.random.key(0), 2, view=view).data.item
        assert list(item) == ["reward"]
        assert (item["reward"].dtype, item["reward"].tolist()) == (stored, [1, 1])


def test_what_cannot_be_right_is_refused():
    for arguments, error, match in (
        ({"reward_fn": 1.0}, TypeError, r"fbuf.Hindsight: reward_fn must be a function"),
        ({"strategy": "random"}, ValueError, "strategy must be 'future', 'final' or 'episode'"),
        ({"ratio": 4}, ValueError, "ratio must be from 0 to 1, got 4"),
        ({"ratio": -0.1}, ValueError, "ratio must be from 0 to 1"),
        ({"ratio": "0.8"}, TypeError, "ratio must be a Python number"),
        ({"fields": ["goal"]}, TypeError, "fields must be a tuple of names"),
    ):
        with pytest.raises(error, match=match):
            fbuf.Hindsight(**{"reward_fn": reward_fn, **arguments})

    class Unhashable:
        __hash__ = None

        def __call__(self, achieved, goal):
            return reward_fn(achieved, goal)

    with pytest.raises(TypeError, match="reward_fn must be hashable"):
        fbuf.Hindsight(Unhashable())

    item = {**ITEM, "short": jnp.zeros(3), "count": jnp.int32(0)}
    state = fbuf.add(fbuf.init(item, 8), item)
    for view, match in (
        (fbuf.Hindsight(reward_fn, goal="g"), "goal names 'g', which the items"),
        (fbuf.Hindsight(reward_fn, achieved="a"), "achieved names 'a', which the items"),
        (fbuf.Hindsight(reward_fn, reward="r"), "reward names 'r', which the items"),
        (fbuf.Hindsight(reward_fn, reward="short"), "must be one real number in each item"),
        (fbuf.Hindsight(reward_fn, fields=("x",)), "fields names 'x'"),
        (
            fbuf.Hindsight(reward_fn, achieved="short"),
            r"achieved is 'short', which must be like the goal 'goal', .*expected .*got .*\(3,\)",
        ),
        (fbuf.Hindsight(reward_fn, goal="goal.level", achieved="reward"), "must be like the goal"),
        (fbuf.Hindsight(lambda a, g: g["place"]), r"must return one number .* got .*\(2,\)"),
        (fbuf.Hindsight(lambda a, g: (1.0, 2.0)), "must return one number"),
        (fbuf.Hindsight(reward_fn, reward="count"), "returns float32, which the stored reward"),
        (fbuf.Hindsight(lambda a, g: g["place"][0] * 1j), "returns complex64, which the stored"),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.sample(state, jax.random.key(0), 2, view=view)
