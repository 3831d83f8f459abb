"""Saved and loaded: the same buffer, bit for bit, whatever was done to it in between."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import shutil
import signal
import tempfile
import threading
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tqdm
from jax import lax
from support import compiles, restored
from support.interrupt import interrupted

import fbuf
from fbuf.checkpoint import compact, deletable, lineage, manifest, signed_json, writer
from fbuf.storage import tags
from fbuf.storage.stored_lanes import may_have_open_episodes

SWEEP = pytest.mark.sweep
REWRITES = "ignore:fbuf.save. (all rows are written|the newest checkpoint .* has more rows)"
ITEM = {
    "n": jnp.int32(0),
    "obs": jnp.zeros(3, jnp.bfloat16),
    "image": jnp.zeros((20, 20), jnp.uint8),
    "pair": (jnp.zeros((), bool), [jnp.float16(0)]),
}
CASES = [  # environments, sampler, autoreset, in lockstep, next observations
    (3, fbuf.Prioritized(window=2), "next_step", False, True),
    *(
        pytest.param(*case, marks=SWEEP)
        for case in [
            (None, fbuf.Prioritized(), "same_step", True, True),
            (3, fbuf.Uniform(window=3, by="episode"), "same_step", True, False),
            (None, fbuf.Uniform(), "same_step", True, False),
            (None, fbuf.Shuffled(window=2), "next_step", True, True),
            (3, fbuf.Prioritized(new_priority="largest_ever", normalize="buffer"), "same_step",
             True, True),
            (3, fbuf.Mixture(0.5, prioritized=0.3, recent=0.2), "same_step", True, False),
            (3, fbuf.Uniform(), "next_step", False, True),
        ]
    ),
]  # fmt: skip


def rows(n):
    """The row of a number."""
    n = np.asarray(n, np.int32)
    return {
        "n": n,
        "obs": jnp.asarray(n[..., None] * np.array([1.0, 0.5, 0.25]), jnp.bfloat16),
        "image": np.broadcast_to((n[..., None, None] % 251), (*n.shape, 20, 20)).astype(np.uint8),
        "pair": (n % 2 == 0, [(n / 8).astype(np.float16)]),
    }


class Run:
    """A buffer and what happens to it, at random."""

    def __init__(self, envs, sampler, autoreset, lockstep, next_of, seed=0):
        self.state = fbuf.init(
            ITEM, 8 * (envs or 1), num_envs=envs, sampler=sampler, autoreset=autoreset,
            lockstep=lockstep, next_of="obs" if next_of else None,
        )  # fmt: skip
        self.shape, self.lockstep, self.next_of = (envs,) if envs else (), lockstep, next_of
        self.rng, self.number = np.random.default_rng(seed), 0

    def add(self):
        n = self.number + np.arange(int(np.prod(self.shape)), dtype=np.int32).reshape(self.shape)
        self.number += n.size
        given = {"terminated": self.rng.random(self.shape) < 0.2}
        if self.next_of:
            given["next_observation"] = rows(n + 1)["obs"]
        if not self.lockstep:
            given["mask"] = self.rng.random(self.shape) < 0.7
        self.state = fbuf.add(self.state, rows(n), **given)

    def some(self):
        slots = self.rng.integers(0, self.state.capacity, 2).astype(np.int32)
        return fbuf.ids_at(self.state, jnp.asarray(slots))

    def write(self):
        self.state = fbuf.write(
            self.state, self.some(),
            {"image": self.rng.integers(0, 255, (2, 20, 20)).astype(np.uint8)},
        )  # fmt: skip

    def remove(self):
        self.state = fbuf.remove(self.state, self.some())

    def priority(self):
        if self.state.sampler.keeps_priorities:
            new = self.rng.random(2).astype(np.float32)
            self.state = fbuf.update_priority(self.state, self.some(), new)

    def bad_priority(self):
        if self.state.sampler.keeps_priorities:
            new = jnp.full(2, jnp.nan)
            self.state = fbuf.update_priority(self.state, self.some(), new)

    def end(self):
        self.state = fbuf.end_episode(self.state)

    def clear(self):
        self.state = fbuf.clear(self.state)


OPERATIONS = ("add", "write", "remove", "priority", "bad_priority", "end", "clear")


def same(one, other):
    """All arrays, bit for bit, but for the tags of ids: each load has one of its own."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jax.tree_util.keystr(path).endswith(".ring.cursor"):
            a, b = (x.reshape(-1, tags.ROW + 1, x.shape[-1])[:, : tags.ROW] for x in (a, b))
        bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b)]
        np.testing.assert_array_equal(*bits, err_msg=jax.tree_util.keystr(path))


def seen(state):
    """Everything that a caller can see of a buffer."""
    batch = fbuf.rows(state)
    there = lambda leaf: np.where(
        np.asarray(batch.mask).reshape(*batch.mask.shape, *[1] * (leaf.ndim - batch.mask.ndim)),
        np.asarray(leaf), 0,
    )  # fmt: skip
    led_to = None
    if state.next_obs is not None:
        following = fbuf.rows(state, view=fbuf.Transition())
        found = following.data.next_observation
        known = following.mask.reshape(
            *following.mask.shape, *[1] * (found.ndim - following.mask.ndim)
        )
        led_to = following.mask, jnp.where(known, found, 0)
    laps = jnp.where(batch.mask, batch.ids.generation - state.ring.tag[0], 0)
    names = batch.ids.slot, laps  # each load has a tag of its own
    return jax.tree.map(there, batch.data), names, batch.mask, fbuf.stats(state), led_to


