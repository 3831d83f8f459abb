"""Rows on the host: the same histories, and the same draws bit for bit, as of a plain buffer."""

from __future__ import annotations

import copy
import dataclasses
import errno
import functools
import itertools
import mmap
import multiprocessing
import os
import pathlib
import re
import resource
import signal
import threading
import time
import traceback
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.pair import Pair
from support.reentry import call_at_line
from test_against_oracle import CASES, MANY, SWEPT, agree, uniform

import fbuf
from fbuf.checkpoint import manifest
from fbuf.checks import sizes
from fbuf.host import HostStore, programs
from fbuf.runtime.thread import Worker

# As the functions of `programs`, of an object.


def look(store, key, step=None, beta=0.7, *, batch_size):
    batch = store.sample(key, batch_size, beta=beta, step=step)
    ids = store.ids_at(jnp.arange(store.capacity, dtype=jnp.int32))
    asked = store.size(), store.can_sample(), store.stats()
    return batch, *asked, store.probability(ids), store.rows()


def changing(name):
    def change(store, *args, **options):
        getattr(store, name)(*args, **options)
        return store

    return change


NAMES = ("add", "remove", "clear", "update_priority", "end_episode")
OPERATIONS = SimpleNamespace(look=look, **{name: changing(name) for name in NAMES})


class HostPair(Pair):
    """A store and the oracle."""

    operations, empty = OPERATIONS, staticmethod(HostStore)

    def parts(self):
        read = lambda leaf: leaf if isinstance(leaf, jax.Array) else leaf[:]
        return [jax.tree.map(read, self.state.contents.whole())]


class MappedPair(HostPair):
    """The same with rows in files."""

    def __init__(self, *args, folder, **options):
        self.empty = lambda *a, **o: HostStore(*a, files=folder, **o)
        super().__init__(*args, **options)


class SavedPair(HostPair):
    """The same with a checkpoint that is opened, and saved and opened again in between."""

    def __init__(self, *args, folder, **options):
        self.folder = folder
        self.empty = lambda *a, **o: self.again(HostStore(*a, **o))
        super().__init__(*args, **options)

    def again(self, store, opened=True):
        store.save(self.folder)
        if not opened:
            return store
        return HostStore.open(self.folder, sampler=store.contents.index.sampler, episodes="keep")[0]

    def step(self, rng, *args, **options):
        super().step(rng, *args, **options)
        if rng.random() < 0.5:
            self.state = self.again(self.state, opened=rng.random() < 0.5)


def histories(cases, seeds):
    return [pytest.param(*case[:3], seeds, id=f"host{n:02}") for n, case in enumerate(cases)]


@pytest.mark.sweep
@pytest.mark.parametrize(("shape", "sampler", "autoreset", "seeds"), histories(CASES[6:7], [1]))
def test_any_history(shape, sampler, autoreset, seeds, tmp_path):
    any_history(shape, sampler, autoreset, seeds, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "sampler", "autoreset", "seeds"),
    histories([*CASES, (MANY, uniform(), "same_step"), *SWEPT[-10:]], [2, 3]),
)
def test_any_history_of_every_sampler(shape, sampler, autoreset, seeds, tmp_path):
    any_history(shape, sampler, autoreset, seeds, tmp_path)


def any_history(shape, sampler, autoreset, seeds, folder):
    for seed in seeds:
        rng, often = np.random.default_rng(seed), (0.1, 0.5, 0.9)[seed % 3]
        if seed % 3 == 1:
            pair = HostPair(shape, sampler, autoreset)
        else:
            kind = MappedPair if seed % 3 else SavedPair
            pair = kind(shape, sampler, autoreset, folder=folder / str(seed))
        for _ in range(10):
            pair.step(rng, (3, 9), often, odd=True)
            agree(pair, rng)


def achieved_it(achieved, goal):
    return -jnp.abs(achieved - goal).sum()


VIEWS = [
    fbuf.Item(),
    fbuf.Item(fields=("reward", "image")),
    fbuf.Transition(fields=("small",)),
    fbuf.NStep(3, gamma=0.9),
    fbuf.NStep((1, 4), gamma=0.9),
    fbuf.Sequence(2, burn_in=1, boundary="pad", state="goal"),
    fbuf.Sequence(3, boundary="cross", time_major=True),
    fbuf.Sequence(3, boundary="cross", next_of="observation", fields=("reward",)),
    fbuf.FrameStack(3, field="image"),
    fbuf.FrameStack(2, field="observation", fields=("observation", "reward")),
    fbuf.ReturnToGo(gamma=0.9),
    fbuf.Window({"image": (-2, 0), "small": range(3), "goal": (1,)}),
    fbuf.Window({"reward": (0, 5)}, pad="zero", fields=("reward", "half")),
    fbuf.Hindsight(achieved_it, ratio=0.5),
    fbuf.Hindsight(achieved_it, strategy="episode", fields=("goal", "reward")),
    fbuf.Hindsight(achieved_it, strategy={"future": 1, "random": 1}, discount=0.8, copies=2),
]
ITEM = {
    "observation": jnp.zeros(3),
    "reward": 0.0,
    "goal": jnp.zeros(2),
    "achieved_goal": jnp.zeros(2),
    "image": jnp.zeros((7, 11), jnp.uint8),
    "small": jnp.zeros(3, jnp.uint16),
    "half": jnp.zeros((), jnp.bfloat16),
    "flag": jnp.zeros((), bool),
    "wide": jnp.zeros(300, jnp.float32),
}


