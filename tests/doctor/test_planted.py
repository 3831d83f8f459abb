"""The usual bugs of replay programs, each planted into a healthy run; and what a report says."""

from __future__ import annotations

import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.cart import buffer, run

import fbuf


class Planted(NamedTuple):
    """A bug: a change of rows and flags, how next observations are stored, and what is seen.

    `seen` has the findings of which one must be there; empty where a report cannot see the bug.
    """

    words: str
    change: Any
    stored: str
    seen: tuple[str, ...]
    of: Any = None


def field(**new):
    """A change of fields."""
    return lambda rows, flags: (rows | {n: make(rows[n]) for n, make in new.items()}, flags)


def flag(**new):
    """A change of flags."""
    return lambda rows, flags: (rows, flags | {n: make(flags[n]) for n, make in new.items()})


def later(by):
    """The rows of each environment some steps later."""
    return lambda leaf: np.roll(leaf, by, axis=1)


def others(leaf):
    """The rows of another environment."""
    return np.roll(leaf, 1, axis=0)


def no_ends(rows, flags):
    return rows, {name: np.zeros_like(leaf) for name, leaf in flags.items()}


def flags_of_others(rows, flags):
    return rows, {name: others(leaf) for name, leaf in flags.items()}


def flags_later(by):
    return lambda rows, flags: (rows, {name: later(by)(leaf) for name, leaf in flags.items()})


def as_terminated(rows, flags):
    ends = flags["terminated"] | flags["truncated"]
    return rows, {"terminated": ends, "truncated": np.zeros_like(ends)}


def as_truncated(rows, flags):
    ends = flags["terminated"] | flags["truncated"]
    return rows, {"terminated": np.zeros_like(ends), "truncated": ends}


def swapped(rows, flags):
    return rows, {"terminated": flags["truncated"], "truncated": flags["terminated"]}


def goes_on(rows, flags):
    """Every tenth row is given as terminated, and the episode goes on."""
    at = np.broadcast_to(np.arange(rows["reward"].shape[1]) % 10 == 9, rows["reward"].shape)
    return rows, {"terminated": at | flags["terminated"], "truncated": flags["truncated"] & ~at}


def own_next(rows, flags):
    return rows | {"next_observation": rows["observation"]}, flags


def own_at_limits(rows, flags):
    cut, own = flags["truncated"][..., None], rows["observation"]
    return rows | {"next_observation": np.where(cut, own, rows["next_observation"])}, flags


def next_of_reset(rows, flags):
    """The next observation is that which the next step begins with, whatever comes in between."""
    return rows | {"next_observation": later(-1)(rows["observation"])}, flags


def discounted(rows, flags):
    ends = flags["terminated"] | flags["truncated"]
    age, factor = np.zeros(len(ends)), np.ones_like(rows["reward"])
    for step in range(ends.shape[1]):
        factor[:, step] = 0.95**age
        age = np.where(ends[:, step], 0, age + 1)
    return rows | {"reward": rows["reward"] * factor}, flags