@pytest.mark.filterwarnings(REWRITES)
@pytest.mark.filterwarnings("ignore:fbuf.load. the next observations of")
@pytest.mark.parametrize(("envs", "sampler", "autoreset", "lockstep", "next_of"), CASES)
def test_every_save_is_the_buffer_of_that_moment(
    tmp_path, envs, sampler, autoreset, lockstep, next_of
):
    """Written whole, and as what is new since the last one; before and after the ring is full."""
    run = Run(envs, sampler, autoreset, lockstep, next_of)
    whole, one, other = tmp_path / "whole", tmp_path / "one", tmp_path / "other"
    for turn in range(10):
        for _ in range(run.rng.integers(0, 4)):
            run.add()
        operation = OPERATIONS[turn % len(OPERATIONS)] if turn > 1 else "add"
        getattr(run, operation)()
        for path in (whole, one, other):
            given = lineage.with_id(run.state, 0) if path == whole else run.state
            saved = fbuf.save(path, given, extra={"turn": turn})
            same(without_id(saved), without_id(run.state))
            loaded, extra = restored.load(path)
            assert extra == {"turn": turn}
            if "clear" in OPERATIONS[: turn + 1]:
                same(seen(loaded), seen(saved))
                same((loaded.ring, loaded.index), (saved.ring, saved.index))
            else:
                same(loaded, saved)
            run.state = run.state if path == whole else saved


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "sampler",
    [
        fbuf.FreshFirst(fbuf.Grouped("group", 2, shares=(0.5, 0.5)), most=3),
        fbuf.Limited(fbuf.FreshFirst(), max_uses=3, max_age=20),
        fbuf.Limited(fbuf.Prioritized(window=2), version="group"),
        fbuf.Grouped("group", 2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_samplers_with_fields_and_samplers_in_them_go_on(tmp_path, sampler):
    """Options without defaults are read, too, and so is all that draws have changed."""
    draw = lambda state, key: (
        fbuf.draw(state, key, 5) if sampler.notes_draws else (state, fbuf.sample(state, key, 5))
    )
    row = lambda n: {"n": n, "group": n % 3}
    state = fbuf.init(row(jnp.int32(0)), 24, sampler=sampler)
    for turn in range(5):
        state = fbuf.add(state, row(8 * turn + jnp.arange(8, dtype=jnp.int32)))
        state, _ = draw(state, jax.random.key(turn))
        state = fbuf.save(tmp_path, state)
    loaded = fbuf.load(tmp_path, episodes="keep").state
    assert loaded.sampler == sampler
    same(loaded, state)
    for given in (None, sampler):
        loaded = fbuf.load(tmp_path, sampler=given, episodes="keep").state
        same(
            draw(loaded, jax.random.key(9)), draw(jax.tree.map(jnp.copy, state), jax.random.key(9))
        )


@SWEEP
@pytest.mark.parametrize(("envs", "sampler", "autoreset", "lockstep", "next_of"), CASES)
def test_training_goes_on_as_if_it_had_never_stopped(
    tmp_path, envs, sampler, autoreset, lockstep, next_of
):
    run = Run(envs, sampler, autoreset, lockstep, next_of)
    for _ in range(11):
        run.add()
    run.state = fbuf.save(tmp_path, run.state, extra={"key": jax.random.key(5)})
    other = Run(envs, sampler, autoreset, lockstep, next_of)
    other.state, extra = restored.load(tmp_path)
    other.number = run.number
    other.rng, run.rng = np.random.default_rng(1), np.random.default_rng(1)
    for turn in range(6):
        key = jax.random.fold_in(extra["key"], turn)
        step = {"step": turn} if sampler.without_replacement else {}
        batches = [fbuf.sample(each.state, key, 4, **step) for each in (run, other)]
        same(*batches)
        for each, batch in zip((run, other), batches, strict=True):
            each.add()
            if sampler.keeps_priorities:
                each.state = fbuf.update_priority(each.state, batch.ids, batch.weight)
    same(run.state, other.state)


@SWEEP
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_queue_goes_on_as_if_it_had_never_stopped(tmp_path, overwrite):
    """Each row is handed out once, though a process hands out some and the next one the others."""

    def turn(state, number):
        new = jnp.arange(6, dtype=jnp.int32).reshape(2, 3) + 6 * number
        mask = np.repeat([[True], [number % 3 > 0]], 3, axis=1)
        state = fbuf.add(state, new, mask=mask)
        return fbuf.pop(state, 2)

    sampler = fbuf.Fifo(overwrite=overwrite)
    state = fbuf.init(jnp.int32(0), 10, num_envs=2, lockstep=False, sampler=sampler)
    for number in range(4):  # more comes than is handed out
        state, _ = turn(state, number)
    state = fbuf.save(tmp_path, state)
    other = restored.load(tmp_path).state
    same(other, state)
    for number in range(4, 9):
        state, batch = turn(state, number)
        other, again = turn(other, number)
        same(batch, again)
    same(other, state)


def without_id(state):
    """The buffer without the id of its last save."""
    return lineage.with_id(state, 0)


def files(path):
    return {str(f.relative_to(path)): f.stat().st_size for f in path.rglob("*") if f.is_file()}


@pytest.mark.sweep
def test_only_what_is_new_is_written(tmp_path):
    state = fbuf.init(jnp.zeros(100), 1000)
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.ones((700, 100))))
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.ones((10, 100))))
    sizes = files(tmp_path)
    assert sizes["shard-00000/rows-00000001.npy"] > 700 * 400
    assert sizes["shard-00000/rows-00000002.npy"] < 11 * 400
    fbuf.save(tmp_path, state)
    assert "shard-00000/rows-00000003.npy" not in files(tmp_path)  # there is nothing new


@SWEEP
def test_what_changes_in_place_is_small(tmp_path):
    """Operation by operation: the rows that were there are not written again."""
    state = fbuf.init({"x": jnp.zeros(100)}, 1000, sampler=fbuf.Prioritized(window=2))
    state = fbuf.save(tmp_path, fbuf.add(state, {"x": jnp.ones((1300, 100))}))
    ids = fbuf.ids_at(state, jnp.arange(3))
    operations = {
        "update_priority": lambda state: fbuf.update_priority(state, ids, jnp.ones(3)),
        "end_episode": fbuf.end_episode,
        "remove": lambda state: fbuf.remove(state, ids),
        "add": lambda state: fbuf.add(state, {"x": jnp.ones((5, 100))}),
        "write": lambda state: fbuf.write(
            state, fbuf.newest_ids(state, 7), {"x": jnp.zeros((7, 100))}
        ),
        "nothing": lambda state: state,
        "clear": fbuf.clear,
    }
    for name, operation in operations.items():
        before = files(tmp_path).keys()
        state = fbuf.save(tmp_path, operation(state))
        new = {file: size for file, size in files(tmp_path).items() if file not in before}
        rows = [size for file, size in new.items() if "rows" in file or "written" in file]
        assert sum(rows) < 8 * 400, name
        same(seen(restored.load(tmp_path).state), seen(state))


@SWEEP
def test_nothing_grows_for_ever(tmp_path):
    """A file of rows goes with the last of them."""
    state = fbuf.init(jnp.zeros(100), 1000)
    largest = 0
    for turn in range(60):
        state = fbuf.add(state, jnp.full((25, 100), turn, jnp.float32))
        state = fbuf.save(tmp_path, state)
        largest = max(largest, sum(files(tmp_path).values()))
    assert largest < 1000 * 400 * 1.6
    assert len(files(tmp_path)) < 60
    same(restored.load(tmp_path).state, state)


