"""Saves of buffers whose laps pass 2**32: a lap is an int32, and goes around."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes, restored
from test_save import same, seen

import fbuf
from fbuf.checkpoint import deletable, lineage
from fbuf.host import HostStore

pytestmark = pytest.mark.filterwarnings("ignore:fbuf.load. the next observations of")
ITEM = {"x": jnp.int32(0)}
CAPACITY = 6


def at_lap(state, lap):
    """An empty buffer that begins at a lap."""
    ring = dataclasses.replace(state.ring, cursor=state.ring.cursor.at[1].set(lap))
    kept = state.next_obs
    if kept is not None:
        kept = dataclasses.replace(kept, cursor=kept.cursor.at[1].set(lap))
    return dataclasses.replace(state, ring=ring, next_obs=kept)


def step(number):
    """One row, and what comes with it: every second one ends an episode."""
    row = {"x": jnp.full(1, number, jnp.int32)}
    return row, {
        "next_observation": jnp.full(1, number + 1, jnp.int32),
        "terminated": jnp.array([number % 2 == 1]),
    }


def restarted(monkeypatch):
    """As if the process had been started again."""
    monkeypatch.setattr(lineage, "_parents", {})
    monkeypatch.setattr(deletable, "_heads", {})


@pytest.mark.first(1)
@pytest.mark.parametrize("lap", [-1, pytest.param(-2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("every", [1, 4, 9])
def test_a_buffer_is_saved_and_loaded_at_every_lap(tmp_path, monkeypatch, lap, every):
    """As what is new, after a restart, and whole: each time the same rows come back."""
    state = at_lap(fbuf.init(ITEM, CAPACITY, next_of="x", max_ends=2), lap)
    for number in range((2 - lap) * CAPACITY + 2):
        row, given = step(number)
        state = fbuf.add(state, row, **given)
        if number % every == every - 1:
            state = fbuf.save(tmp_path / "one", state)
            same(seen(restored.load(tmp_path / "one").state), seen(state))
            fbuf.save(tmp_path / str(number), lineage.with_id(state, 0))
            same(seen(restored.load(tmp_path / str(number)).state), seen(state))
            if number % 8 == 7:
                restarted(monkeypatch)
                state = fbuf.load(tmp_path / "one", episodes="keep").state
    assert int(state.ring.lap[0]) == 2


def test_what_is_new_alone_is_written_around_the_last_lap(tmp_path):
    state = at_lap(fbuf.init(jnp.zeros(100), 64), -1)
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.zeros((60, 100))))
    for turn in range(3):
        before = set(tmp_path.rglob("rows-*"))
        state = fbuf.save(tmp_path, fbuf.add(state, jnp.full((5, 100), turn, jnp.float32)))
        (new,) = set(tmp_path.rglob("rows-*")) - before
        assert 5 * 400 <= new.stat().st_size < 6 * 400
        same(seen(restored.load(tmp_path).state), seen(state))


@pytest.mark.sweep
def test_a_store_on_the_host_is_saved_at_every_lap(tmp_path):
    state = at_lap(fbuf.init(ITEM, CAPACITY, next_of="x", max_ends=CAPACITY), -1)
    row, given = step(0)
    fbuf.save(tmp_path, fbuf.add(state, row, **given))
    for read in (HostStore.load, HostStore.open):
        store, _ = read(tmp_path)
        for number in range(1, 9):
            row, given = step(number)
            store.add(row, **given)
            store.save(tmp_path)
            loaded = restored.load(tmp_path).state
            again = read(tmp_path)[0]
            for view in (fbuf.Item(), fbuf.Transition()):
                mask = np.asarray(store.rows(view=view).mask)
                expected, *found = (
                    jax.tree.map(lambda leaf, mask=mask: np.asarray(leaf)[mask], batch.data)
                    for batch in (of.rows(view=view) for of in (store, again))
                )
                found.append(
                    jax.tree.map(
                        lambda leaf, mask=mask: np.asarray(leaf)[mask],
                        fbuf.rows(loaded, view=view).data,
                    )
                )
                for of in found:
                    same(of, expected)


def test_a_buffer_over_a_mesh_is_saved_at_every_lap(tmp_path):
    mesh = meshes.mesh(1)
    state = fbuf.sharded.init(jnp.int32(0), 16, mesh=mesh, shards=2)
    state = dataclasses.replace(
        state,
        blocks=dataclasses.replace(
            state.blocks,
            ring=dataclasses.replace(
                state.blocks.ring,
                cursor=state.blocks.ring.cursor.at[lap_rows(state.blocks.ring.cursor)].set(-1),
            ),
        ),
    )
    for turn in range(6):
        state = fbuf.sharded.add(state, jnp.arange(4, dtype=jnp.int32) + 4 * turn)
        state = fbuf.sharded.save(tmp_path, state)
        again = restored.sharded_load(tmp_path, mesh=mesh).state
        for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(one, other)
    assert (np.asarray(state.blocks.ring.cursor)[lap_rows(state.blocks.ring.cursor)] == 0).all()


def lap_rows(cursor):
    """Where the laps are in the cursors of all shards, one behind the other."""
    return np.arange(cursor.shape[0]) % 5 == 1