def held(every):
    """The observation of some steps ago: a simulator has written into an array that was kept."""
    return lambda leaf: leaf[:, np.arange(leaf.shape[1]) // every * every]


def normalised(leaf):
    return (leaf - 0.1) / 0.7


def frozen(leaf):
    leaf = leaf.copy()
    leaf[2] = leaf[2, :1]
    return leaf


def twice(rows, flags):
    double = lambda leaf: np.repeat(leaf, 2, axis=1)
    return ({n: double(x) for n, x in rows.items()}, {n: double(x) for n, x in flags.items()})


def again(rows, flags):
    double = lambda leaf: np.concatenate([leaf, leaf], axis=1)
    return ({n: double(x) for n, x in rows.items()}, {n: double(x) for n, x in flags.items()})


def clipped(leaf):
    return np.clip(20 * leaf, -1, 1)


def some_nan(leaf):
    leaf = leaf.copy()
    leaf[1, 7] = np.nan
    return leaf


def dark(rows, flags):
    """Frames in [0, 1] that were made bytes."""
    image = np.random.default_rng(0).random((*rows["reward"].shape, 32, 32))
    return rows | {"frame": (image > 0.99).astype(np.uint8)}, flags


def wrapped(rows, flags):
    """Frames that were multiplied by 255 twice, and have run over."""
    image = np.random.default_rng(0).integers(0, 256, (*rows["reward"].shape, 32, 32))
    return rows | {"frame": (image * 255).astype(np.uint8)}, flags


def half_constant(rows, flags):
    more = np.zeros((*rows["reward"].shape, 2), np.float32)
    return rows | {n: np.concatenate([rows[n], more], -1) for n in
                   ("observation", "next_observation")}, flags  # fmt: skip


def renormalised(rows, flags):
    """The next observation is normalised once more than the observation."""
    return rows | {"next_observation": rows["next_observation"] / 0.7}, flags


BUGS = {
    "own next observation, as a field": Planted(
        "the next observation is the observation itself", own_next, "field",
        ("next_observation_is_observation",),
    ),
    "own next observation, kept": Planted(
        "the same, with `next_of`", own_next, "kept", ("next_observation_is_observation",)
    ),
    "own next observation of truncated rows": Planted(
        "the next observation of truncated rows is the observation itself", own_at_limits, "field",
        ("next_observation_is_observation",), {"noise": 0.3, "steps": 320},
    ),
    "next observation of a reset": Planted(
        "after a truncated row, the next observation is of the next episode", next_of_reset,
        "field", ("next_observation_after_reset",), {"noise": 0.3, "steps": 800},
    ),
    "next observation one row late": Planted(
        "the next observation is of another row", field(next_observation=later(-1)), "field",
        ("next_observation_of_another_row",),
    ),
    "next observation one row early": Planted(
        "the next observation is that of the step before", field(next_observation=later(2)),
        "field", ("next_observation_of_another_row",),
    ),
    "next observation of another environment": Planted(
        "the next observation is of another environment", field(next_observation=others),
        "field", ("next_observation_of_another_row",),
    ),
    "observations shifted against the rest": Planted(
        "observations are of other rows than the rest", field(observation=later(1)),
        "field", ("next_observation_is_observation", "next_observation_of_another_row"),
    ),
    "next observation normalised twice": Planted(
        "the next observation is normalised in another way", renormalised, "kept",
        ("fault_broken_episode",),
    ),
    "terminated within an episode": Planted(
        "terminated where there is no end", goes_on, "field", ("terminated_goes_on",),
    ),
    "terminated within an episode, kept": Planted(
        "the same, with `next_of`", goes_on, "kept", ("terminated_goes_on",)
    ),
    "ends one row late": Planted(
        "ends are flagged one row late", flags_later(1), "none", ("ends_shifted",)
    ),
    "ends one row early": Planted(
        "ends are flagged one row early", flags_later(-1), "field",
        ("ends_shifted", "terminated_goes_on"),
    ),
    "ends of another environment": Planted(
        "ends are those of another environment", flags_of_others, "field",
        ("next_observation_breaks", "terminated_goes_on"),
    ),
    "no ends": Planted(
        "no row ends an episode", no_ends, "none", ("no_ends",), {"steps": 1100}
    ),
    "limits of time as terminated": Planted(
        "limits of time are terminated", as_terminated, "field", ("time_limit_terminates",),
        {"noise": 0.65, "steps": 800},
    ),
    "all ends as truncated": Planted(
        "every end is truncated", as_truncated, "field", ("terminated_never_set",)
    ),
    "ends swapped": Planted(
        "terminated and truncated are swapped", swapped, "field", ("ends_swapped",),
        {"noise": 0.75, "steps": 800},
    ),
    "masks as terminated": Planted(
        "the mask is given as terminated", flag(terminated=np.logical_not, truncated=np.zeros_like),
        "none", ("all_terminated",),
    ),
    "masks as truncated": Planted(
        "the mask is given as truncated", flag(truncated=np.logical_not, terminated=np.zeros_like),
        "none", ("all_truncated",),
    ),
    "rewards one row late": Planted(
        "rewards are one row late", field(reward=later(1)), "field", ("rewards_late",)
    ),
    "rewards one row early": Planted(
        "rewards are one row early", field(reward=later(-1)), "none", ("rewards_early",)
    ),
    "rewards of another environment": Planted(
        "rewards are those of another environment", field(reward=others), "kept",
        ("rewards_of_another_environment",),
    ),
    "rewards discounted": Planted(
        "rewards are multiplied by the discount of their step", discounted, "none",
        ("rewards_discounted",),
    ),
    "rewards far too large": Planted(
        "rewards have a wrong scale", field(reward=lambda of: 1e5 * of), "none", ("reward_scale",)
    ),
    "actions one row early": Planted(
        "actions are one row early", field(action=later(-1)), "none", ("actions_early",)
    ),
    "actions one row late": Planted(
        "actions are one row late", field(action=later(1)), "none", ("actions_late",)
    ),
    "actions clipped": Planted(
        "actions are clipped from a far larger range", field(action=clipped), "none",
        ("actions_saturated",),
    ),
    "one action": Planted(
        "the action is always the same", field(action=np.zeros_like), "none", ("actions_alike",)
    ),
    "observations are copies": Planted(
        "observations of one array, which the simulator writes anew", field(observation=held(10)),
        "none", ("observations_repeated",),
    ),
    "frozen environment": Planted(
        "one environment is frozen", field(observation=frozen), "none", ("environment_frozen",)
    ),
    "seeds shared": Planted(
        "environments share a seed", field(), "none", ("environments_alike",),
        {"seeds": [0, 1, 0, 2]},
    ),
    "rows twice": Planted("rows are added twice", twice, "none", ("rows_twice",)),
    "data twice": Planted("a small data set is loaded twice", again, "none", ("rows_twice",)),
    "NaN": Planted("NaN or an infinity", field(observation=some_nan), "none", ("not_finite",)),
    "dark frames": Planted(
        "frames in [0, 1] are stored as bytes", dark, "none", ("frames_dark",)
    ),
    "wrapped frames": Planted("bytes of frames have run over", wrapped, "none", ()),
    "normalised twice": Planted(
        "observation and next observation are normalised twice",
        field(observation=normalised, next_observation=normalised),
        "field", (),
    ),
    "constant features": Planted(
        "some numbers of the observation never change", half_constant, "field", ()
    ),
    "actions out of bounds": Planted(
        "actions are outside of the bounds of the task", field(action=lambda of: 3 * of), "none", ()
    ),
    "rewards of the wrong sign": Planted(
        "rewards have the wrong sign", field(reward=np.negative), "none", ()
    ),
}  # fmt: skip


def found(name):
    """The findings of a run with a bug."""
    bug = BUGS[name]
    rows, flags = bug.change(*run(**{"steps": 240} | (bug.of or {})))
    return [
        finding.name for finding in fbuf.report(buffer(rows, flags, stored=bug.stored)).findings
    ]


QUICK = (
    "own next observation, kept",
    "next observation one row late",
    "terminated within an episode",
    "ends one row late",
    "rewards one row late",
    "seeds shared",
    "dark frames",
)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.sweep) for n in BUGS]
)
def test_a_planted_bug_is_seen_as_the_page_says(name):
    names, bug = found(name), BUGS[name]
    if bug.seen:
        assert set(bug.seen) & set(names), names
    else:
        assert names == []