@SWEEP
@pytest.mark.parametrize(("envs", "turns"), [(3, 20), (None, 40)])
def test_small_files_are_joined(tmp_path, monkeypatch, envs, turns):
    """There are few of them, however small the saves, and each row is where it was."""
    monkeypatch.setattr(compact, "MOST", 6)
    monkeypatch.setattr(compact, "TOGETHER", 4)
    run, most, joined = Run(envs, fbuf.Uniform(), "same_step", envs is None, True), 0, set()
    for turn in range(turns):
        run.add()
        if turn in (6, 13):
            run.write()
        if turn == 16:
            run.clear()
        given = run.state
        run.state = fbuf.save(tmp_path, given, keep=1)
        names = [name for name in files(tmp_path) if "rows-" in name]
        most, joined = max(most, len(names)), joined | {n for n in names if "joined" in n}
        same(seen(restored.load(tmp_path).state), seen(given))
    assert most <= 6
    assert len(joined) > 3


@SWEEP
@pytest.mark.parametrize("count", [1, 64, 65, 1024, 1025, 3000])
def test_as_many_rows_as_are_new_are_moved(tmp_path, count):
    """They are padded to one of a few numbers, on their way out and back."""
    state = fbuf.init(jnp.int32(0), 4096)
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.arange(2000, dtype=jnp.int32)))
    state = fbuf.add(state, jnp.arange(count, dtype=jnp.int32) + 5000)
    state = fbuf.save(tmp_path, state)
    same(restored.load(tmp_path).state, state)


@SWEEP
def test_rows_that_were_overwritten_are_not_joined(tmp_path, monkeypatch):
    """Some rows of the oldest file may count no more, while other rows of the file do."""
    monkeypatch.setattr(compact, "MOST", 3)
    monkeypatch.setattr(compact, "TOGETHER", 2)
    state = fbuf.init(jnp.int32(0), 10)
    for turn in range(12):
        state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32) + 3 * turn)
        state = fbuf.save(tmp_path, state, keep=1)
        same(restored.load(tmp_path).state, state)


def test_what_a_save_that_failed_has_written_is_deleted(tmp_path, monkeypatch):
    state = fbuf.save(tmp_path, fbuf.init(jnp.zeros(10), 100))
    before = files(tmp_path)

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(manifest, "write", full)
        with pytest.raises(OSError, match="no space"):
            fbuf.save(tmp_path, fbuf.add(state, jnp.ones((3, 10))))
    assert files(tmp_path) == before


@SWEEP
def test_only_neighbours_are_joined(tmp_path, monkeypatch):
    """An old file of an environment that seldom steps stays, while files behind it have gone."""
    monkeypatch.setattr(compact, "MOST", 3)
    monkeypatch.setattr(compact, "TOGETHER", 2)
    state = fbuf.init(jnp.int32(0), 8, num_envs=2, lockstep=False)
    for turn in range(16):
        mask = np.array([turn == 0, turn > 0])
        state = fbuf.add(state, jnp.full(2, turn, jnp.int32), mask=mask)
        state = fbuf.save(tmp_path, state, keep=1)
        same(restored.load(tmp_path).state, state)


@SWEEP
def test_what_is_joined_is_checked_first(tmp_path, monkeypatch):
    """A damaged file does not get a checksum of its own."""
    monkeypatch.setattr(compact, "MOST", 3)
    monkeypatch.setattr(compact, "TOGETHER", 2)
    state = fbuf.init(jnp.zeros(()), 100)
    for turn in range(3):
        state = fbuf.save(tmp_path, fbuf.add(state, jnp.full(5, turn, jnp.float32)))
    file = tmp_path / "shard-00000" / "rows-00000001.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    state = fbuf.add(state, jnp.full(5, 3.0))
    with pytest.raises(fbuf.CheckpointError, match=r"rows-00000001\.npy is damaged"):
        fbuf.save(tmp_path, state)
    assert manifest.numbers(tmp_path) == [2, 3]
    for _ in range(2):  # everything is written, once
        state = fbuf.save(tmp_path, state, keep=1)
        check_saved(tmp_path, state)
    assert [name for name in files(tmp_path) if "rows" in name] == ["shard-00000/rows-00000004.npy"]


def test_by_its_save_id_a_buffer_is_known_through_everything(tmp_path):
    state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((700, 100)))
    state = fbuf.save(tmp_path, state)

    @jax.jit
    def steps(state):
        rows = jnp.ones((5, 100))
        return lax.fori_loop(0, 3, lambda _, state: fbuf.add(state, rows), state)

    for changed in (steps, fbuf.clear, lambda s: jax.tree.map(jnp.copy, s), fbuf.end_episode):
        before = files(tmp_path).keys()
        state = fbuf.save(tmp_path, changed(state))
        new = [size for file, size in files(tmp_path).items() if file not in before]
        assert sum(new) < 20 * 400 + 5000
        check_saved(tmp_path, state)


def test_each_of_two_directories_knows_the_buffer(tmp_path):
    """One on a fast disk, say, and now and then one on a safe disk."""
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((700, 100)))
    for turn, path in enumerate([often, seldom, often, often, seldom, often]):
        state = fbuf.add(state, jnp.ones((5, 100)))
        before = files(tmp_path).keys()
        state = fbuf.save(path, state)
        new = [size for file, size in files(tmp_path).items() if file not in before]
        assert (sum(new) < 20 * 400 + 5000) == (turn > 1)
        same(restored.load(path).state, state)


@pytest.mark.usefixtures("random_tags")
def test_another_run_keeps_its_checkpoints(tmp_path, monkeypatch):
    """A run that forgets to load does not delete the checkpoints of an earlier run."""
    fbuf.save(tmp_path, fbuf.add(fbuf.init(jnp.int32(0), 5), jnp.arange(3, dtype=jnp.int32)))
    there, empty = files(tmp_path), fbuf.init(jnp.int32(0), 5)
    monkeypatch.setattr(deletable, "_heads", {})  # another process
    for background in (False, True):
        with pytest.raises(fbuf.CheckpointError, match="number 1, that this process has neither"):
            fbuf.save(tmp_path, empty, background=background)
    assert files(tmp_path) == there
    state = restored.load(tmp_path).state
    assert int(fbuf.size(state)) == 3
    fbuf.save(tmp_path, state)
    with pytest.raises(fbuf.CheckpointError, match="is of another buffer"):
        fbuf.save(tmp_path, empty)  # it knows what is there
    fbuf.save(tmp_path, state)
    deletable._heads[tmp_path].remove(manifest.head(tmp_path, 3))
    with pytest.raises(fbuf.CheckpointError, match="number 3"):  # another one has saved since
        fbuf.save(tmp_path, state)


