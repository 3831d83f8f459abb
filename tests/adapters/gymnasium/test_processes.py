"""Processes collect the steps of seeded environments, each once and in order."""

import functools
import os
import signal
import threading
import types

import gymnasium
import jax
import numpy as np
import pytest
from support import programs
from support.in_processes import Counting, Drawing, Policy, weights
from support.workers import REFUSED, assert_whole, buffer, lanes

import fbuf

pytest.importorskip("gymnasium")

from fbuf_adapters.gymnasium import Collector, CollectorError, ProcessCollector, _weights
from fbuf_adapters.gymnasium._process_collector import ProcessWorker
from fbuf_adapters.gymnasium._weights import SharedWeights

pytestmark = pytest.mark.usefixtures("nothing_left")


def make(fails=None, processes=2, envs=2, chunk=4, policy=None, **options):
    options = {"timeout": 20.0, "weights": weights(0), "chunk": chunk, "seed": 0, **options}
    make_env = functools.partial(Counting, **fails or {})
    policy = policy or Policy()
    return ProcessCollector(make_env, policy, processes=processes, envs_per_process=envs, **options)


@pytest.mark.sweep
def test_a_barrier_collects_what_one_process_would():
    """The same environments and policy, in this process, are the reference."""
    with make(mode="sync", seed=7, chunk=8) as collector:
        state = buffer(collector)
        before = programs.count_for(state, "add")
        for version, steps in enumerate((16, 5, 8, 11)):
            state = collector.collect(state, steps)
            assert collector.publish(weights(version + 1)) == version + 1
        # Another test may have compiled the same ones before.
        assert 0 < programs.count_for(state, "add") <= before + 2, (
            "each length compiled another program"
        )
        stats = collector.stats()
        pids, random, draws = set(), set(), set()
        for env, rows in enumerate(lanes(state)):
            assert_whole(rows, 7 + env)
            np.testing.assert_array_equal(rows["version"], np.repeat(np.arange(4), (16, 5, 8, 11)))
            np.testing.assert_array_equal(rows["version"], rows["action"])
            assert not rows["observation"][:, 6].any(), "a process has imported what it need not"
            assert rows["observation"][:, 7].all(), "a process can see a GPU"
            pids.add(rows["observation"][0, 8])
            random.add(rows["observation"][0, 4])
            draws.add(rows["observation"][0, 5])
        assert len(pids) == 2
        assert len(random) == len(draws) == 4, "processes draw alike"
        assert stats["steps"] == 4 * 40
        assert stats["episodes"] == 4 * 8
        assert stats["mean_length"] == 5
        assert stats["policy_version"] == 3
        assert stats["policy_age"] == 1
        assert stats["steps_per_second"] > 0

        envs = gymnasium.vector.SyncVectorEnv(
            [Counting] * 4, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
        )
        monkey = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        with pytest.MonkeyPatch.context() as patch, Collector(envs, Policy(), seed=7) as alone:
            for name, value in monkey.items():
                patch.setenv(name, value)
            assert alone.item == collector.item
            assert alone.options == collector.options
            assert alone.stats().keys() == stats.keys()
            reference = buffer(alone)
            for version, steps in enumerate((16, 5, 8, 11)):
                reference = alone.collect(reference, steps)
                alone.publish(weights(version + 1))
        for rows, alike in zip(lanes(state), lanes(reference), strict=True):
            for name, leaf in rows.items():
                known = leaf[..., :4] if name in ("observation", "next") else leaf
                same = alike[name][..., :4] if name in ("observation", "next") else alike[name]
                np.testing.assert_array_equal(known, same)

        # An argument that does not fit is refused, and the buffer is not consumed.
        for wrong, message in (
            (lambda: collector.drain(state), "mode='sync'"),
            (lambda: collector.recover(), "did not raise"),
            (lambda: collector.publish({"layers": []}), "weights"),
            (lambda: collector.publish({**weights(1), "bias": np.ones(2, np.float32)}), "bias"),
        ):
            with pytest.raises(CollectorError, match=message):
                wrong()
        with pytest.raises(ValueError, match=r"ProcessCollector\.collect: .*num_envs"):
            collector.collect(fbuf.init(collector.item, 8), 1)
        # Without a flag, in a buffer whose environments need not step together.
        apart = collector.collect(buffer(collector, lockstep=False), 3)
        assert int(fbuf.size(apart)) == 12
    for closed in (lambda: collector.collect(state, 1), lambda: collector.publish(weights(1))):
        with pytest.raises(CollectorError, match="closed"):
            closed()
    collector.close()