def random_rows(rng, *lead):
    def leaf(spec):
        values = rng.integers(0, 200, (*lead, *jnp.shape(spec)))
        return values.astype(jnp.result_type(spec))

    return jax.tree.map(leaf, ITEM)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


draw = jax.jit(fbuf.sample, static_argnames=("batch_size", "view"))


@pytest.mark.sweep
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
@pytest.mark.parametrize("lockstep", [True, False])
def test_every_view_of_every_field(view, lockstep):
    """Bit for bit what a buffer returns, with ends, around the ring, and after all changes."""
    every_view([view], lockstep, HostStore, lambda store: store)


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [True, False])
def test_every_view_of_rows_in_files(lockstep, tmp_path):
    every_view(VIEWS, lockstep, functools.partial(HostStore, files=tmp_path), lambda store: store)


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [True, False])
def test_every_view_of_a_checkpoint_that_is_opened(lockstep, tmp_path):
    """Some rows lie in its files, and some have been added or changed since."""

    def opened(store):
        store.save(tmp_path)
        return HostStore.open(tmp_path, episodes="keep")[0]

    every_view(VIEWS, lockstep, HostStore, opened)


def every_view(views, lockstep, make, again):
    """See above; `again` is called with the store in between, and returns one to go on with."""
    rng = np.random.default_rng(5)
    options = {"num_envs": 2, "sampler": fbuf.Prioritized(), "next_of": "observation"}
    options |= {"max_ends": 4, "lockstep": lockstep}
    state, store = fbuf.init(ITEM, 20, **options), make(ITEM, 20, **options)
    for turn in range(5):
        rows = random_rows(rng, 2, 4)
        following = random_rows(rng, 2, 4)["observation"]
        ends = rng.random((2, 2, 4)) < 0.2
        given = {"terminated": ends[0], "truncated": ends[1], "next_observation": following}
        if not lockstep:
            given["mask"] = rng.random((2, 4)) < 0.7
        state = fbuf.add(state, rows, **given)
        store.add(rows, **given)
        key = jax.random.key(turn)
        for view in views:
            batch = draw(state, key, 16, view=view)
            same(batch, store.sample(key, 16, view=view))
        if turn == 2:
            state = fbuf.end_episode(state, mask=jnp.array([True, False]))
            store.end_episode(mask=jnp.array([True, False]))
        priority = rng.random(16).astype(np.float32)
        state = fbuf.update_priority(state, batch.ids, priority)
        store.update_priority(batch.ids, priority)
        fields = {name: random_rows(rng, 16)[name] for name in ("reward", "half", "image")}
        state = fbuf.write(state, batch.ids, fields)
        store.write(batch.ids, fields)
        if turn % 2:
            store = again(store)
    for view in views:
        if not view.is_random and not view.time_major:
            same(fbuf.rows(state, view=view), store.rows(view=view))
            same(fbuf.rollout(state, view=view), store.rollout(view=view))
    names = {name for name in fbuf.stats(state) if name != "bytes"}
    assert {n: float(store.stats()[n]) for n in names} == {
        n: float(fbuf.stats(state)[n]) for n in names
    }


@pytest.mark.sweep
def test_rows_belong_to_their_owner_again():
    """Also wide ones, and those of one environment alone."""
    store = HostStore(ITEM, 8)
    rows = random_rows(np.random.default_rng(0), 4)
    before = jax.tree.map(np.copy, rows)
    store.add(rows)
    for leaf in jax.tree.leaves(rows):
        leaf[:] = 1
    same(store.rollout().data["wide"][:4], before["wide"])
    same(store.rollout().data["reward"][:4], before["reward"])


@pytest.mark.sweep
def test_a_queue_hands_out_each_row_once():
    state, store = (make(jnp.int32(0), 8, sampler=fbuf.Fifo()) for make in (fbuf.init, HostStore))
    for first in range(0, 30, 5):
        rows = np.arange(first, first + 5, dtype=np.int32)
        state = fbuf.add(state, rows)
        store.add(rows)
        state, batch = fbuf.pop(state, 3)
        same(batch, store.pop(3))
        assert int(store.unread()) == int(fbuf.unread(state))
        assert int(store.space()) == int(fbuf.space(state))
    assert fbuf.Fault(int(store.stats()["fault"])) == fbuf.Fault.FULL


def filled(**options):
    store = HostStore(jnp.int32(0), 64, **options)
    store.add(np.arange(40, dtype=np.int32))
    return store


@pytest.mark.sweep
@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_are_those_of_their_moment(prefetch):
    """Batch `i` is drawn when batch `i - prefetch` is asked for, whatever the thread does."""
    store, key = filled(), jax.random.key(3)
    twin = fbuf.add(fbuf.init(jnp.int32(0), 64), np.arange(40, dtype=np.int32))
    expected = [fbuf.sample(twin, jax.random.fold_in(key, i), 8) for i in range(prefetch)]
    with store.batches(key, 8, prefetch=prefetch) as batches:
        for number in range(30):
            latest = jax.random.fold_in(key, number + prefetch)
            expected.append(fbuf.sample(twin, latest, 8))
            same(next(batches), expected[number])
            rows = np.arange(100 * number, 100 * number + 7, dtype=np.int32)
            store.add(rows)
            twin = fbuf.add(twin, rows)
            if number % 3 == 0:
                time.sleep(0.002)


