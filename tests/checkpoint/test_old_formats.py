"""Checkpoints that older releases wrote, one of each format, kept as they wrote them."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import pickle
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from test_save import same, without_id
from test_save_damage import rewritten

import fbuf
from fbuf.checkpoint import manifest
from fbuf.host import HostStore
from fbuf.storage import wide_rows

KEPT = pathlib.Path(__file__).parents[1] / "checkpoints"
ITEM = {"obs": jnp.zeros(3), "image": jnp.zeros((9, 9), jnp.uint8), "of": (jnp.bfloat16(0),)}


def filled(number, leaf):
    """A field of two rows that hold a number each."""
    number = number.reshape(2, *[1] * leaf.ndim)
    return jnp.broadcast_to(number, (2, *leaf.shape)).astype(leaf.dtype)


def history():
    """The saved buffers, one after the other: some of every kind of file."""
    state = fbuf.init(
        ITEM, 12, num_envs=2, lockstep=False, sampler=fbuf.Prioritized(window=2), next_of="obs",
        max_ends=2,  # the default of the time
    )  # fmt: skip
    for turn in range(4):
        number = jnp.arange(2) + 2 * turn + 1
        rows = jax.tree.map(functools.partial(filled, number), ITEM)
        state = fbuf.add(
            state, rows, next_observation=rows["obs"] + 2, terminated=np.array([turn == 1, False]),
            priority=number.astype(jnp.float32), mask=np.array([True, turn != 2]),
        )  # fmt: skip
        if turn == 3:
            state = fbuf.write(state, fbuf.ids_at(state, jnp.array([0])), {"obs": jnp.ones((1, 3))})
            state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([2])))
        key = jax.random.key(turn, impl="threefry2x32")
        yield jax.tree.map(jnp.copy, state), {"turn": turn, "key": key}


def without_newest(state):
    """They did not say which row the next observation of each lane's newest row is of."""
    owner = state.next_obs.owner.at[: state.ring.lanes].set(-1)
    fault = state.fault & ~jnp.uint32(fbuf.Fault.BROKEN_EPISODE)
    next_obs = dataclasses.replace(state.next_obs, owner=owner)
    return dataclasses.replace(state, next_obs=next_obs, fault=fault)


def rows_of(folder):
    """The files of rows, and how many rows each has."""
    newest = manifest.read(folder, manifest.numbers(folder)[-1])
    return {of.file: sum(of.counts) for of in newest.segments["rows"]}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "has_save_id"), [("format-1", False), ("format-2", False), ("format-3", True)]
)
def test_it_is_read_as_it_was_saved(tmp_path, name, has_save_id):
    """And goes on in today's format: with what is new where it has a save id, else with all."""
    folder = tmp_path / name
    shutil.copytree(KEPT / name, folder)
    before = rows_of(folder)
    *_, (expected, extra) = history()
    expected = expected if has_save_id else without_newest(expected)
    state, beside = restored.load(folder)
    assert (state.ring.save_id > 0).all() == has_save_id
    same(without_id(state), expected)
    assert beside["turn"] == extra["turn"]
    assert beside["key"] == extra["key"]
    state = fbuf.save(folder, fbuf.end_episode(state))
    same(restored.load(folder).state, state)
    if has_save_id:
        assert rows_of(folder) == before  # there are no new rows
    else:
        assert [*rows_of(folder).values()] == [int(fbuf.stats(state)["size"]) + 1]  # a removed one
        assert not rows_of(folder).keys() & before.keys()
    before = rows_of(folder)
    rows = jax.tree.map(functools.partial(filled, jnp.arange(2) + 9), ITEM)
    state = fbuf.save(folder, fbuf.add(state, rows, next_observation=rows["obs"] + 2))
    same(restored.load(folder).state, state)
    assert [count for name, count in rows_of(folder).items() if name not in before] == [2]


def test_a_mark_of_version_0_2_is_no_save_id(tmp_path):
    """Where the save id is now, a loop of that version had a random number from its last save."""
    state = fbuf.save(tmp_path, fbuf.add(fbuf.init(jnp.zeros(()), 4), jnp.arange(3.0)))
    assert (state.ring.save_id > 0).all()
    written = dataclasses.asdict(manifest.read(tmp_path, 1))
    del written["save_id"]
    rewritten(tmp_path / manifest.name_of(1), written, version=2)
    same(restored.load(tmp_path).state, without_id(state))


def without_floor(data):
    """A manifest of a version whose priorities had no floor."""
    if isinstance(data, dict):
        return {name: without_floor(value) for name, value in data.items() if name != "floor"}
    return data


@pytest.mark.parametrize("kind", ["plain", "mixture"])
def test_a_sampler_that_was_saved_without_a_floor_is_read(tmp_path, kind):
    def sampler(**options):
        one = fbuf.Prioritized(0.5, **options)
        return one if kind == "plain" else fbuf.Mixture(0.3, priorities=one)

    state = fbuf.init(jnp.zeros(()), 8, sampler=sampler())
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.arange(3.0), priority=jnp.arange(3.0)))
    written = without_floor(dataclasses.asdict(manifest.read(tmp_path, 1)))
    rewritten(tmp_path / manifest.name_of(1), written)
    assert b"floor" not in (tmp_path / manifest.name_of(1)).read_bytes()
    for given in (None, sampler()):
        same(restored.load(tmp_path, sampler=given).state, state)
    with pytest.raises(fbuf.CheckpointError, match=r"floor=0\.0.* has .*1\.0"):
        fbuf.load(tmp_path, sampler=sampler(floor=1.0))
    before = rows_of(tmp_path)
    state = fbuf.save(tmp_path, fbuf.add(restored.load(tmp_path).state, jnp.ones(1)))
    same(restored.load(tmp_path).state, state)
    assert [n for name, n in rows_of(tmp_path).items() if name not in before] == [1]  # what is new