@pytest.mark.sweep
def test_blank_fields_cross_nothing():
    blank = {"advantage": np.float32(0), "more": ({"wide": jax.ShapeDtypeStruct((5,), bool)},)}
    with make(mode="sync", processes=1, blank=blank) as collector:
        assert "advantage" not in collector._chunks.read(0)["extras"]
        state = collector.collect(buffer(collector), 6)
        batch = fbuf.rollout(state)
        assert not np.any(batch.data["advantage"])
        assert batch.data["more"][0]["wide"].shape == (*batch.mask.shape, 5)
        state = fbuf.write(state, batch.ids, {**batch.data, "advantage": batch.data["reward"] + 1})
        np.testing.assert_array_equal(fbuf.rollout(state).data["advantage"][:, :6], 1)


def test_a_blank_field_that_the_policy_fills():
    with pytest.raises(ValueError, match="'calls', which is filled already"):
        make(processes=1, blank={"calls": 0})


@pytest.mark.sweep
def test_environments_may_write_to_the_array_they_returned():
    with make({"reuses": True}, mode="sync", processes=1) as collector:
        state = collector.collect(buffer(collector), 24)
    for env, rows in enumerate(lanes(state)):
        assert_whole(rows, env)


@pytest.mark.sweep
@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.sweep), 3])
def test_ctrl_c_between_the_commands_of_two_processes(place, monkeypatch):
    """It waits for the last one, so that none is noted and was never sent."""
    with make(mode="sync", slots=2) as collector:
        state = collector.collect(buffer(collector), 4)
        sent, command = [], ProcessWorker.command

        def cut(process, given):
            sent.append(given)
            if len(sent) == place + 1:
                os.kill(os.getpid(), signal.SIGINT)
            command(process, given)

        monkeypatch.setattr(ProcessWorker, "command", cut)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(state, 12)
        assert len(sent) % 2 == 0
        state = collector.recover()
        state = collector.collect(state, 4)
        assert int(fbuf.size(state)) % 4 == 0


@pytest.mark.sweep
def test_ctrl_c_while_weights_are_written(monkeypatch):
    with make(mode="sync") as collector:
        state = collector.collect(buffer(collector), 4)
        copy = np.copyto

        def cut(*given):
            os.kill(os.getpid(), signal.SIGINT)
            copy(*given)

        with monkeypatch.context() as patched:
            patched.setattr(np, "copyto", cut)
            with pytest.raises(KeyboardInterrupt):
                collector.publish(weights(1))
        state = collector.collect(state, 4)
        assert collector.stats()["policy_version"] == 1


@pytest.mark.sweep
def test_policies_with_generators_of_their_own_draw_differently():
    def drawn():
        with make(policy=Drawing(), weights=None, mode="sync") as collector:
            state = collector.collect(fbuf.init(collector.item, 80, **collector.options), 8)
        return np.asarray(fbuf.rollout(state).data["action"])

    first = drawn()
    assert not np.array_equal(first[:2], first[2:])  # of the two processes
    np.testing.assert_array_equal(drawn(), first)