def test_a_checkpoint_that_was_put_back_is_not_deleted(tmp_path):
    """Its number says nothing: a backup's, or another run's, can have any."""
    here, backup, there = tmp_path / "here", tmp_path / "backup", tmp_path / "there"
    numbered = lambda n: fbuf.add(fbuf.init(jnp.int32(0), 5), jnp.full(3, n, jnp.int32))
    state = fbuf.save(here, numbered(1))
    shutil.copytree(here, backup)
    for _ in range(3):
        state = fbuf.save(here, state)
    for path in backup.rglob("*-00000001*"):
        shutil.copy(path, here / path.relative_to(backup))
    for background in (False, True):
        with pytest.raises(fbuf.CheckpointError, match="number 1, that this process has neither"):
            fbuf.save(here, state, background=background)
    assert (here / "MANIFEST-00000001").exists()
    alone = fbuf.save(tmp_path / "alone", numbered(1), keep=1)
    backup = shutil.copytree(tmp_path / "alone", tmp_path / "another backup")
    alone = fbuf.save(tmp_path / "alone", alone, keep=1)
    shutil.copytree(backup, tmp_path / "alone", dirs_exist_ok=True)
    with pytest.raises(fbuf.CheckpointError, match="number 1, that this process has neither"):
        fbuf.save(tmp_path / "alone", alone, keep=1)
    fbuf.load(here)  # its user has seen what is there
    state = fbuf.save(here, state)
    other = numbered(2)
    for _ in range(5):
        other = fbuf.save(there, other)
    shutil.rmtree(here)
    shutil.copytree(there, here)  # of the same number as the newest one that was there
    assert (here / "MANIFEST-00000005").exists()
    with pytest.raises(fbuf.CheckpointError, match="number 5, that this process has neither"):
        fbuf.save(here, state)


@pytest.mark.sweep
@pytest.mark.usefixtures("random_tags")
@pytest.mark.filterwarnings(REWRITES)
def test_the_save_id_of_another_way_is_none(tmp_path):
    """Two buffers that come from one that was saved: each is known only by its own save."""
    copy = lambda state: jax.tree.map(jnp.copy, state)
    start = fbuf.save(tmp_path, fbuf.add(fbuf.init(jnp.zeros(()), 50), jnp.arange(20.0)))
    first = fbuf.add(copy(start), jnp.full(5, 100.0))
    second = fbuf.add(copy(start), jnp.full(9, 200.0))
    saved = fbuf.save(tmp_path, copy(first))
    for state in (second, first, second, start, fbuf.add(copy(second), jnp.ones(3))):
        same(fbuf.save(tmp_path, state), restored.load(tmp_path).state)
    for state in (saved, fbuf.add(copy(saved), jnp.ones(3))):
        with pytest.raises(fbuf.CheckpointError, match="is of another buffer"):
            fbuf.save(tmp_path, state)


@pytest.mark.sweep
def test_a_save_changes_nothing(tmp_path):
    state = fbuf.add(fbuf.init(jnp.zeros(3), 10, sampler=fbuf.Prioritized()), jnp.ones((4, 3)))
    before = jax.tree.map(jnp.copy, state)
    saved = fbuf.save(tmp_path, state)
    same(state, before)
    same(seen(saved), seen(state))
    same(dataclasses.replace(saved.ring, cursor=state.ring.cursor), state.ring)
    same(without_id(restored.load(tmp_path).state), before)


def test_a_bar_shows_how_far_it_is(tmp_path, monkeypatch):
    """All bytes that a caller waits for, where a terminal is there; none in the background."""
    bars = []

    class Bar:
        def __init__(self, total, **options):
            self.total, self.done, self.options = total, 0, options
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, count):
            self.done += count

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((700, 100)))
    state = fbuf.save(tmp_path, state)
    restored.load(tmp_path)
    fbuf.save(tmp_path, fbuf.add(state, jnp.ones((700, 100))), background=True)
    fbuf.wait()
    assert [bar.options["desc"] for bar in bars] == [
        *("fbuf.save", "fbuf.load"),
        *("fbuf.save: copying rows", "fbuf.save: copying rows"),
    ]
    for bar in bars:
        assert (bar.options["delay"], bar.options["disable"]) == (1, None)
        assert bar.total <= bar.done < bar.total + 4000  # and the headers, and the manifest


@pytest.mark.usefixtures("random_tags")
@pytest.mark.parametrize("back", [1, pytest.param(60, marks=SWEEP)])
@pytest.mark.filterwarnings(REWRITES)
def test_a_buffer_that_goes_another_way_is_written_as_it_is(tmp_path, back):
    """One of an older checkpoint, another run, another buffer: never mixed with what is there."""

    def run(state, value, count):
        for at in range(count):
            row = jnp.full((1, 4), value + at, jnp.float32)
            state = fbuf.add(state, row, donate=False, terminated=jnp.array([at % 7 == value % 7]))
        return state

    start = run(fbuf.init(jnp.zeros(4), 200), 0, 100)
    start = fbuf.save(tmp_path, start)
    one, other = run(start, 1000, back), run(start, 5000, back + 1)
    for state in (one, other, run(one, 7000, 2), other, start, one):
        same(fbuf.save(tmp_path, state), restored.load(tmp_path).state)
    with pytest.raises(fbuf.CheckpointError, match="is of another buffer"):
        fbuf.save(tmp_path, run(fbuf.init(jnp.zeros(4), 200), 9000, 3))


def check_saved(path, state):
    """The newest save is loaded."""
    same(seen(restored.load(path).state), seen(state))


@SWEEP
@pytest.mark.filterwarnings(REWRITES)
@pytest.mark.parametrize("goes_on", [True, False])
def test_as_many_ends_as_there_is_room_for(tmp_path, goes_on):
    """Each in the place, and of the slot, that the one before it had."""
    state = fbuf.init({"x": jnp.zeros(1)}, 128, num_envs=8, next_of="x")
    for lap in range(1, 4):
        rows = {"x": jnp.zeros((16, 8, 1))}
        state = fbuf.add(state, rows, time_major=True, next_observation=rows["x"] + 100 * lap)
        for changed in (lambda state: state, fbuf.end_episode):
            state = changed(state)
            returned = fbuf.save(tmp_path, state)
            check_saved(tmp_path, state)
            state = returned if goes_on else state


@SWEEP
def test_one_environment_that_seldom_steps(tmp_path):
    """Its few rows do not keep the files of all others."""
    state = fbuf.init(jnp.zeros(50), 80, num_envs=2, lockstep=False)
    for turn in range(60):
        mask = np.array([turn % 30 == 0, True])
        state = fbuf.add(state, jnp.full((2, 50), turn, jnp.float32), mask=mask)
        state = fbuf.save(tmp_path, state, keep=1)
    check_saved(tmp_path, state)
    rows = {name: size for name, size in files(tmp_path).items() if "rows-" in name}
    assert sum(rows.values()) < 3 * 80 * 200 + 128 * len(rows)


