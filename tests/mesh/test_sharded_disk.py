"""A buffer over a mesh on disk, and with another number of shards."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes, restored
from support.meshes import SAMPLERS
from test_sharded import same

import fbuf
from fbuf import sharded
from fbuf.storage.ring import TRUNCATED, UNFINISHED

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


def unmarked(state):
    """The arrays, without the mark of the last save."""
    cursor = state.blocks.ring.cursor.reshape(state.num_shards, 5, -1)[:, :3]
    ring = dataclasses.replace(state.blocks.ring, cursor=cursor)
    return list(map(np.asarray, jax.tree.leaves(dataclasses.replace(state.blocks, ring=ring))))


def made(sampler, devices=4, shards=4, turns=3, seed=0, **options):
    """A buffer with some rows, some of them removed."""
    state = meshes.empty(sharded, sampler, mesh=meshes.mesh(devices), shards=shards, **options)
    return more(state, turns, seed)


def more(state, turns=1, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(turns):
        new = meshes.rows(rng, 6)
        if not state.blocks.sampler.keeps_priorities:
            new.pop("priority")
        state = sharded.add(state, new.pop("items"), **new)
    step = 0 if state.blocks.sampler.without_replacement else None
    batch = sharded.sample(state, jax.random.key(seed), 8, step=step)
    return sharded.remove(state, batch.ids, mask=np.arange(8) < 2)


def drawn(state):
    step = 1 if state.blocks.sampler.without_replacement else None
    return sharded.sample(state, jax.random.key(3), 16, step=step)


@pytest.mark.sweep
@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.sweep)])
def test_a_checkpoint_is_read_on_any_mesh_that_divides_the_shards(tmp_path, devices):
    state = made(SAMPLERS["prioritized"])
    state = sharded.save(tmp_path, state, extra={"step": 1, "key": jax.random.key(5)})
    state = sharded.save(tmp_path, more(state), extra={"step": 2, "key": jax.random.key(6)})
    again, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(devices))
    assert extra["step"] == 2
    assert (jax.random.key_data(extra["key"]) == jax.random.key_data(jax.random.key(6))).all()
    same(unmarked(state), unmarked(again))
    same(drawn(state), drawn(again))
    with pytest.raises(fbuf.CheckpointError, match=r"4 shards, and the mesh has 3 .*give shards="):
        restored.sharded_load(tmp_path, mesh=meshes.mesh(3))


@pytest.mark.sweep
def test_only_what_is_new_is_written(tmp_path):
    state = made(SAMPLERS["uniform"], turns=3)
    state = sharded.save(tmp_path, state)
    rows = sorted(tmp_path.glob("of-shard-*/shard-*/rows-*"))
    state = sharded.save(tmp_path, more(state))
    new = set(tmp_path.glob("of-shard-*/shard-*/rows-*")) - set(rows)
    assert len(new) == 4
    assert max(path.stat().st_size for path in new) < min(path.stat().st_size for path in rows)
    same(unmarked(state), unmarked(restored.sharded_load(tmp_path, mesh=meshes.mesh(2)).state))


@pytest.mark.sweep
def test_what_no_manifest_names_was_never_saved(tmp_path):
    """Shards that were written, and then the process died before the manifest."""
    state = sharded.save(tmp_path, made(SAMPLERS["uniform"]), extra={"step": 1})
    first = unmarked(state)
    sharded.save(tmp_path, more(state), extra={"step": 2})
    (tmp_path / "SHARDS-00000002").unlink()
    again, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(4))
    assert extra["step"] == 1
    same(first, unmarked(again))
    for _ in range(3):  # and what was left behind goes, and takes nothing with it
        again = sharded.save(tmp_path, again, extra={"step": 3})
        (tmp_path / f"SHARDS-{max(map(int, numbers(tmp_path))):08}").unlink()
    again, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(4))
    assert extra["step"] == 1
    same(first, unmarked(again))


def numbers(folder):
    return [path.name.split("-")[1] for path in folder.glob("SHARDS-*")]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "how",
    ["manifest", *(pytest.param(how, marks=pytest.mark.sweep) for how in ("shard", "missing"))],
)
def test_damage_is_an_error_or_the_checkpoint_before(tmp_path, how):
    state = sharded.save(tmp_path, made(SAMPLERS["uniform"]), extra={"step": 1})
    first = unmarked(state)
    sharded.save(tmp_path, more(state), extra={"step": 2})
    path = {
        "manifest": tmp_path / "SHARDS-00000002",
        "shard": tmp_path / "of-shard-00001" / "MANIFEST-00000002",
        "missing": tmp_path / "of-shard-00002" / "MANIFEST-00000002",
    }[how]
    if how == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(fbuf.CheckpointError, match=r"is missing|damaged"):
        restored.sharded_load(tmp_path, mesh=meshes.mesh(2))
    with pytest.warns(UserWarning, match="reading the checkpoint before it"):
        again, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(2), fallback=True)
    assert extra["step"] == 1
    same(first, unmarked(again))


def test_a_plain_checkpoint_and_one_over_a_mesh_are_told_apart(tmp_path):
    fbuf.save(tmp_path / "plain", fbuf.init(jnp.zeros(()), 8))
    with pytest.raises(fbuf.CheckpointError, match=r"plain buffer: use fbuf\.load"):
        restored.sharded_load(tmp_path / "plain", mesh=meshes.mesh(2))
    sharded.save(tmp_path / "mesh", sharded.init(jnp.zeros(()), 8, mesh=meshes.mesh(2)))
    with pytest.raises(fbuf.CheckpointError, match=r"use fbuf\.sharded\.load"):
        restored.load(tmp_path / "mesh")
    with pytest.raises(fbuf.CheckpointError, match="there is no checkpoint"):
        restored.sharded_load(tmp_path / "none", mesh=meshes.mesh(2))


def contents(state):
    """Each environment's rows in the order of time, with all that is kept of them."""
    found = {}
    for number in range(state.num_shards):
        shard = jax.tree.unflatten(
            jax.tree.structure(state.blocks),
            [
                np.asarray(block).reshape(state.num_shards, *spec.shape)[number]
                for block, spec in zip(jax.tree.leaves(state.blocks), state.leaves, strict=True)
            ],
        )
        shard = jax.tree.map(jnp.asarray, shard)
        slots = jnp.arange(shard.capacity, dtype=jnp.int32)
        view = fbuf.Transition()
        ids = fbuf.ids_at(shard, slots)
        rows, likely = fbuf.read(shard, ids, view=view), fbuf.probability(shard, ids)
        age = np.asarray(shard.ring.newer(slots))
        weight = np.asarray(likely) * float(fbuf.stats(shard).get("priority_total", 1.0))
        for slot in np.flatnonzero(np.asarray(rows.mask)):
            env = number * shard.ring.lanes + slot % shard.ring.lanes
            leaves = [np.asarray(leaf)[slot].tolist() for leaf in jax.tree.leaves(rows.data)]
            flags = bool(rows.terminated[slot]), bool(rows.truncated[slot])
            kept = round(float(weight[slot]), 4) if "priority_total" in fbuf.stats(shard) else 0
            found[int(env), int(age[slot])] = leaves, flags, kept
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "lockstep"), [("prioritized", True), ("priority_window", False), ("episode", True)]
)
def test_another_number_of_shards_has_the_same_rows(name, lockstep, tmp_path):
    sampler = SAMPLERS[name]
    state = made(sampler, devices=4, shards=4, turns=6, lockstep=lockstep, max_ends=96)
    before = contents(state)
    assert len(before) > 100
    for shards in (8, 4):
        other = sharded.reshard(state, shards)
        assert other.num_shards == shards
        assert contents(other) == before
        assert int(sharded.size(other)) == int(sharded.size(state))
        old = drawn(state).ids
        assert int(sharded.stats(sharded.remove(other, old, donate=False))["fault"]) != 0
        state = other
    state = more(state, 2, seed=9)  # and it goes on
    assert bool(drawn(state).mask.any())
    sharded.save(tmp_path, state)
    for devices, shards in ((1, 1), (2, 2)):
        again = restored.sharded_load(tmp_path, mesh=meshes.mesh(devices), shards=shards).state
        assert again.num_shards == shards
        assert contents(again) == contents(state)