def of_n_steps(rows, flags, count=3):
    """Rows that lead some steps further, to the end of their episode at most."""
    following, ends = rows["next_observation"].copy(), flags["terminated"] | flags["truncated"]
    for env, step in np.ndindex(ends.shape):
        stop = np.append(ends[env, step : step + count - 1], True)
        last = min(step + int(stop.argmax()), ends.shape[1] - 1)
        following[env, step] = rows["next_observation"][env, last]
    return rows | {"next_observation": following}, flags


def in_no_order(rows, flags):
    order = np.random.default_rng(0).permutation(rows["reward"].shape[1])
    shuffled = {name: leaf[:, order] for name, leaf in rows.items()}
    return shuffled, {"terminated": flags["terminated"][:, order], "truncated": np.ones_like(
        flags["truncated"])}  # fmt: skip


def resets_behind_terminated(rows, flags):
    """The observation of the reset, where a target needs none, as many programs store it."""
    following = next_of_reset(rows, flags)[0]["next_observation"]
    there = flags["terminated"][..., None]
    return rows | {"next_observation": np.where(there, following, rows["next_observation"])}, flags


def on_a_grid(rows, flags):
    """Places on a grid: most rows are there already."""
    grid = lambda leaf: np.round(leaf).astype(np.int32)
    names = ("observation", "next_observation")
    return rows | {name: grid(rows[name]) for name in names}, flags