@SWEEP
def test_new_ends_alone_are_written(tmp_path):
    state = fbuf.init({"x": jnp.zeros(50)}, 640, next_of="x", max_ends=200)
    rows = lambda count: {"x": jnp.zeros((count, 50))}
    ends = lambda count: {
        "next_observation": jnp.ones((count, 50)),
        "terminated": jnp.arange(count) == 1,
    }
    for _ in range(30):
        state = fbuf.add(state, rows(40), **ends(40))
    state = fbuf.save(tmp_path, state)
    before = files(tmp_path).keys()
    saved = fbuf.add(state, rows(4), **ends(4))
    fbuf.save(tmp_path, saved)
    new = [size for name, size in files(tmp_path).items() if name not in before and "ends" in name]
    assert sum(new) < 2 * 200 + 200
    check_saved(tmp_path, saved)


def test_after_a_save_that_failed_only_what_is_new_is_written(tmp_path, monkeypatch):
    """And it leaves no files behind, in whichever of them it has failed."""
    state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((700, 100)))
    state = fbuf.save(tmp_path, state)
    before = files(tmp_path)

    def full(*_, **__):
        raise OSError("no space left on device")

    broken_json = types.SimpleNamespace(dumps=full)
    for where, name, broken_by in ((manifest, "write", full), (signed_json, "json", broken_json)):
        state = fbuf.add(state, jnp.ones((5, 100)))
        with monkeypatch.context() as broken:
            broken.setattr(where, name, broken_by)
            state = fbuf.save(tmp_path, state, background=True)
            with pytest.raises(OSError, match="no space"):
                fbuf.wait()
        assert files(tmp_path) == before
    fbuf.save(tmp_path, state)
    new = [size for name, size in files(tmp_path).items() if name not in before and "rows" in name]
    assert sum(new) < 11 * 400
    check_saved(tmp_path, state)


def test_what_is_not_ours_to_write_over(tmp_path):
    """Checkpoints of a newer fbuf, and of buffers of other items."""
    state = fbuf.init(jnp.zeros(3), 10)
    fbuf.save(tmp_path, state, extra=1)
    with pytest.raises(
        fbuf.CheckpointError, match=r"items float32\[3\], and those .* float32\[4\]"
    ):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(4), 10))
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(3), 20, sampler=fbuf.Prioritized()), extra=2)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as newer:
        newer.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
        fbuf.save(tmp_path, state, extra=3)
    there = files(tmp_path)
    newer = f"format {manifest.FORMAT + 1}"
    with pytest.raises(fbuf.CheckpointError, match=rf"{newer}.* or save to another directory"):
        fbuf.save(tmp_path, state)
    with pytest.raises(fbuf.CheckpointError, match=newer):
        restored.load(tmp_path, fallback=True)
    assert files(tmp_path) == there


def test_going_back_is_for_damage_alone(tmp_path):
    for turn in range(2):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(3), 10), extra=Point(turn, 0))
    with pytest.raises(fbuf.CheckpointError, match="extra is made of"):
        restored.load(tmp_path, fallback=True)
    with pytest.raises(fbuf.CheckpointError, match="leave sampler out"):
        restored.load(tmp_path, fallback=True, sampler=fbuf.Prioritized())


def test_options_of_numpy(tmp_path):
    sampler = fbuf.Uniform(window=np.int64(2), stride=np.int32(2))
    fbuf.save(
        tmp_path,
        fbuf.init(jax.ShapeDtypeStruct((np.int64(3),), "float4_e2m1fn"), 10, sampler=sampler),
    )
    assert restored.load(tmp_path).state.sampler == fbuf.Uniform(window=2, stride=2)


def test_a_batch_of_buffers(tmp_path):
    states = jax.vmap(lambda _: fbuf.init(jnp.zeros(()), 3))(jnp.arange(2))
    with pytest.raises(ValueError, match="save each to a directory of its own"):
        fbuf.save(tmp_path, states)


def test_a_file_that_is_gone_is_written_again(tmp_path):
    state = fbuf.add(fbuf.init(jnp.zeros(3), 100), jnp.ones((50, 3)))
    state = fbuf.save(tmp_path, state)
    state = fbuf.save(tmp_path, state)
    (tmp_path / "shard-00000" / "rows-00000001.npy").unlink()
    state = fbuf.save(tmp_path, state)
    same(restored.load(tmp_path).state, state)


def test_files_of_others_stay(tmp_path):
    state = fbuf.init(jnp.zeros(3), 100)
    (tmp_path / "shard-mine").mkdir()
    (tmp_path / "shard-00000" / "checkpoints").mkdir(parents=True)
    kept = [tmp_path / name for name in ("shard-mine/data-1.tar", "a.unfinished", "shard-00000/b")]
    for path in kept:
        path.write_text("mine")
    for _ in range(3):
        fbuf.save(tmp_path, state, keep=1)
    assert all(path.read_text() == "mine" for path in kept)


def test_after_a_damaged_one_the_whole_ones_are_kept(tmp_path):
    state = fbuf.init(jnp.zeros(3), 100)
    for turn in range(2):
        fbuf.save(tmp_path, state, extra=turn)
    newest = tmp_path / manifest.name_of(2)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="before it"):
        state, _ = restored.load(tmp_path, fallback=True)
    fbuf.save(tmp_path, state, extra=2)
    assert manifest.numbers(tmp_path) == [1, 3]


@pytest.mark.sweep
def test_a_link_to_another_directory(tmp_path):
    """Knowledge is of a directory, not of a name."""
    link, state = tmp_path / "latest", fbuf.init(jnp.int32(0), 10)
    for name in ("one", "two"):
        state = fbuf.save(tmp_path / name, state)
        state = fbuf.add(state, jnp.ones(3, jnp.int32))
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        state = fbuf.save(link, state)
        same(restored.load(tmp_path / name).state, state)


@pytest.mark.filterwarnings(REWRITES)
def test_threads_that_save_to_one_directory(tmp_path):
    state = fbuf.add(fbuf.init(jnp.zeros(3), 100), jnp.ones((50, 3)))
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for background in (False, True) * 4:
            threads.submit(fbuf.save, tmp_path, state, background=background, keep=3)
    fbuf.wait()
    same(without_id(restored.load(tmp_path).state), state)
    assert manifest.numbers(tmp_path) == [6, 7, 8]


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