@pytest.mark.sweep
def test_a_shard_of_another_save_is_refused(tmp_path):
    """It is whole, and yet not of this checkpoint."""
    mesh = meshes.mesh(1)
    for name, turns in (("one", 1), ("other", 2)):
        state = sharded.init(jnp.int32(0), 16, mesh=mesh, shards=2)
        for _ in range(turns):
            state = sharded.add(state, jnp.arange(2, dtype=jnp.int32))
        sharded.save(tmp_path / name, state)
    shutil.rmtree(tmp_path / "one" / "of-shard-00001")
    shutil.copytree(tmp_path / "other" / "of-shard-00001", tmp_path / "one" / "of-shard-00001")
    with pytest.raises(fbuf.CheckpointError, match="damaged"):
        restored.sharded_load(tmp_path / "one", mesh=mesh)


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["in memory", "on disk"])
@pytest.mark.parametrize("shards", [1, 2, 8])
def test_ids_from_before_are_stale_though_lanes_are_not_in_step(shards, way, tmp_path):
    mesh = meshes.mesh(1)
    options = {"mesh": mesh, "num_envs": 8, "shards": 4, "lockstep": False}
    state, seen = sharded.init(jnp.int32(0), 32, **options), set()
    lanes = jnp.arange(8)
    for turn in range(24):
        # The last lane goes around the ring most often, and the first lane never.
        state = sharded.add(state, jnp.full(8, turn, jnp.int32), mask=turn < 3 * lanes)
        ids = sharded.sample(state, jax.random.key(turn), 64).ids
        seen |= set(zip(*(np.asarray(leaf).tolist() for leaf in jax.tree.leaves(ids)), strict=True))
    if way == "on disk":
        sharded.save(tmp_path, state)
        other = restored.sharded_load(tmp_path, mesh=mesh, shards=shards).state
    else:
        other = sharded.reshard(state, shards)
    old = sharded.ShardedIds(*(jnp.int32(leaf) for leaf in zip(*sorted(seen), strict=True)))
    assert len(seen) == sum(3 * n for n in range(1, 8))
    assert int(sharded.size(other)) == 3 + 6 * 4
    assert int(sharded.size(sharded.remove(other, old, donate=False))) == int(sharded.size(other))
    new = sharded.sample(other, jax.random.key(9), 256).ids
    assert int(sharded.size(sharded.remove(other, new))) == 0


