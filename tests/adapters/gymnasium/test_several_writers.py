"""A writer goes on behind its own rows alone: others that write to the buffer end its episodes."""

import threading

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import jax
import jax.numpy as jnp
from fbuf_adapters.datasets import _loading, from_arrays
from fbuf_adapters.datasets._target import Target
from fbuf_adapters.gymnasium import Collector, ProcessCollector
from jax.sharding import Mesh
from support import tags
from support.environments import MODES, Make, policy, vector

import fbuf
from fbuf.host import HostStore

ENVS = 2


def collector(task, mode="same_step", **options):
    """A collector whose rows say which task they are of."""

    def act(observation):
        return policy(observation), {"task": np.full(len(observation), task, np.int32)}

    return Collector(vector(ENVS, mode), act, chunk=8, **options)


def plain(one, **options):
    return fbuf.init(one.item, 200, **one.options, **options)


def host(one, **options):
    return HostStore(one.item, 200, **one.options, **options)


def over_a_mesh(one, **options):
    mesh = Mesh(np.array(jax.devices()[: min(2, jax.device_count())]), ("data",))
    return fbuf.sharded.init(one.item, 200, mesh=mesh, shards=2, **one.options, **options)


def lanes(buffer):
    """The fields and ends of each environment, in order."""
    if isinstance(buffer, fbuf.sharded.ShardedState):
        return [lane for shard in shards_of(buffer) for lane in lanes(shard)]
    batch = buffer.rollout() if isinstance(buffer, HostStore) else fbuf.rollout(buffer)
    mask = np.asarray(batch.mask)
    data = {name: np.asarray(leaf) for name, leaf in batch.data.items()}
    data["ended"] = np.asarray(batch.terminated | batch.truncated)
    return [{name: leaf[e][mask[e]] for name, leaf in data.items()} for e in range(len(mask))]


def shards_of(buffer):
    """Each shard, as a buffer of its own."""
    for number in range(buffer.num_shards):
        take = lambda leaf, one, n=number: jnp.asarray(
            np.asarray(leaf).reshape(buffer.num_shards, -1)[n].reshape(one.shape)
        )
        yield jax.tree.map(take, buffer.blocks, buffer.shard)


def mixed(lane):
    """Count the rows of another episode than the row before, which did not end there.

    The environments count their episodes and steps in the observation.
    """
    place, ended = lane["observation"], lane["ended"]
    follows = (place[1:, 1] == place[:-1, 1]) & (place[1:, 2] == place[:-1, 2] + 1)
    follows &= lane["task"][1:] == lane["task"][:-1]
    return int((~follows & ~ended[:-1]).sum())


def right(buffer):
    """No row goes on in another episode, and some go on."""
    found = lanes(buffer)
    assert [mixed(lane) for lane in found] == [0] * len(found)
    assert any((~lane["ended"]).any() for lane in found)
    return found


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("make", "options", "mode"),
    [
        *((plain, {}, mode) for mode in MODES),
        (plain, {"lockstep": False}, "next_step"),
        (plain, {"next_of": "observation"}, "next_step"),
        (host, {}, "next_step"),
        (over_a_mesh, {}, "next_step"),
        *(
            pytest.param(make, options, "next_step", marks=pytest.mark.sweep)
            for make in (plain, over_a_mesh, host)
            for options in (
                {"lockstep": False, "next_of": "observation"},
                {"sampler": fbuf.Uniform(window=2)},
            )
        ),
    ],
)
def test_two_collectors_by_turns(make, options, mode):
    with collector(0, mode) as one, collector(1, mode) as other:
        buffer = make(one, **options)
        for steps in (3, 1, 2, 2, 9):
            buffer = one.collect(buffer, steps)
            buffer = other.collect(buffer, steps)
        made = one.stats()["steps"] + other.stats()["steps"]
    found = right(buffer)
    # Every step is there, and no first step was taken for a reset, or a reset for a step.
    assert sum(len(lane["task"]) for lane in found) == made


def added_by_hand(one, state):
    rows = jax.tree.map(lambda s: np.full((ENVS, *s.shape), 7, s.dtype), one.item)
    return fbuf.add(fbuf.end_episode(state), rows)