@pytest.mark.sweep
def test_items_of_classes_of_ones_own(tmp_path):
    item = {"point": Point(jnp.zeros(2), jnp.int8(0))}
    state = fbuf.add(fbuf.init(item, 4), {"point": Point(jnp.ones((3, 2)), jnp.ones(3, jnp.int8))})
    state = fbuf.save(tmp_path, state, extra=Point(1, 2.5))
    with pytest.raises(fbuf.CheckpointError, match=r"item is made of .*Point, .* as item="):
        restored.load(tmp_path)
    with pytest.raises(fbuf.CheckpointError, match="structure as extra="):
        restored.load(tmp_path, item=item)
    loaded, extra = restored.load(tmp_path, item=item, extra=Point(0, 0))
    same(loaded, state)
    assert extra == Point(1, 2.5)


class Nothing(NamedTuple):
    """A part of an item with nothing in it."""


@pytest.mark.sweep
def test_an_item_with_an_empty_part(tmp_path):
    item = {"r": jnp.float32(0), "of": Nothing(), "more": {}}
    state = fbuf.add(fbuf.init(item, 4), {**item, "r": jnp.ones(3)})
    state = fbuf.save(tmp_path, state)
    same(restored.load(tmp_path, item=item).state, state)


@pytest.mark.sweep
def test_saved_elsewhere_again_and_again(tmp_path):
    state = fbuf.add(fbuf.init(jnp.zeros(()), 20), jnp.arange(7.0))
    for turn in range(4):
        state = fbuf.save(tmp_path / str(turn), state, extra=turn)
        found, extra = restored.load(tmp_path / str(turn))
        same(found, state)
        assert extra == turn
        state = fbuf.add(found, jnp.full(5, 1.0 * turn))


def test_extra(tmp_path):
    extra = {
        "key": jax.random.key(3),
        "rbg": jax.random.key(3, impl="rbg"),
        "step": 10**15,
        "rate": float("inf"),
        "name": "a",
        "on": True,
        "none": None,
        "of": [
            np.float64(0.1),
            np.bool_(True),
            np.int8(3),
            np.float16(0.5),
            np.arange(3),
            jnp.ones((2, 0)),
            jnp.bfloat16(1.5),
            (),
            *(b"", b"\0\xff"),
        ],
    }
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=extra)
    found = restored.load(tmp_path).extra
    assert jax.tree.structure(found) == jax.tree.structure(extra)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(extra), strict=True):
        if isinstance(b, jax.Array) and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b)
    swapped = np.array([1, 2], ">f4")
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=swapped)
    np.testing.assert_array_equal(restored.load(tmp_path).extra, swapped)
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra={1: 2, 3: 4})
    assert restored.load(tmp_path, extra={1: 0, 3: 0}).extra == {1: 2, 3: 4}
    with pytest.raises(fbuf.CheckpointError, match="structure"):
        restored.load(tmp_path, extra={7: 0, 8: 0})
    with pytest.raises(TypeError, match="array of"):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=np.zeros(2, "i4,f4"))
    with jax.enable_x64(True):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros((), jnp.float32), 3), extra=jnp.int64(2**40))
    with pytest.raises(fbuf.CheckpointError, match="64-bit types are off"):
        restored.load(tmp_path)
    for bad, what in (
        (object(), "leaf of type object"),
        (signal.SIGINT, "leaf of type Signals"),  # which would come back as an int
        (np.str_("a"), "leaf of type str_"),
        (bytearray(b"a"), "leaf of type bytearray"),
        (np.ma.masked_array([1, 2], [0, 1]), "masked array"),
    ):
        with pytest.raises(TypeError, match=what):
            fbuf.save(tmp_path / "new", fbuf.init(jnp.zeros(()), 3), extra=[bad])
    assert not (tmp_path / "new").exists()


@jax.numpy_dtype_promotion("standard")  # optax wants it
@pytest.mark.parametrize("several", [False, True])
def test_an_optimiser_beside_the_buffer(tmp_path, several):
    """Its state has objects with nothing in them."""
    optax = pytest.importorskip("optax")
    optimiser = optax.chain(optax.clip(1), optax.sgd(1)) if several else optax.adam(1e-3)
    params = {"w": jnp.arange(3.0)}
    _, saved = optimiser.update(params, optimiser.init(params))
    state = fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=(params, saved))
    example = params, optimiser.init(params)
    same(restored.load(tmp_path, extra=example).extra, (params, saved))
    loaded, extra = restored.load(tmp_path, with_extra=False)
    same(loaded, state)
    assert extra is None
    with pytest.raises(fbuf.CheckpointError, match=r"EmptyState.*or with_extra=False"):
        restored.load(tmp_path)
    with pytest.raises(
        fbuf.CheckpointError, match=r"the extra \(\{w: leaf\}, .*, and extra is \{a:"
    ):
        restored.load(tmp_path, extra={"a": 0})


def test_in_the_background(tmp_path, monkeypatch):
    commit, overwritten = writer.commit, threading.Event()
    monkeypatch.setattr(writer, "commit", lambda *given: (overwritten.wait(10), commit(*given)))
    state = fbuf.init(jnp.zeros(10), 100)
    for turn in range(5):
        state = fbuf.add(state, jnp.full((30, 10), turn, jnp.float32))
        state = fbuf.save(tmp_path, state, background=True)
        expected = jax.tree.map(jnp.copy, state)
        state = fbuf.add(state, jnp.full((50, 10), -1.0))  # written over while it is saved
        overwritten.set()
        same(restored.load(tmp_path).state, expected)  # waits for it
        overwritten.clear()


def test_a_wait_that_was_interrupted_waits_again(tmp_path, monkeypatch):
    """Python takes a thread whose `join` was interrupted for one that has ended."""
    may_end, commit = threading.Event(), writer.commit
    state = fbuf.save(tmp_path, fbuf.init(jnp.zeros(10), 100), extra=1)
    for error in (None, OSError("no space left on device")):

        def slow(*given, error=error):
            may_end.wait(60)
            if error is not None:
                raise error
            commit(*given)

        may_end.clear()
        with monkeypatch.context() as slowed:
            slowed.setattr(writer, "commit", slow)
            state = fbuf.save(tmp_path, state, extra=2, background=True)
        for asked in ((fbuf.wait,), (fbuf.load, tmp_path), (fbuf.save, tmp_path, state)):
            interrupted(functools.partial(*asked))
        threading.Timer(0.1, may_end.set).start()
        if error is None:
            assert fbuf.load(tmp_path).extra == 2
        else:
            with pytest.raises(OSError, match="no space"):
                fbuf.wait()


def test_a_failure_in_the_background_is_raised_once(tmp_path, monkeypatch):
    state = fbuf.init(jnp.zeros(10), 100)
    fbuf.save(tmp_path, state, extra=1)

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(manifest, "write", full)
        fbuf.save(tmp_path, fbuf.add(state, jnp.ones((3, 10)), donate=False), background=True)
        with pytest.raises(OSError, match="no space"):
            fbuf.wait()
        fbuf.wait()
        fbuf.save(tmp_path, state, background=True)
        with pytest.raises(OSError, match="no space"):
            fbuf.save(tmp_path, state)
    assert restored.load(tmp_path).extra == 1
    fbuf.save(tmp_path, state, extra=2)
    assert restored.load(tmp_path).extra == 2
    assert not [name for name in files(tmp_path) if "unfinished" in name]