def test_shards_that_do_not_fit_are_refused():
    state = sharded.init(jnp.zeros(()), 48, mesh=meshes.mesh(2), num_envs=12, shards=4)
    with pytest.raises(ValueError, match=r"got 8; take one of \[2, 4, 6, 12\]"):
        sharded.reshard(state, 8)
    state = sharded.init(jnp.zeros(()), 48, mesh=meshes.mesh(2))
    with pytest.raises(ValueError, match="made without num_envs"):
        sharded.reshard(state, 4)


def test_a_loaded_buffer_ends_its_open_episodes(tmp_path):
    sharded, mesh = fbuf.sharded, meshes.mesh(2)
    state = sharded.init(jnp.int32(0), 16, mesh=mesh, num_envs=2, shards=2)
    state = sharded.add(state, jnp.arange(6, dtype=jnp.int32).reshape(2, 3))
    state = sharded.save(tmp_path, state)
    flags = [np.asarray(s.blocks.ring.flags) for s in (state, sharded.load(tmp_path, mesh=mesh)[0])]
    assert flags[0].tolist() == [0] * 16
    assert flags[1].tolist() == [0, 0, TRUNCATED | UNFINISHED, 0, 0, 0, 0, 0] * 2
    kept = restored.sharded_load(tmp_path, mesh=mesh).state
    assert np.asarray(kept.blocks.ring.flags).tolist() == [0] * 16
    with pytest.raises(ValueError, match=r"fbuf\.sharded\.load: episodes must be"):
        sharded.load(tmp_path, mesh=mesh, episodes="reset")