def test_a_pickle_of_version_0_2_is_read():
    state = fbuf.init(jnp.zeros(()), 8, sampler=fbuf.Prioritized())
    state = fbuf.add(state, jnp.arange(4.0))
    tree = state.index.tree
    older = object.__new__(type(tree))
    older.__dict__.update({"dormant" if n == "inactive" else n: v for n, v in vars(tree).items()})
    older = dataclasses.replace(state, index=dataclasses.replace(state.index, tree=older))
    restored = pickle.loads(pickle.dumps(older))
    same(fbuf.add(restored, jnp.arange(2.0)), fbuf.add(state, jnp.arange(2.0)))


def test_pickles_of_version_0_3_name_classes_by_other_modules_and_are_read():
    found = pickle.loads((KEPT / "states-0.3.pkl").read_bytes())
    task = jnp.arange(10, dtype=jnp.int32) % 2
    rows = {"x": jnp.arange(20.0).reshape(10, 2), "task": task}
    for name, state in found.items():
        made = fbuf.init({"x": jnp.zeros(2), "task": jnp.int32(0)}, 8, sampler=state.sampler)
        made = fbuf.add(made, rows, terminated=jnp.arange(10) % 4 == 3)
        chex.assert_trees_all_equal(state.index, made.index)
        drawn = fbuf.draw if state.sampler.notes_draws else fbuf.sample
        batches = [drawn(of, jax.random.key(0), 16) for of in (state, made)]
        data = [(of[1] if isinstance(of, tuple) else of).data for of in batches]
        chex.assert_trees_all_equal(*data, custom_message=name)


SMALL = {
    "obs": jnp.zeros(40, jnp.bfloat16),
    "code": jnp.zeros(70, jnp.float8_e5m2),
    "grid": jnp.zeros((3, 3), jnp.int4),
    "bits": jnp.zeros((), jnp.uint2),
}


def small_rows(turn):
    """Two rows of numbers from 0 to 3."""

    def filled(leaf):
        number = (np.arange(2) + 2 * turn).reshape(2, *[1] * leaf.ndim)
        return (number + np.arange(leaf.size).reshape(leaf.shape)) % 4

    return jax.tree.map(lambda leaf: jnp.asarray(filled(leaf).astype(leaf.dtype)), SMALL)


def of_small_numbers():
    state = fbuf.init(SMALL, 12, num_envs=2, next_of="obs", max_ends=2)
    for turn in range(4):
        state = fbuf.add(
            state,
            small_rows(turn),
            next_observation=small_rows(turn + 1)["obs"],
            terminated=np.array([turn == 1, False]),
        )
    grid = {"grid": jnp.full((1, 3, 3), -2, jnp.int4)}
    return fbuf.write(state, fbuf.ids_at(state, jnp.array([1])), grid)


def alike(one, other):
    """Whether two buffers have the same rows, with the same next observations."""
    for view in (fbuf.Item(), fbuf.Transition()):
        rows = [jax.tree.leaves(of.rows(view=view).data) for of in (one, other)]
        for mine, its in zip(*rows, strict=True):
            np.testing.assert_array_equal(mine, its)


@dataclasses.dataclass
class Rows:
    """A state with the method of a store."""

    state: fbuf.State

    def rows(self, view):
        return fbuf.rows(self.state, view=view)


def test_numbers_that_lay_as_they_were_are_read(tmp_path):
    """This format has them as NumPy has them, whatever they lie as in the arrays of a buffer."""
    folder = tmp_path / "run"
    shutil.copytree(KEPT / "format-3-small-numbers", folder)
    expected = of_small_numbers()
    state = restored.load(folder).state
    same(without_id(state), expected)
    opened, _ = HostStore.open(folder, episodes="keep")
    alike(opened, Rows(expected))
    alike(HostStore.load(folder, episodes="keep")[0], Rows(expected))
    before = rows_of(folder)
    new = (small_rows(4), small_rows(5)["obs"])
    state = fbuf.save(folder, fbuf.add(state, new[0], next_observation=new[1]))
    same(restored.load(folder).state, state)
    assert [n for name, n in rows_of(folder).items() if name not in before] == [2]  # what is new
    opened.add(new[0], next_observation=new[1])
    opened.save(tmp_path / "other")
    for saved in (folder, tmp_path / "other"):
        alike(Rows(restored.load(saved).state), Rows(state))


def test_a_pickle_with_numbers_that_lay_as_they_were_is_read():
    def older(storage):
        wide = zip(storage.fields[1:], storage.wide, strict=True)
        return dataclasses.replace(storage, wide=tuple(wide_rows.read(*pair) for pair in wide))

    state = of_small_numbers()
    kept = dataclasses.replace(state.next_obs, rows=older(state.next_obs.rows))
    before = dataclasses.replace(state, storage=older(state.storage), next_obs=kept)
    dtypes = ["uint2", "float8_e5m2", "int4", "bfloat16"]
    assert [leaf.dtype for leaf in before.storage.wide] == dtypes
    for made in (before, jax.device_get(before)):
        same(pickle.loads(pickle.dumps(made)), state)
    seeds = pickle.loads(pickle.dumps(jax.tree.map(lambda leaf: leaf[None], before)))
    same(jax.tree.map(lambda leaf: leaf[0], seeds), state)