@pytest.mark.sweep
def test_batches_in_order_make_epochs():
    store = filled(sampler=fbuf.Shuffled())
    with store.batches(jax.random.key(0), 8) as batches:
        found = np.concatenate([np.asarray(next(batches).data) for _ in range(5)])
    assert sorted(found.tolist()) == list(range(40))


@pytest.mark.sweep
def test_an_exception_in_the_thread_comes_out_with_its_traceback(monkeypatch):
    store = filled()
    batches = store.batches(jax.random.key(0), 8)
    next(batches)

    def broken(*args):
        raise OSError("the disk is gone")

    monkeypatch.setattr(programs, "take", broken)
    failed = []
    for _ in range(6):
        try:
            next(batches)
        except OSError as error:
            failed.append(error)
    assert len(failed) >= 3  # but for those that were ready
    assert "in broken" in "".join(traceback.format_exception(failed[0]))
    with store.lock:
        store.contents.settle()
    monkeypatch.undo()
    store.add(np.arange(3, dtype=np.int32))  # nothing waits for what has failed
    for _ in range(2):  # those that were made before the disk came back
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
    next(batches)
    batches.close()


@pytest.mark.sweep
def test_the_thread_ends_in_every_state():
    before = set(threading.enumerate())
    store = filled()
    never, once = (store.batches(jax.random.key(n), 8) for n in range(2))
    next(once)
    never.close()
    once.close()
    once.close()
    with pytest.raises(RuntimeError, match="these were closed"):
        next(once)
    left = store.batches(jax.random.key(2), 8)
    next(left)
    del left  # forgotten
    with store.batches(jax.random.key(3), 8) as batches:
        next(batches)
    other = store.batches(jax.random.key(4), 8)
    next(other)
    store.close()
    until = time.monotonic() + 20
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda s: s.add(np.zeros(3)), TypeError, "items is float64"),
        (lambda s: s.add(np.zeros((3, 2), np.int32)), ValueError, "one item, or"),
        (lambda s: s.add({"x": np.int32(1)}), ValueError, "tree of the item"),
        (lambda s: s.add(None), ValueError, "tree of the item"),
        (lambda s: s.add(np.int32(1), priority=1.0), ValueError, "keeps no priorities"),
        (lambda s: s.add(2**40), (ValueError, TypeError, OverflowError), "hold|int32|large"),
        (lambda s: s.sample(jax.random.key(0), 0), ValueError, "batch_size"),
        (lambda s: s.sample(jax.random.key(0), 2, view=fbuf.Item), TypeError, "view"),
        (lambda s: s.sample(jax.random.key(0), 2, step=1), ValueError, "takes no step"),
        (lambda s: s.batches(jax.random.key(0), 2, prefetch=0), ValueError, "prefetch"),
        (lambda s: s.batches(0, 2), TypeError, "key"),
        (lambda s: s.read(3), TypeError, "ids must be a fbuf.Ids"),
        (lambda s: s.pop(2), ValueError, "Fifo"),
    ],
)
def test_what_cannot_be_right_is_refused(call, error, match):
    store = filled()
    with pytest.raises(error, match=match):
        call(store)
    assert store.size() == 40
    store.add(np.int32(7))
    assert store.size() == 41


@pytest.mark.sweep
def test_files_leave_nothing_behind(tmp_path):
    """They have no names: a process that is killed leaves no gigabytes on the disk."""
    store = HostStore(jnp.int32(0), 1000, files=tmp_path / "rows")
    store.add(np.arange(1500, dtype=np.int32))
    assert (tmp_path / "rows").is_dir()
    assert not list((tmp_path / "rows").iterdir())
    assert store.rows().data.tolist() == list(range(500, 1500))


def test_what_a_limit_of_the_process_leaves_no_room_for(tmp_path, monkeypatch):
    """Files that are mapped count, too; the capacity that is named fits, and no larger one."""
    monkeypatch.setattr(sizes, "free_addresses", lambda: 2**20)
    sampler, item = fbuf.Uniform(window=2), {"x": jnp.zeros(250)}
    for options in ({}, {"num_envs": 4, "sampler": sampler}, {"next_of": "x"}):
        message = r"10000 rows take .* MiB of the address space.*\(ulimit -v\), which has 1.0 MiB"
        with pytest.raises(MemoryError, match=message) as error:
            HostStore(item, 10_000, files=tmp_path, **options)
        fitting = int(re.search(r"capacity=(\d+) would fit, or raise", str(error.value))[1])
        HostStore(item, fitting, files=tmp_path, **options)
        with pytest.raises(MemoryError, match=f"capacity={fitting} would fit"):
            HostStore(item, fitting + options.get("num_envs", 1), files=tmp_path, **options)
    with pytest.raises(MemoryError, match="not one row would fit"):
        HostStore(jnp.zeros(2**20), 100, files=tmp_path)
    with pytest.raises(ValueError, match="window"):
        HostStore(item, 1, sampler=sampler, files=tmp_path)


def test_a_map_that_fails_says_sizes(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fails)
    with pytest.raises(MemoryError, match=r"a file of 4.0 MiB cannot be mapped.*Cannot allocate"):
        HostStore(jnp.zeros(2**20), 1, files=tmp_path)


def test_the_limit_of_the_process_is_read(monkeypatch):
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (used + 2**30, -1))
    assert abs(sizes.free_addresses() - 2**30) < 2**28
    assert sizes.free_of_host() <= sizes.free_addresses() + 2**28
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**20, -1))
    assert sizes.free_addresses() == sizes.free_of_host() == 0
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, -1))
    assert sizes.free_addresses() is None
    assert sizes.free_of_host() > 0


