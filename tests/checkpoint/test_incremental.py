"""A save writes only what is new where the buffer carries a save id of the directory."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes, restored
from test_save import files, same, seen
from test_save_damage import rewritten

import fbuf
from fbuf.checkpoint import deletable, incremental, lineage, manifest
from fbuf.host import HostStore

pytestmark = pytest.mark.usefixtures("random_tags")

WARNING = r"all rows are written to .* again, .*state = fbuf\.save\(path, state\)"
OTHER = "is of another buffer"
SWEEP = pytest.mark.sweep
ROOT = pathlib.Path(__file__).parents[2]


def filled(count=700, capacity=1000, **options):
    state = fbuf.init(jnp.zeros(100), capacity, **options)
    return fbuf.add(state, np.repeat(np.arange(count, dtype=np.float32), 100).reshape(-1, 100))


def more(state, value=-1.0):
    return fbuf.add(jax.tree.map(jnp.copy, state), jnp.full((5, 100), value))


def rows_written(path, call):
    """The result of a save, and the number of rows that it has written."""
    before = files(path) if path.is_dir() else {}
    found = call()
    new = {name: size for name, size in files(path).items() if name not in before}
    return found, sum(size for name, size in new.items() if "rows-" in name) // 400


def saved(path, state, expect, **options):
    """Save a buffer, and check what was written and what there is then."""
    returned, count = rows_written(path, lambda: fbuf.save(path, state, **options))
    fbuf.wait(path)
    assert count == expect
    same(restored.load(path).state, returned)
    return returned


def restarted(monkeypatch):
    """As if the process had been started again."""
    monkeypatch.setattr(lineage, "_parents", {})
    monkeypatch.setattr(deletable, "_heads", {})
    monkeypatch.setattr(incremental, "_warned", set())


@pytest.mark.parametrize("background", [False, True])
def test_a_loaded_buffer_is_the_returned_one_with_its_save_id(tmp_path, background):
    state = fbuf.save(tmp_path, filled(), background=background)
    assert (np.asarray(state.ring.save_id) > 0).all()
    fbuf.wait()
    same(restored.load(tmp_path).state, state)
    heads = fbuf.init(jnp.zeros(()), 12, num_envs=3, lockstep=False)
    heads = fbuf.save(tmp_path / "heads", fbuf.add(heads, jnp.arange(3.0)))
    same(restored.load(tmp_path / "heads").state, heads)
    assert len(set(np.asarray(heads.ring.save_id).tolist())) == 1


@pytest.mark.parametrize("episodes", ["end", "keep"])
def test_after_a_restart_the_first_save_writes_what_is_new(tmp_path, monkeypatch, episodes):
    fbuf.save(tmp_path, filled())
    restarted(monkeypatch)
    state = fbuf.load(tmp_path, episodes=episodes).state
    state = saved(tmp_path, more(state), 5)
    state = saved(tmp_path, state, 0)  # nothing is new
    saved(tmp_path, more(state), 5)


AGAIN = """
import sys, jax.numpy as jnp, fbuf
state = fbuf.load(sys.argv[1]).state
fbuf.save(sys.argv[1], fbuf.add(state, jnp.full((5, 100), -1.0)))
"""


@SWEEP
def test_another_process_goes_on(tmp_path):
    fbuf.save(tmp_path, filled())
    command = [sys.executable, "-c", AGAIN, str(tmp_path)]
    run = lambda: subprocess.run(command, check=True, cwd=ROOT)
    assert rows_written(tmp_path, run)[1] == 5
    state = restored.load(tmp_path).state
    same(seen(state)[0], seen(more(filled()))[0])
    saved(tmp_path, more(state), 5)


def test_a_loop_that_ignores_the_result_writes_all_rows_and_is_told_so_once(tmp_path):
    state = filled()
    fbuf.save(tmp_path, state)
    state = more(state)
    with pytest.warns(UserWarning, match=WARNING) as told:
        assert rows_written(tmp_path, lambda: fbuf.save(tmp_path, state))[1] == 705
    assert [warning.filename for warning in told] == [__file__]
    same(seen(restored.load(tmp_path).state), seen(state))
    state = more(state)
    assert rows_written(tmp_path, lambda: fbuf.save(tmp_path, state))[1] == 710
    same(seen(restored.load(tmp_path).state), seen(state))


def test_nobody_is_told_where_nothing_is_written_twice(tmp_path, monkeypatch):
    """Another capacity lies in another way; an empty checkpoint has no rows; and a first save."""
    fbuf.save(tmp_path / "empty", fbuf.init(jnp.zeros(100), 1000))
    fbuf.save(tmp_path / "empty", filled())
    state = fbuf.save(tmp_path / "size", filled())
    fbuf.save(tmp_path / "size", fbuf.resize(state, 900))
    fbuf.save(tmp_path / "of another process", filled())
    restarted(monkeypatch)
    fbuf.load(tmp_path / "of another process")
    fbuf.save(tmp_path / "of another process", filled())


@pytest.mark.first(2)
@pytest.mark.parametrize("how", ["init", "resize", "split", "capacity", "fill", "drop"])
def test_a_buffer_made_of_another_one_has_no_save_id(tmp_path, how):
    item = {"x": jnp.zeros(2), "y": jnp.zeros(())}
    rows = {"x": jnp.ones((20, 2)), "y": jnp.ones(20)}
    state = fbuf.add(fbuf.init(item, 50), rows, terminated=jnp.arange(20) % 5 == 4)
    state = fbuf.save(tmp_path, state)
    made = {
        "init": lambda: fbuf.init(item, 50),
        "resize": lambda: fbuf.resize(state, 50),
        "split": lambda: fbuf.split(state, None, 0.5)[0],
        "capacity": lambda: fbuf.load(tmp_path, capacity=60).state,
        "fill": lambda: fbuf.load(tmp_path, fill={"z": 0.0}).state,
        "drop": lambda: fbuf.load(tmp_path, drop=["y"]).state,
    }[how]()
    assert np.asarray(made.ring.save_id).tolist() == [0]


def test_a_resized_buffer_of_the_same_capacity_is_written_whole(tmp_path):
    state = fbuf.save(tmp_path, filled())
    with pytest.warns(UserWarning, match=WARNING):
        state = saved(tmp_path, fbuf.resize(state, 1000), 700)
    saved(tmp_path, more(state), 5)


@pytest.mark.parametrize("background", [False, True])
def test_by_turns_in_two_directories(tmp_path, background):
    """Also while a save to the other one is still under way."""
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    state = saved(seldom, saved(often, filled(), 700), 700)
    turns = (often, seldom, often, often, often, seldom, seldom, often)
    for path in turns:
        state = fbuf.save(path, more(state), keep=9, background=background)
    fbuf.wait()
    for path, added in ((often, 5 * len(turns)), (seldom, 5 * len(turns) - 5)):
        sizes = {name: size // 400 for name, size in files(path).items() if "rows-" in name}
        assert sizes.pop("shard-00000/rows-00000001.npy") == 700
        assert sum(sizes.values()) == added
        same(fbuf.rows(state), fbuf.rows(saved(path, state, 40 - added)))


def test_of_a_save_that_failed_the_next_one_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    state = saved(tmp_path, filled(), 700)
    for background in (True, False, True):
        state = more(state)
        with monkeypatch.context() as broken:
            broken.setattr(manifest, "write", full)
            if background:
                state = fbuf.save(tmp_path, state, background=True)
                with pytest.raises(OSError, match="no space"):
                    fbuf.wait()
            else:
                with pytest.raises(OSError, match="no space"):
                    fbuf.save(tmp_path, state)
    saved(tmp_path, state, 15)


def test_a_manifest_that_was_written_by_a_save_that_failed(tmp_path, monkeypatch):
    """As where the directory could not be brought to the disk behind it."""
    write = manifest.write

    def late(*given):
        write(*given)
        raise OSError("broken")

    state = saved(tmp_path, filled(), 700)
    state = more(state)
    with monkeypatch.context() as broken:
        broken.setattr(manifest, "write", late)
        with pytest.raises(OSError, match="broken"):
            fbuf.save(tmp_path, state)
    saved(tmp_path, more(state, 7.0), 10)  # `state` descends from the checkpoint before


def test_a_buffer_of_an_older_checkpoint(tmp_path):
    """It goes on from there as long as that is kept, and never from what came later."""
    first = saved(tmp_path, filled(), 700)
    second = saved(tmp_path, more(first, 1.0), 5)
    other = saved(tmp_path, more(more(first, 2.0), 3.0), 10)  # of the first, which is still there
    third = saved(tmp_path, more(other, 4.0), 5)
    with pytest.warns(UserWarning, match=WARNING):
        saved(tmp_path, more(first, 5.0), 705)  # the first is gone
    for state in (second, third):  # which were given up: to go on with them, too, is by turns
        with pytest.raises(fbuf.CheckpointError, match=OTHER):
            fbuf.save(tmp_path, more(state))


@pytest.mark.filterwarnings("ignore:fbuf.save. all rows are written")
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"capacity": 2000},
        {"sampler": fbuf.Prioritized()},
        {"sampler": fbuf.Reservoir()},
    ],
    ids=lambda options: ", ".join(options) or "alike",
)
def test_two_buffers_by_turns_are_refused(tmp_path, options, goes_on):
    """Neither deletes a checkpoint of the other, whether the results of saves are used or not."""
    values = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)
    made = lambda **given: fbuf.init(jnp.zeros(3), **{"capacity": 1000, **given})
    one, other = fbuf.add(made(), values[0]), fbuf.add(made(**options), values[1])
    returned = fbuf.save(tmp_path, one, keep=1)
    one = returned if goes_on else one
    there = files(tmp_path)
    for background in (False, True):
        with pytest.raises(fbuf.CheckpointError, match=OTHER):
            fbuf.save(tmp_path, other, keep=1, background=background)
    assert files(tmp_path) == there
    other = fbuf.save(tmp_path / "other", other)
    with pytest.raises(fbuf.CheckpointError, match=OTHER):  # also with a save id of its own
        fbuf.save(tmp_path, other, keep=1)
    one = fbuf.add(one, values[0, :3])
    fbuf.save(tmp_path, one, keep=1)
    same(seen(restored.load(tmp_path).state), seen(one))


def test_a_buffer_that_is_new_or_emptied(tmp_path):
    """One without rows is no successor of rows; one that was cleared is."""
    state = fbuf.save(tmp_path, filled(5))
    with pytest.raises(fbuf.CheckpointError, match=OTHER):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(100), 1000))
    state = fbuf.save(tmp_path, fbuf.clear(state))
    fbuf.save(tmp_path, filled(3))  # nothing is lost


@pytest.mark.first(2)
@pytest.mark.parametrize("change", ["extend", "resize", "capacity", "write", "around", "backup"])
def test_a_run_that_changes_its_buffer_goes_on_there(tmp_path, change):
    """Also where it ignores what its saves return."""
    values = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    rows = lambda *part: {"x": values[slice(*part)]}
    item = {"x": jnp.zeros(3)}
    state = fbuf.add(fbuf.init(item, 40), rows(30))
    fbuf.save(tmp_path, state)
    if change == "extend":
        state = fbuf.extend(fbuf.init(item, 40, sampler=fbuf.Prioritized()), state)
    elif change == "resize":
        state = fbuf.resize(state, 20)
    elif change == "capacity":
        state = fbuf.load(tmp_path, capacity=80).state
    elif change == "write":
        ids = fbuf.newest_ids(state, 12)
        state = fbuf.write(state, ids, {"x": jnp.zeros((12, 3))})
    elif change == "around":
        state = fbuf.add(fbuf.add(state, rows(40)), rows(40))
    else:
        state = fbuf.save(tmp_path / "main", state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(3):
            state = fbuf.add(state, rows(30 + turn, 32 + turn))
            if change == "backup":
                state = fbuf.save(tmp_path / "main", state)
            fbuf.save(tmp_path, state)
            same(seen(restored.load(tmp_path).state), seen(state))


def test_a_damaged_file_shows_nothing_of_the_run(tmp_path):
    state = filled()
    fbuf.save(tmp_path, state)
    (path,) = tmp_path.rglob("rows-*.npy")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match=WARNING):
        fbuf.save(tmp_path, state)
    same(seen(restored.load(tmp_path).state), seen(state))


@pytest.mark.sweep
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_two_buffers_over_a_mesh_by_turns_are_refused(tmp_path):
    made = lambda: fbuf.sharded.init(jnp.zeros(()), 64, mesh=meshes.mesh(2), num_envs=4)
    one, other = (fbuf.sharded.add(made(), jnp.arange(4.0) + at) for at in (0, 100))
    one = fbuf.sharded.save(tmp_path, one)
    with pytest.raises(fbuf.CheckpointError, match=OTHER):
        fbuf.sharded.save(tmp_path, other)
    same(restored.sharded_load(tmp_path, mesh=meshes.mesh(2)).state, one)
    resharded = fbuf.sharded.load(tmp_path, mesh=meshes.mesh(2), shards=4).state
    with pytest.warns(UserWarning, match="has more rows than this buffer"):
        fbuf.sharded.save(tmp_path, resharded)  # its rows lie in other shards


def test_two_stores_and_two_buffers_of_tensors_by_turns_are_refused(tmp_path):
    stores = HostStore(jnp.zeros(()), 8), HostStore(jnp.zeros(()), 8)
    for store, first in zip(stores, (0, 10), strict=True):
        store.add(np.arange(3, dtype=np.float32) + first)
    stores[0].save(tmp_path / "stores")
    with pytest.raises(fbuf.CheckpointError, match=OTHER):
        stores[1].save(tmp_path / "stores")
    stores[0].save(tmp_path / "stores")
    torch = pytest.importorskip("torch")
    from fbuf_adapters.pytorch import ReplayBuffer

    with ReplayBuffer(8, seed=0) as one, ReplayBuffer(8, seed=0) as other:
        one.save(tmp_path / "tensors")
        for buffer, first in ((one, 0), (other, 10)):
            buffer.extend({"x": torch.arange(3) + first})
        one.save(tmp_path / "tensors")
        with pytest.raises(fbuf.CheckpointError, match=OTHER):
            other.save(tmp_path / "tensors")


def test_two_loads_of_a_checkpoint_part(tmp_path):
    fbuf.save(tmp_path, filled())
    one, other = restored.load(tmp_path).state, restored.load(tmp_path).state
    one = saved(tmp_path, more(one, 1.0), 5, keep=1)
    with pytest.warns(UserWarning, match=WARNING):
        saved(tmp_path, more(more(other, 2.0), 2.0), 710)  # as if the first one had been given up
    with pytest.raises(fbuf.CheckpointError, match=OTHER):
        fbuf.save(tmp_path, more(one, 1.0))


def test_after_a_fallback_it_goes_on_from_the_older_checkpoint(tmp_path, monkeypatch):
    state = fbuf.save(tmp_path, filled())
    fbuf.save(tmp_path, more(state))
    newest = tmp_path / manifest.name_of(2)
    newest.write_bytes(newest.read_bytes()[:-1])
    restarted(monkeypatch)
    with pytest.warns(UserWarning, match="before it"):
        state = restored.load(tmp_path, fallback=True).state
    saved(tmp_path, more(state), 5)


def test_a_save_id_of_another_checkpoint_is_refused(tmp_path):
    fbuf.save(tmp_path, filled())
    found = manifest.read(tmp_path, 1)
    path = tmp_path / manifest.name_of(1)
    rewritten(path, {**dataclasses.asdict(found), "save_id": found.save_id + 1})
    with pytest.raises(fbuf.CheckpointError, match="another save id"):
        fbuf.load(tmp_path)


@pytest.mark.parametrize("read", ["load", "open"])
def test_a_store_on_the_host_goes_on(tmp_path, monkeypatch, read):
    store = HostStore(jnp.zeros(100), 1000)
    store.add(jnp.ones((700, 100)))
    store.save(tmp_path)
    for turn in range(3):
        restarted(monkeypatch)
        store, _ = getattr(HostStore, read)(tmp_path)
        for _ in range(2):
            store.add(jnp.full((5, 100), turn, jnp.float32))
            assert rows_written(tmp_path, functools.partial(store.save, tmp_path))[1] == 5
    same(seen(restored.load(tmp_path).state)[0], np.asarray(store.rows().data))


def test_a_buffer_of_tensors_goes_on(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from fbuf_adapters.pytorch import ReplayBuffer

    made = lambda: ReplayBuffer(1000, seed=0)
    rows = lambda count: {"x": torch.ones(count, 100)}
    buffer = made()
    buffer.extend(rows(700))
    buffer.save(tmp_path)
    for _ in range(2):
        buffer.close()
        restarted(monkeypatch)
        buffer = made()
        buffer.load(tmp_path)
        buffer.extend(rows(5))
        assert rows_written(tmp_path, functools.partial(buffer.save, tmp_path))[1] == 5
    buffer.close()


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_loop_that_ignores_the_result_of_a_save_over_a_mesh_is_told_where(tmp_path):
    state = fbuf.sharded.init(jnp.zeros(()), 64, mesh=meshes.mesh(2))
    state = fbuf.sharded.add(state, jnp.arange(64.0))
    fbuf.sharded.save(tmp_path, state)
    with pytest.warns(UserWarning, match="all rows are written to") as told:
        fbuf.sharded.save(tmp_path, state)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_buffer_over_a_mesh_goes_on(tmp_path, monkeypatch):
    mesh = meshes.mesh(2)
    state = fbuf.sharded.init(jnp.zeros(100), 1000, mesh=mesh, shards=2)
    state = fbuf.sharded.add(state, jnp.ones((700, 100)))
    kept = jax.tree.map(jnp.copy, state)
    state = fbuf.sharded.save(tmp_path, state)
    restarted(monkeypatch)
    again = restored.sharded_load(tmp_path, mesh=mesh).state
    same(again, state)
    again = fbuf.sharded.add(again, jnp.ones((6, 100)))
    again, count = rows_written(tmp_path, lambda: fbuf.sharded.save(tmp_path, again))
    assert count == 6
    ignored = r"state = fbuf\.save\(path, state\)"
    with pytest.warns(UserWarning, match=ignored) as told:
        _, count = rows_written(tmp_path, lambda: fbuf.sharded.save(tmp_path, kept))
    assert count == 700
    assert len(told) == 1


def test_a_buffer_of_another_sampler_is_written_whole(tmp_path):
    state = saved(tmp_path, filled(sampler=fbuf.Prioritized()), 700)
    other = dataclasses.replace(state, sampler=fbuf.Prioritized(beta=0.7))
    assert saved(tmp_path, other, 700).sampler.beta == 0.7


def test_after_a_restart_of_the_numbers_no_two_are_alike(tmp_path, monkeypatch):
    """No buffer of this process is taken for one that another process has saved."""
    state = fbuf.save(tmp_path / "one", filled(700))
    restarted(monkeypatch)
    other = fbuf.save(tmp_path / "other", filled(700))
    assert state.ring.save_id[0] != other.ring.save_id[0]
    fbuf.load(tmp_path / "one")
    saved(tmp_path / "one", more(other), 705)


def test_a_copy_of_a_directory_is_another_directory(tmp_path):
    """A buffer goes on from a copy as from what was copied."""
    state = saved(tmp_path / "one", filled(), 700)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    fbuf.load(tmp_path / "two")
    saved(tmp_path / "two", more(state), 5)