BETWEEN = {
    "added": added_by_hand,
    "cleared": lambda one, state: fbuf.clear(state),
    "resized": lambda one, state: fbuf.resize(state, 100),
    "another": lambda one, state: plain(one),
    "sampler": lambda one, state: fbuf.extend(plain(one, sampler=fbuf.Prioritized()), state),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_other_changes_of_the_rows_end_the_episodes(what):
    with collector(0) as one:
        state = one.collect(plain(one), 5)
        before = sum(lane["ended"].sum() for lane in lanes(state))
        state = one.collect(BETWEEN[what](one, state), 4)
    found = lanes(state)
    if what in ("cleared", "another"):
        assert all(len(lane["task"]) == 4 for lane in found)
        assert [mixed(lane) for lane in found] == [0, 0]
        return
    assert [mixed(lane) for lane in found] == [0, 0]
    if what == "sampler":  # the same rows: to go on is right, too
        return
    assert all(lane["ended"][len(lane["ended"]) - 5] for lane in found)
    assert sum(lane["ended"].sum() for lane in found) > before


@jax.jit
def nothing(state):
    return state


def saved(state, path):
    return fbuf.save(path, state)


UNCHANGED = {
    "the same": lambda state, path: state,
    "saved": saved,
    "drawn": lambda state, path: fbuf.draw(state, jax.random.key(0), 4)[0],
    "a program": lambda state, path: nothing(state),
    "updated": lambda state, path: fbuf.update_priority(
        state, fbuf.newest_ids(state, 1), jnp.ones((ENVS, 1))
    ),
    "removed": lambda state, path: fbuf.remove(state, fbuf.ids_at(state, [0, 1])),
}


@pytest.mark.parametrize("what", UNCHANGED)
def test_what_adds_no_row_ends_no_episode(what, tmp_path):
    sampler = {"drawn": fbuf.FreshFirst(), "updated": fbuf.Prioritized()}.get(what, fbuf.Uniform())
    ended = []
    for change in (UNCHANGED["the same"], UNCHANGED[what]):
        with collector(0) as one:
            state = plain(one, sampler=sampler)
            for number in range(6):
                state = one.collect(change(state, tmp_path / str(number)), 3)
        ended.append(np.asarray(state.ring.flags & 3))
    np.testing.assert_array_equal(*ended)


def test_a_popped_queue_is_unchanged():
    with collector(0) as one:
        state = plain(one, sampler=fbuf.Fifo())
        for _ in range(6):
            state = fbuf.pop(one.collect(state, 3), 2)[0]
    found = right(state)
    ends = sum(lane["ended"].sum() for lane in found)
    assert ends == one.stats()["episodes"]


@pytest.mark.parametrize("more", [1, 0])
def test_a_second_buffer_and_back(more):
    """With as many rows, their tags tell them apart."""
    with collector(0) as one, tags.as_users_have_them():
        first, second = plain(one), plain(one)
        for steps in (5, 3, 4):
            first = one.collect(first, steps)
            second = one.collect(second, steps + more)
    right(first)
    right(second)


def test_a_buffer_of_another_form_and_back():
    """One that steps together and one that does not have cursors of other shapes."""
    with collector(0) as one:
        first, second, third = plain(one), plain(one, lockstep=False), over_a_mesh(one)
        for _ in range(2):
            first, second = one.collect(first, 3), one.collect(second, 2)
            third = one.collect(third, 4)
    for buffer in (first, second, third):
        right(buffer)


@pytest.mark.parametrize("episodes", ["keep", "end"])
def test_a_loaded_buffer(tmp_path, episodes):
    """The environments have gone on: what they did behind the checkpoint is not in the buffer."""
    with collector(0) as one:
        state = fbuf.save(tmp_path, one.collect(plain(one), 5))
        one.collect(state, 4)
        state = one.collect(fbuf.load(tmp_path, episodes=episodes).state, 6)
    assert [mixed(lane) for lane in lanes(state)] == [0, 0]


def test_an_answer_that_is_not_known_yet_is_left_to_the_device(monkeypatch):
    """Where the device is busy nothing waits for it."""
    from fbuf_adapters.gymnasium import _chunk_writer

    def unknown(changed, *, wait=False):
        del wait
        return None if changed is None else jnp.asarray(changed)

    monkeypatch.setattr(_chunk_writer, "known", unknown)
    for make in (plain, over_a_mesh, host):
        with collector(0, "next_step") as one, collector(1, "next_step") as other:
            buffer = make(one)
            for steps in (3, 2, 4):
                buffer = other.collect(one.collect(buffer, steps), steps)
            if make is plain:
                buffer = one.collect(nothing(one.collect(buffer, 3)), 3)
            made = one.stats()["steps"] + other.stats()["steps"]
        assert sum(len(lane["task"]) for lane in right(buffer)) == made


def test_two_threads_that_fill_one_store():
    with collector(0) as one, collector(1) as other:
        store = host(one)
        both = [threading.Thread(target=who.collect, args=(store, 24)) for who in (one, other)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    found = right(store)
    assert sum(len(lane["task"]) for lane in found) == 2 * ENVS * 24


def test_a_data_set_that_is_read_while_another_thread_adds(monkeypatch):
    """Rows of the thread come between two chunks of one episode."""
    monkeypatch.setattr(_loading, "rows_at_once", lambda specs, rows: 16)
    store, add = HostStore({"n": np.int32(0)}, 100), Target.add

    def and_then(self, chunk):
        add(self, chunk)
        if chunk.items["n"][0] in (16, 48):
            store.add({"n": np.int32([-1])})
        else:  # a learner changes no row
            store.remove(store.ids_at([90]))

    monkeypatch.setattr(Target, "add", and_then)
    rows, ended = {"n": np.arange(64, dtype=np.int32)}, np.arange(64) == 63
    from_arrays(rows, terminated=ended, truncated=np.zeros(64, bool), into=store)
    batch = store.rollout()
    mask = np.asarray(batch.mask)
    n, ends = np.asarray(batch.data["n"])[mask], np.asarray(batch.truncated)[mask]
    assert n[n >= 0].tolist() == list(range(64))
    assert np.flatnonzero(n < 0).tolist() == [32, 65]
    assert np.flatnonzero(ends).tolist() == [32]  # the last one is the thread's to end


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_processes_by_turns(mode):
    act = lambda task: lambda seen: (policy(seen), {"task": np.full(len(seen), task, np.int32)})
    options = {"processes": 1, "envs_per_process": ENVS, "mode": mode, "chunk": 4}
    with (
        ProcessCollector(Make(0, {}), act(0), **options) as one,
        ProcessCollector(Make(0, {}), act(1), **options) as other,
    ):
        state = plain(one)
        for _ in range(4):
            for who in (one, other):
                state = who.drain(state, at_least=4) if mode == "async" else who.collect(state, 4)
    right(state)