@pytest.mark.sweep
def test_what_there_is_no_room_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "free_of_host", lambda: 2**20)
    with pytest.raises(MemoryError, match=r"take 3.8 MiB of .* has 1.0 MiB free.* give files"):
        HostStore(jnp.zeros(1000), 1000)
    HostStore(jnp.zeros(1000), 1000, files=tmp_path)
    with pytest.raises(OSError, match="No space left") as error:
        HostStore(jnp.zeros(2**28), 2**12, files=tmp_path)
    assert error.value.errno == errno.ENOSPC


def test_rows_of_which_all_are_masked_write_nothing():
    store = filled()
    before = store.rows()
    store.add(np.int32(7), mask=False)
    same(before, store.rows())


def test_what_a_full_store_says_of_itself():
    store = filled(num_envs=None)
    assert repr(store) == "HostStore(Uniform, 40 of 64 rows)"
    assert (store.capacity, store.next_of) == (64, None)
    assert store.item == jax.ShapeDtypeStruct((), jnp.int32)
    assert dataclasses.is_dataclass(store.sample(jax.random.key(0), 2))


@pytest.mark.sweep
@pytest.mark.parametrize("background", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_what_was_saved_comes_back(tmp_path, background):
    """As a store and as a buffer, also if only what is new was written."""
    rng, options = np.random.default_rng(1), {"sampler": fbuf.Prioritized(), "num_envs": 2}
    options |= {"next_of": "observation", "max_ends": 4}
    store = HostStore(ITEM, 20, **options, files=tmp_path / "rows")
    for turn in range(4):
        following = random_rows(rng, 2, 4)["observation"]
        ends = rng.random((2, 4)) < 0.3
        store.add(random_rows(rng, 2, 4), terminated=ends, next_observation=following)
        store.write(store.newest_ids(1), {"reward": np.zeros((2, 1), np.float32)})
        store.save(tmp_path / "saved", extra={"turn": turn}, background=background)
        fbuf.wait(tmp_path / "saved")
        loaded, extra = HostStore.load(tmp_path / "saved", episodes="keep")
        state, _ = fbuf.load(tmp_path / "saved", episodes="keep")
        assert extra == {"turn": turn}
        key = jax.random.key(turn)
        for view in (fbuf.Transition(), fbuf.NStep(2, gamma=0.5)):
            batch = store.sample(key, 16, view=view)
            same(batch, loaded.sample(key, 16, view=view))
            same(batch, draw(state, key, 16, view=view))
        if turn == 2:
            store = loaded
    # The last save wrote the new rows, and not all of them.
    newest = max((tmp_path / "saved").rglob("rows-*.npy"))
    assert newest.stat().st_size < 10 * sum(array.nbytes // 20 for array in arrays_of(store))


def arrays_of(store):
    return jax.tree.leaves(store.contents.whole().storage)


@pytest.mark.sweep
def test_a_buffer_on_the_device_goes_on_as_a_store(tmp_path):
    state = fbuf.add(fbuf.init(jnp.int32(0), 8), np.arange(11, dtype=np.int32))
    state = fbuf.save(tmp_path, state)
    store, _ = HostStore.load(tmp_path, episodes="keep")
    same(store.rows(), fbuf.rows(state))
    store.add(np.int32(50))
    assert store.rows().data.tolist() == [4, 5, 6, 7, 8, 9, 10, 50]
    store.save(tmp_path)
    assert fbuf.rows(fbuf.load(tmp_path).state).data.tolist() == [4, 5, 6, 7, 8, 9, 10, 50]


@pytest.mark.parametrize("read", ["load", "open"])
def test_a_loaded_store_ends_the_episodes_that_were_open(tmp_path, read):
    """And goes on to save what is new, with the next observations that it has kept."""
    options = {"num_envs": 2, "next_of": "obs", "max_ends": 8, "sampler": fbuf.Uniform(window=2)}
    store = HostStore({"obs": jnp.float32(0)}, 16, **options)
    rows = lambda first: {"obs": np.arange(first, first + 6, dtype=np.float32).reshape(2, 3)}
    end = np.array([[0, 0, 0], [0, 0, 1]], bool)  # that of the second one has ended
    store.add(rows(0), terminated=end, next_observation=rows(50)["obs"])
    store.save(tmp_path)
    load = getattr(HostStore, read)
    kept, _ = load(tmp_path, episodes="keep")
    assert int(kept.stats()["num_starts"]) == 4
    ended, _ = load(tmp_path)
    flags = [0, 0, 0, 0, 2, 1]
    for one, expected in ((kept, [*flags[:4], 0, 1]), (ended, flags)):
        assert (one.contents.index.ring.flags[:6] & 3).tolist() == expected
        one.add(rows(10), next_observation=rows(70)["obs"])
        assert (one.contents.index.ring.flags[:6] & 3).tolist() == expected
    assert int(ended.stats()["num_starts"]) == 8
    assert int(kept.stats()["num_starts"]) == 9
    batch = ended.rows(view=fbuf.Transition())
    newest = [[0, 1, 2, 10, 11, 12], [3, 4, 5, 13, 14, 15]]
    following = [[1, 2, 52, 11, 12, 72], [4, 5, 55, 14, 15, 75]]
    assert batch.data.item["obs"][:, -6:].tolist() == newest
    assert batch.data.next_observation[:, -6:].tolist() == following
    key = jax.random.key(0)
    for _ in range(2):  # what was ended is saved, and loaded again
        ended.save(tmp_path)
        again, _ = load(tmp_path, episodes="keep")
        same(again.sample(key, 64, view=fbuf.Transition()),
             ended.sample(key, 64, view=fbuf.Transition()))  # fmt: skip
        ended, _ = load(tmp_path)
        ended.add(rows(20), next_observation=rows(90)["obs"])
    ended.raise_on_fault(ignore=fbuf.Fault.STALE_ID | fbuf.Fault.BROKEN_EPISODE)  # made up
    with pytest.raises(ValueError, match=rf"HostStore\.{read}: episodes must be one of 'end'"):
        load(tmp_path, episodes="ends")


@pytest.mark.sweep
@pytest.mark.parametrize("read", ["load", "open"])
def test_a_store_without_open_episodes_is_loaded_as_it_was(tmp_path, read):
    """Empty, or read as a queue to its end."""
    load = getattr(HostStore, read)
    HostStore(jnp.int32(0), 8).save(tmp_path / "empty")
    store, _ = load(tmp_path / "empty")
    store.add(np.arange(3, dtype=np.int32))
    assert (store.contents.index.ring.flags[:3] & 3).tolist() == [0, 0, 0]
    queue = HostStore(jnp.int32(0), 8, sampler=fbuf.Fifo())
    queue.add(np.arange(5, dtype=np.int32))
    queue.pop(2)
    queue.save(tmp_path / "queue")
    queue, _ = load(tmp_path / "queue")
    assert queue.unread() == 3
    queue.add(np.arange(5, 7, dtype=np.int32))
    batch = queue.pop(5)
    assert batch.data.tolist() == [2, 3, 4, 5, 6]
    assert batch.truncated.tolist() == [False, False, True, False, False]


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [True, False])
def test_a_checkpoint_is_opened_as_a_data_set(tmp_path, lockstep):
    """Rows of several saves, around the ring, and such as `write` has changed."""
    rng = np.random.default_rng(3)
    options = {"num_envs": 2, "sampler": fbuf.Prioritized(), "next_of": "observation"}
    state = fbuf.init(ITEM, 24, **options, lockstep=lockstep)
    for turn in range(5):
        rows, following = random_rows(rng, 2, 3), random_rows(rng, 2, 3)["observation"]
        given = {"terminated": rng.random((2, 3)) < 0.3, "next_observation": following}
        if not lockstep:
            given["mask"] = rng.random((2, 3)) < 0.8
        state = fbuf.add(state, rows, **given)
        key = jax.random.key(turn)
        ids = fbuf.sample(state, key, 3).ids
        fields = {name: random_rows(rng, 3)[name] for name in ("reward", "image")}
        state = fbuf.write(state, ids, fields)
        state = fbuf.save(tmp_path, state, extra={"turn": turn})
        store, extra = HostStore.open(tmp_path, episodes="keep")
        assert extra == {"turn": turn}
        for view in (fbuf.Item(), fbuf.NStep(2, gamma=0.5), fbuf.Transition(fields=("half",))):
            expected = draw(state, key, 16, view=view)
            same(expected, store.sample(key, 16, view=view))
        same(fbuf.rows(state), store.rows())
    assert not store.contents.rows._count  # what changes is a copy


@pytest.mark.sweep
def test_a_buffer_goes_on_where_its_rows_lie(tmp_path):
    """Opened, changed in every way, and saved: only what is new is written, and it is all there."""
    rng, path = np.random.default_rng(4), tmp_path / "saved"
    options = {"num_envs": 2, "sampler": fbuf.Prioritized(), "next_of": "observation"}
    options |= {"max_ends": 8, "autoreset": "next_step"}
    plain, store = HostStore(ITEM, 40, **options), HostStore(ITEM, 40, **options)
    store.save(path)
    store, _ = HostStore.open(path, episodes="keep")
    for turn in range(16):
        rows, following = random_rows(rng, 2, 5), random_rows(rng, 2, 5)["observation"]
        given = {"terminated": rng.random((2, 5)) < 0.2, "next_observation": following}
        ids = plain.sample(jax.random.key(turn), 4).ids if turn else None
        fields = {name: random_rows(rng, 4)[name] for name in ("reward", "image")}
        for each in (plain, store):
            each.add(rows, **given)
            if ids is not None:
                each.write(ids, fields)
                each.update_priority(ids, np.full(4, turn, np.float32))
        if turn % 3 == 2:
            store.save(path, background=turn % 2 == 0)
            fbuf.wait(path)
            if turn % 2:  # its rows are those of the files now
                assert store.contents.rows._count == 0
            loaded, _ = HostStore.load(path, episodes="keep")
            same(loaded.rows(), plain.rows())
        if turn in (5, 11):
            store, _ = HostStore.open(path, episodes="keep")
        key = jax.random.key(turn)
        for view in (fbuf.Item(), fbuf.NStep(2, gamma=0.5)):
            same(plain.sample(key, 16, view=view), store.sample(key, 16, view=view))
        same(plain.rows(), store.rows())
    newest = max(path.rglob("rows-*.npy")).stat().st_size
    assert newest < 33 * sum(array.nbytes // 40 for array in plain.contents.rows.arrays)
    other = tmp_path / "other"  # a whole copy, though most rows lie in files
    store.save(other)
    same(fbuf.rows(fbuf.load(other, episodes="keep").state), plain.rows())
    store.add(rows, **given)
    plain.add(rows, **given)
    same(plain.rows(), store.rows())


@pytest.mark.sweep
@pytest.mark.usefixtures("random_tags")
def test_two_stores_of_one_directory_do_not_mix(tmp_path):
    first = HostStore(jnp.int32(0), 8)
    first.add(np.arange(6, dtype=np.int32))
    first.save(tmp_path)
    one, two = HostStore.open(tmp_path)[0], HostStore.open(tmp_path)[0]
    one.add(np.int32(10))
    two.add(np.int32(20))
    one.save(tmp_path)
    two.save(tmp_path)
    assert HostStore.open(tmp_path)[0].rows().data[-7:].tolist() == [0, 1, 2, 3, 4, 5, 20]
    assert one.rows().data[-7:].tolist() == [0, 1, 2, 3, 4, 5, 10]
    one.add(np.int32(11))
    with pytest.raises(fbuf.CheckpointError, match="is of another buffer"):  # as of two processes
        one.save(tmp_path)
    one.save(tmp_path / "one")
    rows = fbuf.rows(fbuf.load(tmp_path / "one").state).data
    assert rows.tolist() == [0, 1, 2, 3, 4, 5, 10, 11]


def test_files_of_another_length_are_refused(tmp_path):
    state = fbuf.add(fbuf.init(jnp.int32(0), 8), np.arange(11, dtype=np.int32))
    fbuf.save(tmp_path, state)
    (path,) = tmp_path.rglob("rows-*.npy")
    whole = path.read_bytes()
    for wrong in (whole[:-1], whole + b"0"):
        path.write_bytes(wrong)
        with pytest.raises(fbuf.CheckpointError, match=f"it has {len(wrong)} bytes"):
            HostStore.open(tmp_path)
    path.unlink()
    with pytest.raises(fbuf.CheckpointError, match=path.name):
        HostStore.open(tmp_path)
    with pytest.raises(fbuf.CheckpointError, match="there is no checkpoint"):
        HostStore.open(tmp_path / "elsewhere")


@pytest.mark.sweep
def test_more_rows_than_there_was_room_for(tmp_path):
    HostStore(jnp.int32(0), 1000).save(tmp_path)
    store, _ = HostStore.open(tmp_path)
    for first in (0, 40, 80, 300):
        store.add(np.arange(first, first + 200, dtype=np.int32))
        assert store.rows().data[-200:].tolist() == [*range(first, first + 200)]


def test_after_a_change_that_failed_half_way_nothing_is_returned(monkeypatch):
    """The index has the rows, and some of them are not there."""
    store = filled()

    def full(*args):
        raise MemoryError("no room")

    monkeypatch.setattr(type(store.contents.rows), "apply", full)
    with pytest.raises(MemoryError, match="no room"):
        store.add(np.int32(1))
    monkeypatch.undo()
    calls = [lambda: store.add(np.int32(1)), lambda: store.sample(jax.random.key(0), 2)]
    for call in [*calls, store.rows, store.size, lambda: next(store.batches(KEY, 2))]:
        with pytest.raises(RuntimeError, match="load the last checkpoint") as error:
            call()
        assert isinstance(error.value.__cause__, MemoryError)


KEY = jax.random.key(0)


@pytest.mark.sweep
def test_another_configuration_is_fallen_back_to(tmp_path):
    rows = np.arange(5, dtype=np.int32)
    fbuf.save(tmp_path, fbuf.add(fbuf.init(jnp.int32(0), 16), rows))
    fbuf.save(tmp_path, fbuf.add(fbuf.init(jnp.int32(0), 8), rows + 10))
    (newest,) = tmp_path.rglob("index-00000002.npy")
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="reading the checkpoint before it"):
        store, _ = HostStore.load(tmp_path, fallback=True)
    store.add(np.arange(20, 31, dtype=np.int32))
    assert store.rows().data.tolist() == [0, 1, 2, 3, 4, *range(20, 31)]


@pytest.mark.sweep
def test_threads_share_batches(monkeypatch):
    """Each is handed out once, and whoever waits when they are closed is told."""
    store, found = filled(), []
    batches = store.batches(KEY, 4, prefetch=3)
    take = lambda: found.extend(tuple(next(batches).data.tolist()) for _ in range(30))
    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = store.batches(KEY, 4)
    alone = [next(again).data.tolist() for _ in range(90)]
    assert sorted(found) == sorted(map(tuple, alone))

    slow, errors = programs.take, []
    monkeypatch.setattr(programs, "take", lambda *a: (time.sleep(0.2), slow(*a))[1])
    waiting = store.batches(jax.random.key(1), 4)

    def wait():
        for _ in range(9):
            try:
                next(waiting)
            except RuntimeError as error:
                errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    waiting.close()
    thread.join(10)
    assert not thread.is_alive()
    assert errors
    assert all("these were closed" in error for error in errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGVTALRM])
