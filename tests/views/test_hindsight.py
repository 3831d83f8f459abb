"""Hindsight: goals come from where they may, each as often as it should, and rewards are right."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import inside, programs
from support.pair import APART, FLAT, TOGETHER
from test_views import GOAL, ITEM, every, item_of, played

import fbuf

SWEEP = pytest.mark.sweep
ALL = 10**6
DRAWS = 120_000


def reward_fn(achieved, goal):
    """Tells which two goals it was given, and in which order."""
    return 256.0 * achieved["level"].astype(jnp.float32) + goal["place"][0]


def allowed(history, slot, strategy):
    """The rows a goal may come from."""
    ahead = history.ahead(slot, ALL)
    if strategy == "final":
        return ahead[-1:]
    return ahead if strategy == "future" else history.back(slot, ALL)[:-1] + ahead


@pytest.mark.parametrize(
    ("strategy", "shape", "autoreset"),
    [
        ("future", TOGETHER, "next_step"),
        *(
            pytest.param(*case, marks=SWEEP)
            for case in (
                ("episode", APART, "same_step"),
                ("episode", FLAT, "same_step"),
                ("final", FLAT, "same_step"),
                ("future", FLAT, "next_step"),
                ("future", APART, "same_step"),
                ("episode", TOGETHER, "next_step"),
                ("final", TOGETHER, "next_step"),
                ("final", APART, "next_step"),
            )
        ),
    ],
)
def test_goals_are_of_the_same_episode(strategy, shape, autoreset):
    view, chosen = fbuf.Hindsight(reward_fn, strategy=strategy, ratio=0.75), []
    key = jax.random.key(7)
    for oracle, slot, reading in every(view, shape, autoreset, key, count=120):
        row, item = oracle.at(slot), reading.data.item
        expected = item_of(row.item)
        chosen.append(bool(reading.data.relabelled))
        if chosen[-1]:
            source = item["goal"]["level"]
            assert source in [other.item for other in allowed(oracle, slot, strategy)]
            expected["goal"] = item_of(source)["achieved_goal"]
            expected["reward"] = np.float32(256 * row.item + source + 0.5)
        jax.tree.map(np.testing.assert_array_equal, item, expected)
        assert reading.flags & 3 == row.terminated + 2 * row.truncated
    assert 0 < np.mean(chosen) < 1


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
        pytest.param("future", 2 * 70, range(140, 198, 2), marks=SWEEP),
        pytest.param("future", 2 * 99 + 1, range(199, 320, 2), marks=SWEEP),
        pytest.param("episode", 2 * 70 + 1, range(121, 199, 2), marks=SWEEP),
        pytest.param("episode", 2 * 10 + 1, range(199, 320, 2), marks=SWEEP),
        pytest.param("future", 2 * 97, [194, 196], marks=SWEEP),
    ],
)
def test_every_row_that_may_be_the_goal_is_as_often(strategy, slot, numbers):
    # Step 99 is the first one of the open episode, which goes on around the ring.
    # Among those that are relabelled: whether and where must be independent.
    view = fbuf.Hindsight(reward_fn, strategy=strategy, ratio=0.5)
    slots = jnp.full(2 * DRAWS, slot, jnp.int32)
    data = programs.reading(view, episodes(), slots, jax.random.key(7)).data
    levels = np.asarray(data.item["goal"]["level"])[np.asarray(data.relabelled)]
    counts = np.bincount(levels, minlength=400)
    assert levels.size > 1e5
    assert counts[list(numbers)].sum() == levels.size
    assert stats.chisquare(counts[list(numbers)]).pvalue > 1e-4


@SWEEP
@pytest.mark.parametrize("ratio", [0, 0.1, 0.8, 1.0])
def test_the_share_that_is_relabelled(ratio):
    view = fbuf.Hindsight(reward_fn, strategy="final", ratio=ratio)
    state = episodes()
    slots = jnp.arange(DRAWS, dtype=jnp.int32) % 200
    data = programs.reading(view, state, slots, jax.random.key(3)).data
    count = int(data.relabelled.sum())
    assert abs(count - ratio * DRAWS) <= 5 * np.sqrt(DRAWS * ratio * (1 - ratio))
    kept = ~np.asarray(data.relabelled)
    stored = inside.rows(state)
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


@SWEEP
def test_another_key_chooses_anew_and_the_choice_is_not_the_samplers():
    state, view = episodes(), fbuf.Hindsight(reward_fn, strategy="future", ratio=0.5)
    one, same, other = (fbuf.sample(state, jax.random.key(k), 64, view=view) for k in (0, 0, 1))
    assert (one.data.item["reward"] == same.data.item["reward"]).all()
    assert (one.data.relabelled != other.data.relabelled).any()
    plain = fbuf.sample(state, jax.random.key(0), 64)
    np.testing.assert_array_equal(plain.data["observation"], one.data.item["observation"])


@SWEEP
def test_the_same_in_every_way():
    pair, view = (
        played(TOGETHER, "next_step", 4, 0.15),
        fbuf.Hindsight(reward_fn, strategy="episode", ratio=0.5),
    )
    draw = functools.partial(fbuf.sample, batch_size=64, view=view)
    eager = programs.every_way(draw, pair.state, jax.random.split(jax.random.key(1), 2))
    assert eager.mask.all()
    assert 0 < eager.data.relabelled.mean() < 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    "strategy",
    ["episode", pytest.param("future", marks=SWEEP), pytest.param("final", marks=SWEEP)],
)
def test_where_nothing_can_be_drawn_nothing_happens(strategy):
    state = fbuf.init(ITEM, 64)
    batch = fbuf.sample(
        state, jax.random.key(0), 8, view=fbuf.Hindsight(reward_fn, strategy=strategy)
    )
    assert not batch.mask.any()
    np.testing.assert_array_equal(batch.weight, 0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("stored", "function"),
    [
        pytest.param("float32", lambda a, g: a == g, marks=SWEEP),
        ("float16", lambda a, g: (a == g).astype(jnp.int32)),
        pytest.param("int8", lambda a, g: 1, marks=SWEEP),
    ],
)
def test_the_reward_keeps_its_dtype(stored, function):
    item = {"goal": jnp.int32(3), "achieved_goal": jnp.int32(3), "reward": jnp.ones((), stored)}
    state = fbuf.add(fbuf.init(item, 8), item)
    view = fbuf.Hindsight(function, ratio=1, fields=("reward",))
    item = fbuf.sample(state, jax.random.key(0), 2, view=view).data.item
    assert list(item) == ["reward"]
    assert (item["reward"].dtype, item["reward"].tolist()) == (stored, [1, 1])


def test_what_cannot_be_right_is_refused():
    for arguments, error, match in (
        ({"reward_fn": 1.0}, TypeError, r"fbuf.Hindsight: reward_fn must be a function"),
        (
            {"strategy": "newest"},
            ValueError,
            "strategy must be one of 'future', 'final', 'episode', 'current', 'random'",
        ),
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

    item = {"goal": GOAL, "achieved_goal": GOAL, "reward": 0.0}
    item |= {"short": jnp.zeros(3), "count": jnp.int32(0)}
    state = fbuf.add(fbuf.init(item, 8), item)
    for view, match in (
        (fbuf.Hindsight(reward_fn, goal="g"), "goal names 'g', but the items"),
        (fbuf.Hindsight(reward_fn, achieved="a"), "achieved names 'a', but the items"),
        (fbuf.Hindsight(reward_fn, reward="r"), "reward names 'r', but the items"),
        (fbuf.Hindsight(reward_fn, reward="short"), "must name a field that is one real number"),
        (fbuf.Hindsight(reward_fn, fields=("x",)), "fields names 'x'"),
        (
            fbuf.Hindsight(reward_fn, achieved="short"),
            r"achieved='short' must have the tree, .* of goal='goal', .*got .*\(3,\)",
        ),
        (
            fbuf.Hindsight(reward_fn, goal="goal.level", achieved="reward"),
            "must have the tree, shapes and dtypes",
        ),
        (fbuf.Hindsight(lambda a, g: g["place"]), r"must return one number .* got .*\(2,\)"),
        (fbuf.Hindsight(lambda a, g: (1.0, 2.0)), "must return one number"),
        (
            fbuf.Hindsight(reward_fn, reward="count"),
            "returns float32, but the stored reward is int32",
        ),
        (
            fbuf.Hindsight(lambda a, g: g["place"][0].astype(jnp.complex64)),
            "returns complex64, but the stored",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            fbuf.sample(state, jax.random.key(0), 2, view=view)