def sparse(rows, flags):
    return rows | {"reward": flags["terminated"].astype(np.float32)}, flags


def with_frames(rows, flags):
    image = np.random.default_rng(0).integers(0, 256, (*rows["reward"].shape, 32, 32))
    return rows | {"frame": image.astype(np.uint8)}, flags


same = lambda rows, flags: (rows, flags)
HEALTHY = {
    "a field": (same, "field", {}),
    "kept": (same, "kept", {}),
    "none": (same, "none", {}),
    "a policy": (same, "field", {"noise": 0.0}),
    "a policy, kept": (same, "kept", {"noise": 0.3}),
    "choices": (same, "field", {"discrete": True}),
    "one environment": (same, "none", {"envs": 1, "steps": 800}),
    "of n steps": (of_n_steps, "field", {}),
    "in no order": (in_no_order, "field", {}),
    "resets behind terminated rows": (resets_behind_terminated, "field", {}),
    "resets behind terminated rows, kept": (resets_behind_terminated, "kept", {}),
    "a grid": (on_a_grid, "field", {"discrete": True}),
    "sparse rewards": (sparse, "none", {}),
    "frames": (with_frames, "none", {}),
    "both kinds of ends": (same, "kept", {"noise": 0.75, "steps": 800}),
}


@pytest.mark.parametrize(
    "name",
    [n if n in ("a field", "kept", "of n steps", "resets behind terminated rows")
     else pytest.param(n, marks=pytest.mark.sweep) for n in HEALTHY],
)  # fmt: skip
def test_a_healthy_run_has_no_finding(name):
    change, stored, options = HEALTHY[name]
    rows, flags = change(*run(**{"steps": 240} | options))
    report = fbuf.report(buffer(rows, flags, stored=stored))
    assert report.findings == (), report


def test_the_page_says_what_a_report_sees():
    page = pathlib.Path(__file__).parents[2] / "docs" / "know" / "what_a_report_sees.md"
    if not page.exists():
        pytest.skip("the pages come with a clone")
    rows = [
        f"| {bug.words} | {', '.join(f'`{name}`' for name in bug.seen) or 'nothing'} |"
        for bug in BUGS.values()
    ]
    (table,) = re.findall(
        r"\| the bug \| the report says \|\n\|[-| ]+\|\n((?:\|.*\n)+)", page.read_text()
    )
    assert table.splitlines() == rows, "\n" + "\n".join(rows)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.sweep)]
)
def test_steps_that_only_reset_are_no_rows_to_a_report(name):
    """As in Gymnasium's default mode, where each end is followed by such a step."""
    gym = pytest.importorskip("gymnasium")
    from fbuf_adapters.gymnasium import Collector

    envs = gym.make_vec(name, num_envs=2, vectorization_mode="sync")
    envs.action_space.seed(0)
    with Collector(envs, lambda *_: envs.action_space.sample(), seed=0) as collector:
        state = fbuf.init(collector.item, 4000, **collector.options)
        report = fbuf.report(collector.collect(state, 1000))
    assert report.findings == (), report


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_few_states_come_again_in_a_healthy_run(kind):
    """Places on a grid, one number for each place: single rows are there often, and no run is."""
    rng, place = np.random.default_rng(0), np.zeros(2, np.int64)
    places, actions, ends = [], rng.integers(0, 4, 1600, dtype=np.int32), []
    for action in actions:
        places.append(place[0] * 5 + place[1])
        place = np.clip(place + [(0, 1), (1, 0), (0, -1), (-1, 0)][action], 0, 4)
        ends.append(bool((place == 4).all()))
        place = np.zeros(2, np.int64) if ends[-1] else place
    rows = {
        "observation": np.eye(25, dtype=kind)[places],
        "action": actions,
        "reward": np.array(ends, np.float32),
    }
    state = fbuf.init(jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows), 1600)
    report = fbuf.report(fbuf.add(state, rows, terminated=np.array(ends)))
    assert report.findings == (), report