def test_no_signal_cuts_a_change_in_two(number, monkeypatch):
    """Ctrl-C, preemption, a limit of time: the handler raises when the change is whole."""
    store, apply = filled(), type(filled().contents.rows).apply
    heard = []

    def handler(number, frame):
        heard.append(number)
        raise TimeoutError

    def interrupted(rows, *given):
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGUSR1)
        apply(rows, *given)

    before = {of: signal.signal(of, handler) for of in (number, signal.SIGUSR1)}
    try:
        size = store.size()
        with monkeypatch.context() as patched:
            patched.setattr(type(store.contents.rows), "apply", interrupted)
            with pytest.raises(TimeoutError):
                store.add(np.int32(70))
        assert heard == [number, signal.SIGUSR1]
        assert all(signal.getsignal(of) is handler for of in before)
        store.add(np.int32(71))
        assert store.rows().data[-2:].tolist() == [70, 71]
        assert store.size() == min(size + 2, store.capacity)
    finally:
        for of, handler in before.items():
            signal.signal(of, handler)


def test_a_handler_that_changes_the_store_amid_a_call():
    """It adds, or is refused where rows are being read; it never waits for its own thread."""
    store = HostStore(jnp.int32(0), 4096)
    batches = store.batches(KEY, 4)
    numbers, added, refused = itertools.count(), [], []

    def add():
        number = next(numbers)
        try:
            store.add(np.int32(number))
        except RuntimeError as error:
            refused.append(str(error))
        else:
            added.append(number)

    for _ in range(9):
        add()
    ids = store.newest_ids(4)
    calls = {
        "add": add,
        "sample": lambda: store.sample(KEY, 4),
        "read": lambda: store.read(ids),
        "size": store.size,
        "next": lambda: next(batches),
    }
    for name, call in calls.items():
        call()
        number, before = 1, len(refused)
        while call_at_line(number, call, add):
            number += 7
        assert (len(refused) == before) == (name == "add")
    assert all("a signal handler changes the store in the midst of a read" in x for x in refused)
    assert sorted(store.rows().data[-len(added) :].tolist()) == sorted(added)
    batches.close()