def test_ctrl_c_when_the_thread_begins(tmp_path, monkeypatch):
    """The thread writes; so somebody must know of it, wait for it, and hear of its failure."""
    state = fbuf.init(jnp.zeros(10), 100)
    start, write, writing = threading.Thread.start, manifest.write, threading.Event()

    def started(thread):
        start(thread)
        if thread.name.startswith("fbuf.save"):
            signal.raise_signal(signal.SIGINT)

    def slow(*given):
        writing.wait(10)
        write(*given)
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", started)
        broken.setattr(manifest, "write", slow)
        with pytest.raises(KeyboardInterrupt):
            fbuf.save(tmp_path, state, extra=1, background=True)
        writing.set()
        with pytest.raises(OSError, match="no space"):
            fbuf.wait(tmp_path)
    fbuf.save(tmp_path, state, extra=2)
    assert restored.load(tmp_path).extra == 2


def test_nothing_of_the_state_is_held(tmp_path):
    """The next add writes in place: nobody looks at the memory any more."""
    state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((10, 100)))
    for background in (False, True):
        fbuf.save(tmp_path, state, background=background)
        for kept in (state, restored.load(tmp_path).state):
            where = lambda state: [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(
                (state.storage, state.ring.flags, state.index)
            )]  # fmt: skip
            before = where(kept)
            state = fbuf.add(kept, jnp.ones((10, 100)))
            assert where(state) == before


def test_a_save_in_the_background_has_the_index_as_it_was(tmp_path, monkeypatch):
    """While the save waits, an add writes in place, and the save does not see it."""
    may_go, commit = threading.Event(), writer.commit
    monkeypatch.setattr(writer, "commit", lambda *given: (may_go.wait(), commit(*given)))
    state = fbuf.init(jnp.zeros(()), 100, sampler=fbuf.Prioritized())
    state = fbuf.add(state, jnp.arange(10.0), priority=jnp.arange(10.0))
    expected = jax.device_get(jax.tree.map(jnp.copy, state))
    state = fbuf.save(tmp_path, state, background=True)
    before = state.index.tree.leaves.unsafe_buffer_pointer()
    state = fbuf.add(state, jnp.ones(10), priority=jnp.ones(10))
    may_go.set()
    fbuf.wait()
    assert state.index.tree.leaves.unsafe_buffer_pointer() == before
    same(restored.load(tmp_path).state.index, expected.index)


@SWEEP
def test_another_capacity_that_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"fbuf\.load: capacity must be from 1"):
        restored.load(tmp_path, capacity=-1)  # before anything is read


@pytest.mark.sweep
def test_into_another_capacity(tmp_path):
    state = fbuf.init(jnp.int32(0), 10, sampler=fbuf.Prioritized())
    state = fbuf.add(state, jnp.arange(14, dtype=jnp.int32))
    fbuf.save(tmp_path, state)
    for capacity in (4, 20):
        same(restored.load(tmp_path, capacity=capacity).state, fbuf.resize(state, capacity))


def test_keep(tmp_path):
    for turn in range(5):
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=turn, keep=3)
    assert manifest.numbers(tmp_path) == [3, 4, 5]
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3), extra=5, keep=1)
    assert manifest.numbers(tmp_path) == [6]
    assert sorted(files(tmp_path)) == [
        "LOCK",
        "MANIFEST-00000006",
        "shard-00000/index-00000006.npy",
    ]


def test_misuse(tmp_path, monkeypatch):
    state = fbuf.init({"x": jnp.zeros(2)}, 4, sampler=fbuf.Prioritized())
    with pytest.raises(fbuf.CheckpointError, match="no checkpoint"):
        restored.load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        fbuf.save(tmp_path / "file", state)
    path = tmp_path / "a" / "b"
    fbuf.save(path, state)
    with pytest.raises(fbuf.CheckpointError, match=r"\{x: float32\[2\]\}, and item is"):
        restored.load(path, item={"x": jnp.zeros(3)})
    with pytest.raises(
        fbuf.CheckpointError, match=r"Prioritized\(alpha=0.6.*, and sampler is Uni.*fbuf.extend"
    ):
        restored.load(path, sampler=fbuf.Uniform())
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda state: fbuf.save(path, state))(state)
    with pytest.raises(ValueError, match="keep"):
        fbuf.save(path, state, keep=0)
    with pytest.raises(TypeError, match=r"fbuf.load: item .*str"):
        restored.load(path, item="abc", fallback=True)
    for function in (fbuf.load, fbuf.wait, lambda path: fbuf.save(path, state)):
        with pytest.raises(ValueError, match="path is empty"):
            function("")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert restored.load("~/a/b").state.capacity == 4
    with jax.enable_x64(True):
        fbuf.save(tmp_path / "wide", fbuf.init({"x": jnp.zeros(2, jnp.float64)}, 4))
    with pytest.raises(fbuf.CheckpointError, match="items with float64, and JAX's 64-bit"):
        restored.load(tmp_path / "wide", fallback=True)
    fbuf.add(state, {"x": jnp.zeros(2)})
    with pytest.raises(RuntimeError, match="consumed"):
        fbuf.save(path, state)


