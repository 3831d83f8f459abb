"""Actors of Ray collect on two nodes of a cluster, of which one may be lost."""

import _thread
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

import ray
from fbuf_adapters.ray import Collector, CollectorError
from ray.cluster_utils import Cluster
from support.in_processes import Counting, Drawing, Policy, weights
from support.workers import (
    REFUSED,
    assert_goes_on,
    assert_whole,
    assert_whole_but_cut,
    buffer,
    drain_for_ever,
    lanes,
    until_all_have,
)

import fbuf

# Ray forks to start a node. It starts another program at once, so no thread is missed.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    pytest.mark.sweep,  # a cluster takes seconds to start
]

TESTS = pathlib.Path(__file__).parents[2]
ROOT = TESTS.parent

SECONDS = 12
"""Seconds that an error may take to come, on a machine that does other things as well."""

SLOW = 0.02
"""Seconds a step, so that the other worker does not fill the buffer until it is seen."""

NODE = {"num_cpus": 3, "object_store_memory": 80 * 2**20, "resources": {"place": 1}}

# A node that is gone is known to be after two looks. One that is slow has ten seconds to answer.
HEALTH = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
HEAD = {**NODE, "include_dashboard": False, "_system_config": HEALTH}

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # or else a token is written into the home of who runs this
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray announces that it will be
    "PYTHONPATH": os.pathsep.join(
        [str(TESTS), str(ROOT), str(ROOT / "adapters"), *filter(None, sys.path)]
    ),
}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with processes and a store of its own, as two machines have."""
    # The files of Ray there are removed. The name is short, for those of sockets have to be.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("RAY_TMPDIR", folder)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("XLA_FLAGS", raising=False)  # actors import no JAX
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        processes = set()
        try:
            cluster.add_node(**NODE)
            ray.init(address=cluster.address, log_to_driver=False)
            processes = set(descendants(cluster))
            yield cluster
            processes |= set(descendants(cluster))
        finally:
            ray.shutdown()
            cluster.shutdown()
            eventually(lambda: not {pid for pid in processes if (PROC / str(pid)).exists()})


PROC = pathlib.Path("/proc")


def parent_of(pid):
    return int((PROC / str(int(pid)) / "stat").read_text().rpartition(")")[2].split()[1])


def raylets(cluster):
    """The process of each node that starts the others."""
    nodes = [cluster.head_node, *cluster.worker_nodes]
    return [node.all_processes["raylet"][0].process.pid for node in nodes]


def descendants(cluster):
    """The processes of the nodes, with their commands."""
    found = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            if parent_of(folder.name) in raylets(cluster):
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            pass
    return found


def actors(cluster):
    return [command for command in descendants(cluster).values() if "Stepping" in command]


def eventually(holds, seconds=15):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it has not come to be"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _no_actor_left(request):
    yield
    if "cluster" in request.fixturenames:
        eventually(lambda: not actors(request.getfixturevalue("cluster")))


def make(fails=None, workers=2, envs=2, chunk=4, policy=None, **options):
    options = {"timeout": 20.0, "weights": weights(0), "chunk": chunk, "seed": 0, **options}
    make_env = functools.partial(Counting, **fails or {})
    policy = policy or Policy()
    return Collector(make_env, policy, workers=workers, envs_per_worker=envs, **options)


def pids(rows):
    return {int(pid) for pid in rows["observation"][:, 8]}


def test_a_barrier_collects_every_step_on_both_nodes(cluster):
    lengths = (16, 5, 8, 11)
    with make(mode="sync", seed=7, chunk=8) as collector:
        assert collector.options == {"num_envs": 4, "autoreset": "same_step"}
        state = buffer(collector)
        for version, steps in enumerate(lengths):
            state = collector.collect(state, steps)
            assert collector.publish(weights(version + 1)) == version + 1
        stats = collector.stats()
        found, nodes, draws = lanes(state), set(), set()
        for env, rows in enumerate(found):
            assert_whole(rows, 7 + env)
            np.testing.assert_array_equal(rows["version"], np.repeat(np.arange(4), lengths))
            np.testing.assert_array_equal(rows["version"], rows["action"])
            assert not rows["observation"][:, 6].any(), "an actor has imported what it need not"
            assert rows["observation"][:, 7].all(), "an actor can see a GPU"
            (pid,) = pids(rows)
            nodes.add(parent_of(pid))
            draws.add(tuple(rows["observation"][0, 4:6]))
        assert nodes == set(raylets(cluster)), "the actors are on one node"
        assert len(draws) == 4, "actors draw alike"
        assert (stats["steps"], stats["episodes"], stats["mean_length"]) == (4 * 40, 4 * 8, 5)
        assert (stats["policy_version"], stats["policy_age"]) == (3, 1)
        for wrong, message in (
            (lambda: collector.drain(state), r"^Collector\.drain: .* mode='sync'"),
            (lambda: collector.recover(), "did not raise"),
            (lambda: collector.publish({**weights(1), "bias": np.ones(2)}), "'bias'"),
        ):
            with pytest.raises(CollectorError, match=message):
                wrong()
    with pytest.raises(CollectorError, match=r"^Collector\.collect: the collector is closed"):
        collector.collect(state, 1)
    collector.close()


def test_seeds_and_fields_that_are_written_later(cluster):
    blank = {"advantage": np.float32(0)}
    with make(policy=Drawing(), weights=None, mode="sync", blank=blank) as collector:
        state = collector.collect(fbuf.init(collector.item, 80, **collector.options), 8)
    rows = fbuf.rollout(state).data
    assert not np.any(rows["advantage"])
    assert not np.array_equal(rows["action"][:2], rows["action"][2:])  # of the two workers


def test_free_actors_run_on_and_no_step_is_lost(cluster):
    slow = {"seconds": 0.003, "slow": (2, 3)}  # so the actors drift apart
    with make(slow, chunk=3) as collector:
        assert collector.options["lockstep"] is False
        state = collector.drain(buffer(collector))
        version, total = 0, 0
        while total < 300:
            state = collector.drain(state, at_least=3)
            assert int(fbuf.size(state)) >= total + 12
            total = int(fbuf.size(state))
            version = collector.publish(weights(version + 1))
        stats = collector.stats()
    assert stats["steps"] == total
    newest = 0
    for env, rows in enumerate(lanes(state)):
        assert_whole(rows, env)
        chunks = rows["version"].reshape(-1, 3)
        assert np.all(chunks == chunks[:, :1])
        assert np.all(np.diff(chunks[:, 0]) >= 0)
        np.testing.assert_array_equal(rows["version"], rows["action"])
        newest = max(newest, chunks[-1, 0])
    assert 0 < stats["policy_version"] <= newest


def test_the_learner_sleeps_while_it_waits(cluster):
    with make({"seconds": SLOW}, chunk=20) as collector:  # 0.8 s a chunk
        state = collector.drain(buffer(collector), at_least=20)  # compiles
        shares = []
        for _ in range(3):
            began, busy = time.monotonic(), time.thread_time()
            state = collector.drain(state, at_least=40)
            shares.append((time.thread_time() - busy) / (time.monotonic() - began))
        assert min(shares) < 0.3  # in one of them it may have compiled


def test_weights_reach_chunks_that_were_asked_for_before(cluster):
    with make({"seconds": 0.1}, workers=1, envs=1, chunk=5) as collector:
        state = collector.drain(buffer(collector), at_least=5)  # compiles
        state = collector.drain(state, at_least=15)
        # Two chunks are asked for now. The first may have begun; the second is to have these.
        collector.publish(weights(1))
        came = int(fbuf.size(state))
        state = collector.drain(state, at_least=10)
    versions = lanes(state)[0]["version"]
    assert np.all(versions[:came] == 0)
    assert np.ptp(versions[came : came + 5]) == 0  # weights do not change within a chunk
    assert np.all(versions[came + 5 :] == 1)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("raises", r"failed in environment 3: ValueError: the game is broken"),
        ("shape", r"failed in environment 3: its observation is of shape \(3,\).*says \(9,\)"),
        ("is killed", r"has died\n\nRay says:\nThe actor died unexpectedly"),
        ("exits", r"has died\n\nRay says:"),
        ("hangs", r"hangs in environment 3, for \d+ s now \(timeout=2\)"),
        ("hangs in C", r"hangs and does not say where, for \d+ s now \(timeout=2\)"),
    ],
)
def test_a_worker_that_fails_is_named(cluster, fails, message):
    timeout = 2.0 if "hangs" in fails else 20.0
    fails_so = {"fails": fails, "seeds": (3,), "at": 15, "seconds": SLOW}
    with make(fails_so, chunk=3, timeout=timeout) as collector:
        state = collector.drain(buffer(collector), at_least=1)
        began = time.monotonic()
        with pytest.raises(CollectorError, match=message) as raised:
            drain_for_ever(collector, state)
        assert time.monotonic() - began < SECONDS
        assert "Collector: worker 1 (environments 2 to 3) " in str(raised.value)
        if fails in ("raises", "shape"):
            assert "In that worker:\nTraceback" in str(raised.value)
        eventually(lambda: not actors(cluster))
        for after in (lambda: collector.drain(state), lambda: collector.publish({})):
            with pytest.raises(CollectorError, match="a worker could not go on"):
                after()
        state = collector.recover()
    found = lanes(state)
    for env, rows in enumerate(found):
        assert_whole_but_cut(rows, env)
    # Whole chunks of before: in its 15th step, of which two were resets.
    assert len(found[3]["reward"]) == 12


def test_a_constructor_that_fails(cluster):
    message = r"in environment [02]: ValueError: no such game(.|\n)*In that worker:\nTraceback"
    with pytest.raises(CollectorError, match=message):
        make({"fails": "constructor"})


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_an_actor_is_started_anew(cluster, mode):
    fails = {"fails": "is killed", "seeds": (3,), "at": 9, "seconds": SLOW}
    with make(fails, mode=mode, chunk=3, restart=1) as collector:
        state = buffer(collector)
        with pytest.warns(RuntimeWarning, match=r"worker 1 .* has died; it has been started anew"):
            state = until_all_have(14, collector, state)
    found = lanes(state)
    kept = {"async": 6, "sync": 7}[mode]  # whole chunks: of three steps; of three, three and one
    for env in (0, 1):
        assert_whole(found[env], env)
    for env in (2, 3):
        assert_lives(found[env], env, kept, of_all=4)


def assert_lives(rows, env, kept, of_all):
    """So many rows of one life, and others of the next one: other seeds, and all from the start."""
    assert rows["truncated"][kept - 1] or rows["terminated"][kept - 1]
    assert_whole({name: leaf[: kept - 1] for name, leaf in rows.items()}, env)
    assert_whole({name: leaf[kept:] for name, leaf in rows.items()}, env + of_all)


@pytest.mark.parametrize("restart", [1, 0])
def test_a_node_is_lost(cluster, restart):
    options = {"actor_options": {"resources": {"place": 1}}, "restart": restart, "chunk": 3}
    with make({"seconds": SLOW}, **options) as collector:
        state = collector.drain(buffer(collector), at_least=6)
        (node,), raylet = cluster.worker_nodes, raylets(cluster)[1]
        homes = [parent_of(min(pids(rows))) for rows in lanes(state)]
        lost = [env for env, home in enumerate(homes) if home == raylet]
        assert lost in ([0, 1], [2, 3])
        cluster.remove_node(node, allow_graceful=False)
        began = time.monotonic()
        # Whether the connection or the node was seen to end first.
        how = r" \(environments {} to {}\) (was lost|has died)".format(*lost)
        said = f"Collector: worker {lost[0] // 2}{how}"
        if not restart:
            with pytest.raises(CollectorError, match=said + "\n\nRay says:\n"):
                drain_for_ever(collector, state)
            assert time.monotonic() - began < SECONDS
            cluster.add_node(**NODE)
            for env, rows in enumerate(lanes(collector.recover())):
                assert_whole_but_cut(rows, env)
            return
        cluster.add_node(**NODE)  # there was room for the worker nowhere else
        with pytest.warns(RuntimeWarning, match=said):
            state = until_all_are_new(lost, collector, state)
        state = collector.drain(state, at_least=12)
    for env, rows in enumerate(lanes(state)):
        if env in lost:
            assert_lives(rows, env, int(np.argmax(rows["observation"][:, 0] != env)), of_all=4)
        else:
            assert_whole(rows, env)


def until_all_are_new(lost, collector, state):
    while not all((lanes(state)[env]["observation"][:, 0] != env).any() for env in lost):
        state = collector.drain(state, at_least=3)
    return state


def test_a_cluster_without_room_is_told(cluster, monkeypatch):
    monkeypatch.setattr("fbuf_adapters.gymnasium._worker_pool._START", 1.0)
    monkeypatch.setattr("fbuf_adapters.ray._collector._ANSWER", 1.0)
    options = {"resources": {"unheard_of": 1}}
    message = r"worker [01] .* has not started for \d s; it was .*unheard_of.* free .*'CPU': "
    with pytest.raises(CollectorError, match=message):
        make(actor_options=options, timeout=1.0)


def test_a_collector_that_hangs_is_closed_in_seconds(cluster):
    collector = make({"fails": "hangs", "seeds": (2,), "at": 2})
    state = collector.drain(buffer(collector), at_least=1)
    began = time.monotonic()
    collector.close()
    assert time.monotonic() - began < 5
    assert int(fbuf.size(state)) >= 8


def test_the_answer_of_a_worker_that_was_stopped_is_no_chunk(cluster):
    """Another thread may close the collector."""
    with make(mode="sync") as collector:
        worker = collector._pool.workers[0]
        worker._answers.append(ray.put(None))
        assert worker.listen() is None
        assert not worker.filled


def test_a_collector_that_nobody_has_ends_its_actors(cluster):
    collector = make(workers=1)
    assert len(actors(cluster)) == 1
    del collector  # the fixture counts what is left


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_ctrl_c_loses_no_whole_chunk(cluster, mode):
    with make({"seconds": SLOW / 4}, mode=mode, chunk=3) as collector:
        call = collector.drain if mode == "async" else collector.collect
        steps = "at_least" if mode == "async" else "steps"
        ring = buffer(collector, capacity=40_000)  # 50 s of steps: nothing is overwritten
        state = call(ring, **{steps: 1})  # all actors have started
        for _ in range(2):
            timer = threading.Timer(1.5, _thread.interrupt_main)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call(state, **{steps: 10_000})
            timer.join()
            state = collector.recover()
            had = [len(rows["reward"]) for rows in lanes(state)]
            assert min(had) > 0
        assert_goes_on(collector, state, had)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *REFUSED,
        ({"workers": 0}, ValueError, "workers must be from 1"),
        ({"actor_options": {"max_restarts": 3}}, ValueError, "'max_restarts', for the collector"),
    ],
)
def test_bad_arguments_start_nothing(cluster, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)
    assert not actors(cluster)


PROGRAM = """
import fbuf
import ray
from fbuf_adapters.ray import Collector
from support.in_processes import Counting, Policy

def make():
    return Collector(Counting, Policy(), workers=1, envs_per_worker=2, mode="sync")

collector = make()
ray.shutdown()
collector.close()
assert not ray.is_initialized()

collector = make()
state = fbuf.init(collector.item, 800, **collector.options)
print(collector.collect(state, 8))
"""


def test_a_program_that_starts_and_closes_nothing():
    """Ray starts by itself, and ends with the program, and so do the actors; and before that."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": folder, "RAY_ADDRESS": "local"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output, errors = process.communicate(timeout=120)
        eventually(lambda: not in_session(process.pid))
    assert (process.returncode, output) == (0, "State(Uniform, 16 of 800 rows, 2 environments)\n")
    assert "Traceback" not in errors


def in_session(session):
    found = []
    for folder in PROC.glob("[0-9]*"):
        try:
            state, _, _, own = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(own) == session and state != "Z":
            found.append(folder.name)
    return found