@pytest.mark.sweep
def test_an_interrupt_loses_no_batch(monkeypatch):
    """Wherever it comes within `next`."""
    store = filled()
    whole = store.batches(KEY, 4)
    expected = [next(whole).data.tolist() for _ in range(20)]
    batches, found, submit = store.batches(KEY, 4), [], Worker.submit

    def interrupted(worker, task):
        submit(worker, task)
        signal.raise_signal(signal.SIGINT)

    for turn in range(20):
        if turn % 3 == 1:
            monkeypatch.setattr(Worker, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            monkeypatch.undo()
        found.append(next(batches).data.tolist())
    assert found == expected


@pytest.mark.sweep
def test_saves_in_the_background_free_what_they_have_written(tmp_path, monkeypatch):
    HostStore({"n": jnp.int32(0)}, 1000).save(tmp_path)
    store, _ = HostStore.open(tmp_path)
    for turn in range(6):
        store.add({"n": np.arange(turn * 50, turn * 50 + 50, dtype=np.int32)})
        store.save(tmp_path, background=True)
        # Written again while the save may be under way: it is the newer that counts.
        store.write(store.newest_ids(2), {"n": jnp.full(2, turn, jnp.int32)})
        expected = [*range(turn * 50 + 48), turn, turn]
        for before in range(turn):
            expected[before * 50 + 48 : before * 50 + 50] = [before, before]
        assert store.rows().data["n"][-len(expected) :].tolist() == expected
        assert store.contents.rows._count <= 106
    store.save(tmp_path)
    assert store.contents.rows._count == 0
    assert fbuf.rows(fbuf.load(tmp_path).state).data["n"][-300:].tolist() == expected

    def broken(*args):
        raise OSError("the disk is gone")

    store.add({"n": np.arange(900, 920, dtype=np.int32)})
    monkeypatch.setattr(manifest, "write", broken)
    store.save(tmp_path, background=True)
    with pytest.raises(OSError, match="the disk is gone"):
        store.save(tmp_path)
    monkeypatch.undo()
    assert store.rows().data["n"][-20:].tolist() == [*range(900, 920)]
    store.save(tmp_path)
    assert store.rows().data["n"][-20:].tolist() == [*range(900, 920)]
    assert HostStore.open(tmp_path)[0].rows().data["n"][-320:].tolist() == [
        *expected,
        *range(900, 920),
    ]


@pytest.mark.sweep
def test_a_file_takes_one_descriptor(tmp_path):
    item = {str(n): jnp.zeros((40, 40)) for n in range(9)}
    state = fbuf.init(item, 40)
    for _ in range(20):
        one = jax.tree.map(lambda leaf: np.ones((1, *leaf.shape), np.float32), item)
        state = fbuf.save(tmp_path, fbuf.add(state, one))
    before = len(os.listdir("/proc/self/fd"))
    store, _ = HostStore.open(tmp_path)
    assert len(os.listdir("/proc/self/fd")) - before <= 20
    assert float(store.rows().data["3"].sum()) == 20 * 1600


@pytest.mark.sweep
def test_a_pop_that_fails_reads_nothing():
    store = HostStore(jnp.int32(0), 8, sampler=fbuf.Fifo())
    store.add(np.arange(6, dtype=np.int32))
    with pytest.raises(TypeError, match="view must be"):
        store.pop(2, view=fbuf.Item)
    assert store.pop(2).data.tolist() == [0, 1]


def test_ctrl_c_within_a_pop_reads_nothing(monkeypatch):
    store = HostStore(jnp.int32(0), 8, sampler=fbuf.Fifo())
    store.add(np.arange(6, dtype=np.int32))
    take = programs.take

    def interrupted(*given):
        signal.raise_signal(signal.SIGINT)
        return take(*given)

    with monkeypatch.context() as patched:
        patched.setattr(programs, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.pop(2)
    assert store.pop(2).data.tolist() == [0, 1]


@pytest.mark.sweep
def test_batches_of_64_bits():
    with jax.enable_x64(True):
        store = HostStore({"n": jnp.int64(0)}, 20)
        store.add({"n": np.arange(5) + 2**40})
        with store.batches(KEY, 8) as batches:
            same(next(batches), store.sample(jax.random.fold_in(KEY, 0), 8))


def test_a_store_is_sent_to_no_other_process():
    store = HostStore(jnp.int32(0), 8)
    process = multiprocessing.get_context("spawn").Process(target=print, args=(store,))
    with pytest.raises(TypeError, match="HostStore: a buffer stays in the process that made it"):
        process.start()


def test_in_another_process_it_says_so(monkeypatch):
    store = filled()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="made in another process"):
        store.size()
    monkeypatch.undo()
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.copy(store)


def test_a_row_that_does_not_follow_is_a_fault():
    """As in `fbuf.add`: next observations are held against the rows that come."""
    item = {"observation": jnp.zeros(3)}

    def walk(store, first, count=1):
        at = np.arange(first, first + count, dtype=np.float32)[:, None] * np.ones(3, np.float32)
        store.add({"observation": at}, next_observation=at + 1)

    def is_broken(store):
        return bool(int(store.stats()["fault"]) & fbuf.Fault.BROKEN_EPISODE)

    store = HostStore(item, 8, next_of="observation")
    for first, count in ((0, 1), (1, 3), (4, 20), (24, 1)):
        walk(store, first, count)
        assert not is_broken(store), first
    store.end_episode()
    walk(store, 50)
    assert not is_broken(store)
    walk(store, 52)
    assert is_broken(store)
    within = HostStore(item, 8, next_of="observation")
    at = np.array([0, 1, 5], np.float32)[:, None] * np.ones(3, np.float32)
    within.add({"observation": at}, next_observation=at + 1)
    assert is_broken(within)


@pytest.mark.sweep
@pytest.mark.parametrize("kept", ["loaded", "opened"])
def test_a_restored_store_knows_where_its_newest_rows_led_to(tmp_path, kept):
    specs = {"a": (3,), "b": (), "wide": (40, 41), "flag": (5,)}
    kinds = {"a": np.float32, "b": np.uint8, "wide": np.uint16, "flag": np.bool_}
    item = {"observation": {name: jnp.zeros(specs[name], kinds[name]) for name in specs}}

    def walk(store, first, change=None):
        at = first + np.arange(4, dtype=np.int64).reshape(2, 2)  # two lanes
        leaf = lambda at, name: np.broadcast_to(
            at.reshape(2, 2, *(1,) * len(specs[name])) % 7, (2, 2, *specs[name])
        ).astype(kinds[name])
        rows = {name: leaf(at, name) for name in specs}
        if change:
            rows[change] = rows[change].copy()
            rows[change][1] = rows[change][1] == 0  # another value
        follow = {name: leaf(at + 1, name) for name in specs}
        store.add({"observation": rows}, next_observation=follow)

    def is_broken(store):
        return bool(int(store.stats()["fault"]) & fbuf.Fault.BROKEN_EPISODE)

    store = HostStore(item, 12, num_envs=2, next_of="observation")
    for first in (0, 2, 4):
        walk(store, first)
    assert not is_broken(store)
    store.save(tmp_path)
    again = HostStore.load if kept == "loaded" else HostStore.open
    for change in (None, *specs):
        restored, _ = again(tmp_path, episodes="keep")
        walk(restored, 6, change)
        assert is_broken(restored) == (change is not None), change
    restored, _ = again(tmp_path)
    walk(restored, 60)  # other episodes
    assert not is_broken(restored)


def test_a_handler_that_asks_for_a_batch_gets_another_than_the_call_that_waits():
    store = filled()
    expected = [next(whole).data.tolist() for whole in [store.batches(KEY, 4)] for _ in range(6)]
    batches, found = store.batches(KEY, 4), []
    stream = batches._stream
    take = stream.next

    def interrupted(*given):
        drawn = take(*given)
        if len(found) == 2:
            stream.next = take
            found.append(next(batches).data.tolist())  # as a handler would, while the call waits
        return drawn

    stream.next = interrupted
    for _ in range(5):
        found.append(next(batches).data.tolist())
    assert sorted(found) == sorted(expected)


def test_an_argument_that_is_none_is_refused_by_its_name():
    store = HostStore(jnp.zeros(()), 8, sampler=fbuf.Fifo())
    with pytest.raises(TypeError, match="time_major must be True or False, got None"):
        store.add(jnp.zeros(2), time_major=None)
    with pytest.raises(TypeError, match="keep must be an int, got None"):
        store.pop(2, keep=None)
    with pytest.raises(TypeError, match="count must be an int, got None"):
        store.pop(None)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.sweep)])
def test_neighbours_in_any_history(seeds):
    steps = (-2, 0, 1, 3)
    for seed in seeds:
        rng, pair = np.random.default_rng(seed), HostPair((3, 6, False), uniform(), "next_step")
        for _ in range(10):
            pair.step(rng, (3, 9), 0.3, odd=True)
            names = (pair.ids(rng, 12, odd=True) + [(-1, 0)] * 12)[:12]
            ids = pair.state.neighbours(pair.named(names), steps)
            expected = [pair.oracle.neighbours(name, steps) for name in names]
            assert np.stack([ids.slot, ids.generation], axis=-1).tolist() == [
                list(map(list, of_row)) for of_row in expected
            ]