@pytest.fixture
def nobody():
    """The user of the tests; root may write anywhere, and so is another user for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def read_only():
    """A checkpoint that can be read, and not be written to. Others cannot get to `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fbuf.save(folder, fbuf.init(jnp.zeros(()), 3))
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


def test_a_directory_that_cannot_be_written_to(read_only, nobody):
    state = restored.load(read_only).state
    for folder in (read_only, read_only / "new"):
        with pytest.raises(PermissionError, match=str(read_only)):
            fbuf.save(folder, state)


# --- open episodes -------------------------------------------------------------------------------


def test_a_loaded_buffer_ends_its_open_episodes(tmp_path):
    """The environments of a run that starts again are reset: no window goes across."""
    sampler = fbuf.Uniform(window=2)
    state = fbuf.init(jnp.int32(0), 16, num_envs=2, sampler=sampler)
    steps = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    state = fbuf.add(state, steps, terminated=jnp.array([[0, 0, 1], [0, 0, 0]], bool))
    state = fbuf.save(tmp_path, state)
    for options in ({}, {"capacity": 24}):
        loaded = fbuf.load(tmp_path, **options).state
        ends = fbuf.rows(loaded)
        stored = np.asarray(ends.mask)
        assert np.asarray(ends.terminated)[stored].tolist() == [False, False, True] + [False] * 3
        assert np.asarray(ends.truncated)[stored].tolist() == [False] * 5 + [True]
        loaded = fbuf.add(loaded, jnp.full((2, 1), 9, jnp.int32))
        batch = fbuf.sample(loaded, jax.random.key(0), 64, view=fbuf.Sequence(2))
        assert set(np.asarray(batch.data.item).reshape(-1).tolist()) <= {0, 1, 2, 3, 4, 5}
    kept = fbuf.add(restored.load(tmp_path).state, jnp.full((2, 1), 9, jnp.int32))
    batch = fbuf.sample(kept, jax.random.key(0), 64, view=fbuf.Sequence(2))
    assert 9 in np.asarray(batch.data.item)  # environments that were restored go on
    with pytest.raises(ValueError, match=r"fbuf\.load: episodes must be"):
        fbuf.load(tmp_path, episodes="reset")


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 5, 8, 11])
def test_a_load_without_an_open_episode_compiles_no_program_for_it(tmp_path, steps, lockstep):
    """The newest row of every environment is looked at on the host."""
    state = fbuf.init(jnp.int32(0), 16, num_envs=2, lockstep=lockstep)
    if steps:
        last = np.broadcast_to(np.arange(steps) == steps - 1, (2, steps))
        state = fbuf.add(state, np.zeros((2, steps), np.int32), terminated=last)
    state = fbuf.save(tmp_path / "ended", state)
    programs = {}
    for episodes in ("keep", "end"):
        jax.clear_caches()
        with compiles.counted() as programs[episodes]:
            loaded = fbuf.load(tmp_path / "ended", episodes=episodes).state
    assert set(programs["end"]) - set(programs["keep"]) <= {"jit(copy)"}
    same(loaded, restored.load(tmp_path / "ended").state)
    assert not may_have_open_episodes(loaded.ring)
    if not lockstep:
        for lane in ([True, False], [False, True]):
            mask = np.array(lane)[:, None]
            state = fbuf.add(loaded, np.ones((2, 1), np.int32), mask=mask, donate=False)
            assert may_have_open_episodes(state.ring)
    state = fbuf.add(loaded, np.ones((2, 1), np.int32), terminated=np.array([[True], [False]]))
    assert may_have_open_episodes(state.ring)
    assert not may_have_open_episodes(fbuf.end_episode(state).ring)


@pytest.mark.sweep
def test_a_run_that_has_ended_its_episodes_saves_on(tmp_path):
    state = fbuf.init({"obs": jnp.int32(0)}, 16, next_of="obs")
    state = fbuf.add(
        state,
        {"obs": jnp.arange(5, dtype=jnp.int32)},
        next_observation=jnp.arange(1, 6, dtype=jnp.int32),
    )
    fbuf.save(tmp_path, state)
    state = fbuf.load(tmp_path).state
    state = fbuf.add(state, {"obs": jnp.int32(50)}, next_observation=jnp.int32(51))
    state = fbuf.save(tmp_path, state)
    again = restored.load(tmp_path).state
    same(again, state)
    assert int(again.fault) == 0
    batch = fbuf.read(again, fbuf.newest_ids(again, 6), view=fbuf.Transition())
    assert batch.data.next_observation.tolist() == [1, 2, 3, 4, 5, 51]


def test_what_is_no_directory_of_a_checkpoint_says_what_it_is(tmp_path):
    with pytest.raises(fbuf.CheckpointError, match="run: there is no such directory"):
        fbuf.load(tmp_path / "run")
    (tmp_path / "buffer.pkl").touch()
    with pytest.raises(fbuf.CheckpointError, match=r"buffer\.pkl: that is a file"):
        fbuf.load(tmp_path / "buffer.pkl")
    for path in (tmp_path / "buffer.pkl", tmp_path / "buffer.pkl" / "run"):
        with pytest.raises(FileExistsError, match=r"saves to a directory.*buffer\.pkl'"):
            fbuf.save(path, fbuf.init(0.0, 4))


@pytest.mark.parametrize("kind", ["plain", "mesh", "host"])
def test_a_checkpoint_is_there_once_a_save_is_complete(kind, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    assert not fbuf.has_checkpoint(folder)
    if kind == "plain":
        state = fbuf.add(fbuf.init(jnp.zeros(()), 4), jnp.arange(3.0))
        fbuf.save(folder, state, background=True)
    elif kind == "mesh":
        mesh = jax.make_mesh((1,), ("data",))
        fbuf.sharded.save(folder, fbuf.sharded.init(jnp.zeros(()), 4, mesh=mesh))
    else:
        fbuf.host.HostStore(jnp.zeros(()), 4).save(folder)
    assert fbuf.has_checkpoint(str(folder))
    for path in [*folder.glob("MANIFEST-*"), *folder.glob("SHARDS-*")]:
        path.rename(folder / f"{path.name}.tmp")  # as a save that was killed leaves it
    assert not fbuf.has_checkpoint(folder)
    with pytest.raises(ValueError, match=r"fbuf\.has_checkpoint: .gs:.* is a URL"):
        fbuf.has_checkpoint("gs://bucket/run")


@pytest.mark.usefixtures("random_tags")
def test_a_new_buffer_is_no_successor_of_the_checkpoint(tmp_path):
    """As where a program forgets to use what it has loaded; a smaller buffer of its rows is one."""
    full = fbuf.add(fbuf.init(jnp.zeros(()), 8), jnp.arange(6.0))
    fbuf.save(tmp_path, full)
    loaded = restored.load(tmp_path).state
    small = fbuf.add(fbuf.init(jnp.zeros(()), 4), jnp.arange(2.0))
    with pytest.raises(fbuf.CheckpointError, match=r"of another buffer.*the saved one, load it"):
        fbuf.save(tmp_path, small)
    with pytest.warns(UserWarning, match="more rows than this buffer.*that run, load it"):
        fbuf.save(tmp_path, fbuf.resize(loaded, 4))
    fbuf.save(tmp_path / "other", fbuf.clear(loaded))  # of its own, though it is empty


def test_the_next_observations_of_many_arrays_are_read_each_into_its_own(tmp_path):
    """By name the tenth array comes before the second one."""
    item = {"obs": {f"{n:02}": jnp.zeros(300) for n in range(12)}}
    rows = {name: jnp.full((1, 300), float(name)) for name in item["obs"]}
    state = fbuf.init(item, 4, next_of="obs")
    state = fbuf.add(state, {"obs": rows}, next_observation=rows)
    state = fbuf.save(tmp_path, state)
    same(restored.load(tmp_path).state, state)
