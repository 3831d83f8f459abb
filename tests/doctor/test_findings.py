"""Each finding is made by a buffer that has the fault; a buffer in good order has none."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from support.play import played

import fbuf

WINDOWED = fbuf.Prioritized(window=4, stride=2)
HEALTHY = {
    "uniform": (fbuf.Uniform(), {}),
    "one environment": (fbuf.Uniform(), {"envs": None, "steps": 900}),
    "many environments": (fbuf.Uniform(), {"envs": 64, "capacity": 6400}),
    "lanes of their own": (fbuf.Uniform(), {"lockstep": False}),
    "resets": (fbuf.Uniform(), {"autoreset": "next_step"}),
    "window": (fbuf.Uniform(window=5), {}),
    "episodes": (fbuf.Uniform(window=3, by="episode", strict=False), {}),
    "prioritized": (fbuf.Prioritized(), {}),
    "prioritized windows": (WINDOWED, {}),
    "floor": (fbuf.Prioritized(floor=1.0, eps=0.0), {}),
    "stratified": (fbuf.Prioritized(draws="stratified", new_priority="largest_ever"), {}),
    "shuffled": (fbuf.Shuffled(), {}),
    "mixture": (fbuf.Mixture(0.4, prioritized=0.4, recent=0.2, recent_rows=200), {}),
    "fresh first": (fbuf.FreshFirst(), {}),
    "fresh first, prioritized": (fbuf.FreshFirst(fbuf.Prioritized()), {}),
    "grouped": (fbuf.Grouped("task", 3), {}),
    "limited uses": (fbuf.Limited(max_uses=4), {}),
    "limited age": (fbuf.Limited(fbuf.Prioritized(), max_age=100), {}),
    "limited, fresh first": (fbuf.Limited(fbuf.FreshFirst(), max_uses=4), {}),
    "limited groups": (fbuf.Limited(fbuf.Grouped("task", 3), max_uses=4), {}),
    "reservoir": (fbuf.Reservoir(), {"envs": None, "capacity": 200}),
    "evict lowest": (fbuf.EvictLowest(), {"envs": None, "capacity": 200}),
    "queue": (fbuf.Fifo(), {}),
}


def names(state, **options):
    """The names of the findings."""
    report = fbuf.report(state, **options)
    assert str(report)
    return [finding.name for finding in report.findings]


def few_of(names, few):
    """All names; those that are not among a few are for the sweep."""
    return [n if n in few else pytest.param(n, marks=pytest.mark.sweep) for n in names]


FEW_HEALTHY = ("uniform", "prioritized windows", "limited, fresh first", "grouped", "evict lowest")


@pytest.mark.first(2)
@pytest.mark.parametrize("name", few_of(HEALTHY, FEW_HEALTHY))
def test_a_buffer_in_good_order_has_no_finding(name):
    sampler, options = HEALTHY[name]
    report = fbuf.report(played(sampler, **options))
    assert not report.findings, report
    assert "Nothing is suspicious." in str(report)


def field(**new):
    """A change of fields: functions of the fields by name."""
    return lambda rows, flags: (rows | {n: make(rows[n]) for n, make in new.items()}, flags)


def flagged(**new):
    """A change of flags."""
    return lambda rows, flags: (rows, flags | {n: make(flags[n]) for n, make in new.items()})


def every(steps, **flags):
    """A change: the flags are set at every so many steps, as a limit of time does it."""
    at = np.arange(20) % steps == steps - 1
    return lambda rows, old: (
        rows,
        {n: np.broadcast_to(at & on, (4, 20)) for n, on in flags.items()},
    )


def dominated(sampler=fbuf.Prioritized()):
    """One priority is far above all others."""
    state = played(sampler)
    return fbuf.update_priority(
        state, fbuf.newest_ids(state, 1), jnp.full((4, 1), 1e7).at[1:].set(1)
    )


def of_rare_group():
    """Half of all draws come from 12 rows."""
    rare = np.broadcast_to(np.arange(20) == 19, (4, 20)).astype(np.int32)
    state = played(fbuf.Grouped("task", 2), change=field(task=lambda _: rare))
    gone = fbuf.group_ids(state, 1, 28)
    return fbuf.remove(state, gone)


def some_nan(rows):
    rows = rows.copy()
    rows[2, 7, 1] = np.nan
    return rows


def both(*changes):
    """Several changes."""

    def change(rows, flags):
        for one in changes:
            rows, flags = one(rows, flags)
        return rows, flags

    return change


NOTHING = flagged(terminated=np.zeros_like, truncated=np.zeros_like)
SPOILED = {
    "empty": lambda: fbuf.init({"reward": 0.0}, 8),
    "nothing_to_draw": lambda: played(fbuf.Uniform(window=30), steps=20),
    "short_episodes": lambda: played(fbuf.Uniform(window=20)),
    "not_finite": lambda: played(change=field(observation=some_nan)),
    "observation_constant": lambda: played(change=field(observation=np.ones_like)),
    "actions_alike": lambda: played(change=field(action=np.ones_like)),
    "never_written": lambda: fbuf.add(
        fbuf.init({"observation": jnp.zeros(2), "hidden": jnp.zeros(4)}, 100),
        {
            "observation": np.random.default_rng(0).normal(size=(90, 2)).astype("f"),
            "hidden": np.zeros((90, 4), "f"),
        },
    ),
    "rewards_zero": lambda: played(change=field(reward=np.zeros_like)),
    "rewards_constant": lambda: played(
        change=both(field(reward=lambda of: 0 * of - 1), every(10, truncated=True))
    ),
    "reward_scale": lambda: played(change=field(reward=lambda of: 1e5 * of)),
    "all_terminated": lambda: played(
        change=flagged(terminated=np.logical_not, truncated=np.zeros_like)
    ),
    "no_ends": lambda: played(change=NOTHING, steps=1100, capacity=8000),
    "terminated_never_set": lambda: played(
        change=lambda rows, flags: (rows, {"truncated": flags["terminated"]})
    ),
    "time_limit_terminates": lambda: played(change=every(20, terminated=True)),
    "returns_cut": lambda: played(capacity=40, change=every(20, terminated=True, truncated=False)),
    "one_row_dominates": dominated,
    "effective_sample_size_small": of_rare_group,
    "priorities_never_updated": lambda: played(fbuf.Prioritized(), updates=False),
    "fault_bad_priority": lambda: fbuf.update_priority(
        s := played(fbuf.Prioritized()), fbuf.newest_ids(s, 1), jnp.full((4, 1), jnp.nan)
    ),
    "fresh_rows_missed": lambda: played(fbuf.FreshFirst(most=2)),
    "groups_empty": lambda: played(fbuf.Grouped("task", 5)),
    "rows_without_group": lambda: played(
        fbuf.Grouped("task", 3), change=field(task=lambda of: np.where(of == 2, 2, -1).astype("i"))
    ),
}
ALSO = {
    "returns_cut": {"time_limit_terminates"},
    "fresh_rows_missed": {"fresh_rows_wait"},
    "rows_without_group": {"groups_empty"},
}
"""Other findings that the same fault may make."""


FEW_SPOILED = (
    "short_episodes",
    "empty",
    "not_finite",
    "rewards_zero",
    "one_row_dominates",
    "all_terminated",
)


@pytest.mark.parametrize("name", few_of(SPOILED, FEW_SPOILED))
def test_a_fault_makes_its_finding(name):
    report = fbuf.report(SPOILED[name]())
    found = {finding.name for finding in report.findings}
    assert name in found
    assert found <= {name} | ALSO.get(name, set()), report
    (finding,) = (finding for finding in report.findings if finding.name == name)
    assert finding.sentence.endswith(".")
    assert finding.remedy.endswith((".", ")"))
    assert f"{finding.severity}: {name}\n" in str(report)


@pytest.mark.parametrize(
    ("rows", "ends", "loaded", "expected"),
    [
        (12_000, [11_999], False, ["no_ends"]),  # a loader ends the last episode of a data set
        (9_000, [8_999], False, []),  # a task may have episodes as long
        (12_000, [5_999, 11_999], False, []),
        (1_200, [], True, ["no_ends"]),  # a load ends the open episode
        (900, [], True, []),
    ],
)
def test_ends_behind_the_newest_row_alone_are_none(tmp_path, rows, ends, loaded, expected):
    rng = np.random.default_rng(0)
    observation, reward = rng.normal(size=(rows, 2)).astype("f"), rng.random(rows).astype("f")
    item = {"observation": jnp.zeros(2), "reward": 0.0}
    state = fbuf.add(
        fbuf.init(item, 16_000),
        {"observation": observation, "reward": reward},
        truncated=np.isin(np.arange(rows), ends),
    )
    if loaded:
        fbuf.save(tmp_path, state)
        state = fbuf.load(tmp_path).state
    assert names(state) == expected


def ends_at(lanes, rows, flag, last):
    """A buffer whose lanes have one end each, at their last rows or one row before, or none."""
    at = np.arange(rows) == rows - 1 - np.asarray(last)[:, None]
    random = np.random.default_rng(0)
    found = {"observation": random.normal(size=(lanes, rows, 2)).astype("f")}
    found |= {"reward": random.random((lanes, rows)).astype("f"), "terminated": at}
    item = {"observation": jnp.zeros(2), "reward": 0.0, "terminated": False}
    state = fbuf.init(item, lanes * 16_000, num_envs=lanes, lockstep=False)
    return fbuf.add(state, found, **{flag: at})


@pytest.mark.parametrize(
    ("lanes", "rows", "flag", "last", "expected"),
    [
        (1, 200, "terminated", [0], []),  # the first episode has just ended
        (16, 200, "terminated", [0] * 16, ["time_limit_terminates"]),
        (2, 12_000, "truncated", [0, 0], ["no_ends"]),
        (2, 12_000, "truncated", [0, 1], []),
    ],
)
def test_one_episode_of_each_environment_is_told_from_missing_ends(
    lanes, rows, flag, last, expected
):
    assert names(ends_at(lanes, rows, flag, last)) == expected
