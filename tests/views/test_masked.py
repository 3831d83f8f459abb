"""Masked draws: no reward, no discount, and nothing of another row, by every view and buffer."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes, programs

import fbuf
from fbuf import sharded
from fbuf.host import HostStore

ITEM = {name: jnp.float32(0) for name in ("observation", "reward", "goal", "achieved_goal")}
ROWS, CAPACITY = 24, 32
ANYWHERE = {"random": 1, "future": 1}


def difference(achieved, goal):
    """The reward of a relabelled row; no other row has such a number."""
    return 100 + achieved - goal


VIEWS = {
    "transition": fbuf.Transition(),
    "n_step": fbuf.NStep(3, gamma=0.5),
    "n_steps": fbuf.NStep((1, 3), gamma=0.5),
    "sequence": fbuf.Sequence(2, boundary="pad", next_of="observation"),
    "hindsight": fbuf.Hindsight(difference, strategy=ANYWHERE, ratio=1.0, copies=2),
}
"""Views of next observations: they know of none where it is lost."""

OTHERS = {
    "frames": fbuf.FrameStack(3),
    "window": fbuf.Window({"observation": (-1, 0, 2)}),
    "zero": fbuf.Window({"reward": (0, 1)}, pad="zero"),
    "return": fbuf.ReturnToGo(0.5),
}


def rows_of(numbers, ends):
    """Rows whose fields all have their number, and what each has led to: the number and a half."""
    numbers = jnp.asarray(numbers, jnp.float32)
    return (
        dict.fromkeys(ITEM, numbers),
        {"next_observation": numbers + 0.5, "truncated": jnp.asarray(ends)},
    )


def check(batch, masked=None):
    """Nothing of a masked draw belongs to another row, and no number counts."""
    mask = np.asarray(batch.mask)
    assert masked is None or (mask == ~np.asarray(masked)).all()
    assert not np.asarray(batch.weight)[~mask].any()
    data = jax.tree.map(np.asarray, batch.data)
    for name in ("discount", "return_to_go", "complete", "relabelled"):
        assert not np.any(getattr(data, name, mask)[~mask])
    if isinstance(data, fbuf.NStepTransition):
        assert not data.reward[~mask].any()
        assert (data.steps[~mask] == 1).all()
    # One field is read by every view as it is stored: the number of the row.
    own = getattr(data, "item", data)["achieved_goal"]
    for draw in np.flatnonzero(~mask):
        allowed = {0.0, *np.unique(own[draw]).tolist()}
        assert len(allowed) <= 2
        one = jax.tree.map(lambda leaf, draw=draw: leaf[draw], data)
        counts = {"steps"}
        for path, leaf in jax.tree.leaves_with_path(one):
            if str(getattr(path[0], "name", "")) not in counts:
                assert set(np.unique(leaf).astype(float).tolist()) <= allowed, (path, leaf, allowed)
    return mask


def lost(make=fbuf.init, add=fbuf.add, **options):
    """A buffer of episodes of one step, with room for the last 4 of their ends."""
    state = make(ITEM, CAPACITY, next_of="observation", max_ends=4, **options)
    rows, led_to = rows_of(np.arange(1, ROWS + 1), np.ones(ROWS, bool))
    return add(state, rows, **led_to)


@pytest.mark.parametrize("name", VIEWS)
def test_a_draw_whose_next_observation_is_lost(name):
    sample = functools.partial(fbuf.sample, batch_size=16, view=VIEWS[name])
    batch = sample(lost(), jax.random.key(0))
    own = batch.data.item["achieved_goal"]
    mask = check(batch)
    assert 0 < mask.sum() < 16
    if name not in ("sequence", "hindsight"):
        np.testing.assert_array_equal(mask, np.asarray(own) > ROWS - 4)
    if name != "sequence":
        expected = np.where(mask, own + np.float32(0.5), own)
        np.testing.assert_array_equal(batch.data.next_observation, expected)


SWEPT = ("n_steps", "zero", "sequence", "transition")


def swept(names):
    """Mark some names as those of the sweep."""
    return [pytest.param(n, marks=[pytest.mark.sweep] * (n in SWEPT)) for n in names]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", swept([*VIEWS, *OTHERS]))
def test_draws_beyond_the_count_and_of_an_empty_buffer(name):
    """Episodes have 3 steps, so that there would be rewards, frames and goals to take."""
    view = (VIEWS | OTHERS)[name]
    sample = programs.compiled("sample")
    state = fbuf.init(ITEM, CAPACITY, next_of="observation", max_ends=CAPACITY)
    check(sample(state, jax.random.key(0), batch_size=8, view=view, count=5), np.ones(8, bool))
    rows, led_to = rows_of(np.arange(1, ROWS + 1), np.arange(ROWS) % 3 == 2)
    state = fbuf.add(state, rows, **led_to)
    batch = sample(state, jax.random.key(0), batch_size=8, view=view, count=5)
    check(batch, np.arange(8) >= 5)


STORED = {
    "n_step": fbuf.NStep(3, gamma=0.5, next_observation="goal"),
    "n_steps": fbuf.NStep((1, 3), gamma=0.5, next_observation="goal"),
}
"""Views of next observations that are a field of the row: they know all of them."""


@pytest.mark.parametrize("name", STORED)
def test_the_same_where_next_observations_are_stored(name):
    """Beyond the count, and where all priorities are 0."""
    rows, _ = rows_of(np.arange(1, ROWS + 1), False)
    draw = functools.partial(fbuf.sample, key=jax.random.key(0), batch_size=8, view=STORED[name])
    state = fbuf.add(fbuf.init(ITEM, CAPACITY), rows)
    check(draw(state, count=5), np.arange(8) >= 5)
    state = fbuf.init(ITEM, CAPACITY, sampler=fbuf.Prioritized(eps=0.0))
    state = fbuf.add(state, rows, priority=jnp.zeros(ROWS))
    check(draw(state), np.ones(8, bool))


def test_the_same_in_every_way():
    draw = functools.partial(fbuf.sample, batch_size=16, view=VIEWS["n_step"])
    keys = jax.random.split(jax.random.key(0), 2)
    batches = programs.every_way(draw, lost(), keys)
    for number in range(len(keys)):
        check(jax.tree.map(lambda leaf, number=number: leaf[number], batches))


@pytest.mark.first(1)
@pytest.mark.filterwarnings("ignore:HostStore.add. the next observations of")
@pytest.mark.parametrize("name", swept(["transition", "n_step", "hindsight", "return"]))
def test_rows_on_the_host(name):
    store = lost(HostStore, lambda store, rows, **led_to: store.add(rows, **led_to) or store)
    view = (VIEWS | OTHERS)[name]
    batch = store.sample(jax.random.key(0), 16, view=view)
    ours = fbuf.sample(lost(), jax.random.key(0), 16, view=view)
    jax.tree.map(np.testing.assert_array_equal, batch, ours)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["n_step", "hindsight"])
def test_over_a_mesh(name):
    make = functools.partial(sharded.init, mesh=meshes.mesh(1), shards=2)
    batch = sharded.sample(lost(make, sharded.add), jax.random.key(0), 16, view=VIEWS[name])
    mask = check(batch)
    assert 0 < mask.sum() < 16


def test_late_ids_read_nothing():
    state = lost()
    late = fbuf.Ids(jnp.int32([3, 4]), jnp.int32([7, 7]))
    for view in (VIEWS["transition"], VIEWS["n_step"], OTHERS["window"], OTHERS["return"]):
        batch = fbuf.read(state, late, view=view)
        assert not batch.mask.any()
        zeros = jax.tree.map(np.zeros_like, batch.data)
        jax.tree.map(np.testing.assert_array_equal, batch.data, zeros)