@pytest.mark.sweep
def test_free_processes_run_on_and_no_step_is_lost():
    slow = {"seconds": 0.003, "slow": (2, 3)}  # so the processes drift apart
    with make(slow, chunk=3, slots=2) as collector:
        chunks, writer = collector._chunks, collector._writer
        add, sizes = writer.add, set()

        def add_and_spoil(state, chunk, **options):
            state = add(state, chunk, **options)
            # The slot is handed back: what the buffer has of it must be its own by now.
            for slot in range(2):
                if chunks.read(slot)["reward"].ctypes.data == chunk.reward.ctypes.data:
                    envs = np.flatnonzero(options["envs"])
                    for array in jax.tree.leaves(chunks.read(slot)):
                        array[:, envs] = 99
            sizes.add(int(options["envs"].sum()))
            return state

        writer.add = add_and_spoil
        state = buffer(collector)
        state = collector.drain(state)
        version, total, before = 0, 0, None
        while total < 300:
            state = collector.drain(state, at_least=3)
            assert int(fbuf.size(state)) >= total + 12
            total = int(fbuf.size(state))
            before = before or programs.count_for(state, "add")
            version = collector.publish(weights(version + 1))
        assert programs.count_for(state, "add") == before, (
            "chunks of fewer processes compiled another program"
        )
        stats = collector.stats()
    assert stats["steps"] == total
    assert 2 in sizes
    newest = 0
    for env, rows in enumerate(lanes(state)):
        assert_whole(rows, env)
        assert len(rows["reward"]) % 3 == 0
        assert np.all(np.diff(rows["version"]) >= 0)
        assert np.all(np.diff(rows["version"])[np.arange(1, len(rows["version"])) % 3 > 0] == 0)
        np.testing.assert_array_equal(rows["version"], rows["action"])
        newest = max(newest, rows["version"][-1])
    assert 0 < stats["policy_version"] <= newest  # of the chunk that came last


def test_weights_are_never_read_half():
    tree = lambda number: [np.full(200_000, number, np.float32), {"b": np.full(7, number)}]
    written = SharedWeights(tree(0))
    stop = threading.Event()

    def write():
        number = 1
        while not stop.is_set():
            written.publish(tree(number))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = set()
        for _ in range(200):
            version, (large, small) = written.read()
            assert np.all(large == version)
            assert np.all(small["b"] == version)
            seen.add(version)
    finally:
        stop.set()
        thread.join(10)
    assert len(seen) > 1


def test_the_weights_before_are_read_while_new_ones_are_written(monkeypatch):
    """By a reader that never finds the writer at rest."""
    written, seen, copy = SharedWeights([np.zeros(3), np.zeros(2)]), [], np.copyto

    def copy_and_read(*given):
        copy(*given)
        version, arrays = written.read()
        seen.append((version, *(set(array.tolist()) for array in arrays)))

    def never(seconds):
        pytest.fail("the reader waits for the writer")

    monkeypatch.setattr(_weights, "time", types.SimpleNamespace(sleep=never))
    monkeypatch.setattr(np, "copyto", copy_and_read)
    for number in (1.0, 2.0, 3.0):
        written.publish([np.full(3, number), np.full(2, number)])
    assert seen == [(number, {number}, {number}) for number in (0, 0, 1, 1, 2, 2)]


def test_weights_come_in_their_own_order():
    tree = {"z": np.zeros(2), "a": {"y": np.ones(2), "b": np.zeros(1)}}
    written = SharedWeights(tree)
    assert written.publish({"a": {"b": np.ones(1), "y": np.zeros(2)}, "z": np.ones(2)}) == 1
    _, found = written.read()
    assert (list(found), list(found["a"])) == (["z", "a"], ["y", "b"])
    np.testing.assert_array_equal(found["z"], 1)


def test_weights_of_other_kinds():
    found = SharedWeights({"b": (1.0, [True]), "a": np.arange(2)}).read()
    assert found == (0, {"a": pytest.approx(np.arange(2)), "b": (1.0, [True])})
    with pytest.raises(CollectorError, match=r"weights\['a'\]\[0\] is a object"):
        SharedWeights({"a": [object()]})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [*REFUSED, ({"processes": 0}, ValueError, "processes must be from 1")],
)
def test_bad_arguments_start_nothing(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_without_a_seed_two_collectors_make_different_episodes():
    first = []
    for _ in range(2):
        with make(processes=1, seed=None, mode="sync", weights=None) as collector:
            state = collector.collect(buffer(collector), 4)
            first.append([rows["observation"][0, 0] for rows in lanes(state)])
            assert first[-1] == [collector.seed, collector.seed + 1]
    assert first[0] != first[1]
