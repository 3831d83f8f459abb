"""A process that fails is named, its whole chunks are kept, and nothing of it is left."""

import _thread
import os
import re
import signal
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
from support.in_processes import Policy, Seeded
from support.workers import (
    assert_goes_on,
    assert_whole,
    assert_whole_but_cut,
    buffer,
    drain_for_ever,
    lanes,
    until_all_have,
)
from test_processes import make

import fbuf

pytest.importorskip("gymnasium")

from fbuf_adapters.gymnasium import CollectorError
from fbuf_adapters.gymnasium._messages import IMPORTING, STARTING
from fbuf_adapters.gymnasium._process_collector import ProcessWorker, _imports_script
from fbuf_adapters.gymnasium._stepper import derived_seed
from fbuf_adapters.gymnasium._worker_pool import Ended, WorkerPool

pytestmark = pytest.mark.usefixtures("nothing_left")

SECONDS = 8
"""Seconds that an error may take to come, on a machine that does other things as well."""

SLOW = 0.02
"""Seconds a step, so that the other process does not fill the buffer until it is seen."""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("is killed", r"was killed by SIGKILL in environment 3"),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in (
                ("raises", r"failed in environment 3: ValueError: the game is broken"),
                (
                    "shape",
                    r"failed in environment 3: its observation is of shape \(3,\).*says \(9,\)",
                ),
                ("values", r"failed in environment 3: ValueError: not enough values to unpack"),
                ("exits", r"ended with exit code 7 in environment 3"),
                ("hangs", r"hangs in environment 3, for \d+ s now \(timeout=3\)"),
            )
        ),
    ],
)
def test_an_environment_that_fails_is_named(fails, message):
    timeout = 3.0 if fails == "hangs" else 20.0
    fails_so = {"fails": fails, "seeds": (3,), "at": 15, "seconds": SLOW}
    with make(fails_so, chunk=3, timeout=timeout) as collector:
        state = collector.drain(buffer(collector), at_least=1)
        began = time.monotonic()
        with pytest.raises(CollectorError, match=message) as raised:
            drain_for_ever(collector, state)
        assert time.monotonic() - began < SECONDS
        assert "process 1 (environments 2 to 3)" in str(raised.value)
        if fails in ("raises", "shape", "values"):
            assert "In that process:\nTraceback" in str(raised.value)
        assert "recover" in raised.value.__notes__[0]
        for after in (lambda: collector.drain(state), lambda: collector.publish({})):
            with pytest.raises(CollectorError, match="could not go on"):
                after()
        state = collector.recover()
    found = lanes(state)
    for env, rows in enumerate(found):
        assert_whole_but_cut(rows, env)
    # Whole chunks of before: in its 15th step, of which two were resets.
    assert len(found[3]["reward"]) == 12


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("raises", "in the policy: KeyError: 'no such weight'"),
        ("shape", r"in the policy: .*must return action as int64 of shape \(2,\).*shape \(3,\)"),
    ],
)
def test_a_policy_that_fails(fails, message):
    with make(policy=Policy(fails), mode="sync", chunk=3) as collector:
        state = collector.collect(buffer(collector), 6)
        with pytest.raises(CollectorError, match=message) as raised:
            collector.collect(state, 6)
        assert re.search(r"process [01] \(environments", str(raised.value))
        state = collector.recover()
    for env, rows in enumerate(lanes(state)):
        assert len(rows["reward"]) == 6  # one step of the next chunk is no whole chunk
        assert_whole({name: leaf[:-1] for name, leaf in rows.items()}, env)
        assert rows["truncated"][-1]


def test_a_constructor_that_fails():
    began = time.monotonic()
    message = r"in environment [02]: ValueError: no such game(.|\n)*In that process:\nTraceback"
    with pytest.raises(CollectorError, match=message):
        make({"fails": "constructor"})
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    ("fails", "policy", "message"),
    [
        ("reset", None, r"in environment 1: ValueError: no such level"),
        pytest.param("space", None, r"ValueError: .*Text", marks=pytest.mark.sweep),
        pytest.param(None, "load", r"in the policy: KeyError: 'no such", marks=pytest.mark.sweep),
    ],
)
def test_what_fails_at_the_start_is_named(fails, policy, message):
    """Nothing has been observed yet."""
    fails = {"fails": fails, "seeds": (1,)} if fails else None
    with pytest.raises(CollectorError, match=message) as raised:
        make(fails, processes=1, policy=Policy(policy))
    assert "its observation" not in str(raised.value)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_after_a_pause_nobody_hangs(mode, monkeypatch):
    """Ctrl-Z stops all processes; with fg the clocks have gone on."""
    with make({"seconds": SLOW}, mode=mode, chunk=3, timeout=1.0) as collector:
        state = buffer(collector)
        wait, workers = collector._pool._wait, collector._pool.workers

        def paused(ends, seconds):
            monkeypatch.setattr(collector._pool, "_wait", wait)
            for worker in workers:
                os.kill(worker._process.pid, signal.SIGSTOP)
            time.sleep(3.0)
            for worker in workers:
                os.kill(worker._process.pid, signal.SIGCONT)
            return []

        monkeypatch.setattr(collector._pool, "_wait", paused)
        if mode == "async":
            state = collector.drain(state, at_least=12)
        else:
            state = collector.collect(state, 12)
        assert collector._pool._wait == wait
    assert min(len(rows["reward"]) for rows in lanes(state)) >= 3


@pytest.mark.sweep
def test_another_thread_closes_it():
    with make({"seconds": SLOW}, mode="async", chunk=3) as collector:
        state = collector.drain(buffer(collector), at_least=3)
        closing = threading.Timer(0.3, collector.close)
        closing.start()
        with pytest.raises(CollectorError, match="is closed; make another one"):
            drain_for_ever(collector, state)
        closing.join()
        with pytest.raises(CollectorError, match="is closed; make another one"):
            collector.drain(state)
        assert int(fbuf.size(collector.recover())) >= 12


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_process_is_started_anew(mode):
    fails = {"fails": "is killed", "seeds": (3,), "at": 9, "seconds": SLOW}
    with make(fails, policy=Seeded(), mode=mode, chunk=3, restart=1) as collector:
        state = buffer(collector)
        with pytest.warns(RuntimeWarning, match="was killed by SIGKILL in environment 3; it has"):
            state = until_all_have(14, collector, state)
    found = lanes(state)
    for env in (0, 1):
        assert_whole(found[env], env)
        np.testing.assert_array_equal(found[env]["seeds"], derived_seed(0))
    for env in (2, 3):
        rows = found[env]  # whole chunks before its eighth step
        kept = {"async": 6, "sync": 7}[mode]  # of three steps; of three, three and one
        # The first rows of the new life: other seeds, and an episode of their own.
        new = {name: leaf[kept:] for name, leaf in rows.items()}
        assert_whole(new, env + 4)
        # The policy was seeded once in each life, like the first environment of the process.
        np.testing.assert_array_equal(rows["seeds"][:kept], derived_seed(2))
        np.testing.assert_array_equal(new["seeds"], derived_seed(6))
        assert rows["truncated"][kept - 1]
        old = {name: leaf[: kept - 1] for name, leaf in rows.items()}
        assert_whole(old, env)
    if mode == "sync":
        assert len(set(map(len, (rows["reward"] for rows in found)))) == 1


@pytest.mark.sweep
def test_it_is_not_started_anew_for_ever():
    with make({"fails": "raises"}, restart=1, processes=1) as collector:
        state = buffer(collector)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(CollectorError, match="the game is broken"):
                drain_for_ever(collector, state)
    assert sum("started anew" in str(warning.message) for warning in caught) == 1


@pytest.mark.sweep
def test_a_collector_that_hangs_is_closed_in_seconds():
    collector = make({"fails": "hangs", "seeds": (2,), "at": 2}, mode="async")
    state = collector.drain(buffer(collector), at_least=1)
    began = time.monotonic()
    collector.close()
    assert time.monotonic() - began < 5
    assert int(fbuf.size(state)) >= 8


def test_a_collector_that_nobody_has_ends_its_processes():
    collector = make(processes=1)
    assert collector.item
    del collector  # the fixture counts what is left


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.sweep)])
def test_ctrl_c_loses_no_whole_chunk(mode):
    with make({"seconds": SLOW / 4}, mode=mode, chunk=3) as collector:
        state = buffer(collector)
        for _ in range(2):
            timer = threading.Timer(0.15, _thread.interrupt_main)
            timer.start()
            call = collector.drain if mode == "async" else collector.collect
            with pytest.raises(KeyboardInterrupt):
                call(state, **{"at_least" if mode == "async" else "steps": 10_000})
            timer.join()
            state = collector.recover()
            had = [len(rows["reward"]) for rows in lanes(state)]
        assert_goes_on(collector, state, had)


def test_a_closed_pool_starts_and_commands_nobody():
    calls = []

    def no_more():
        raise Ended("has ended", "")

    worker = types.SimpleNamespace(number=0, envs=slice(0, 1), ready=True, waitable=[])
    worker.listen, worker.stop, worker.end = no_more, lambda: None, lambda patience: None
    worker.restart = lambda: calls.append("restart")
    worker.command = calls.append
    chunks = types.SimpleNamespace(allocate=lambda spec: None)
    options = types.SimpleNamespace(owner="C", noun="process", restart=1)
    pool = WorkerPool(options, [worker], lambda ends, seconds: None, chunks)
    pool.close()
    pool.command(worker, 0, 1, newest=True)
    with pytest.raises(CollectorError, match="is closed"):
        pool.listen(wait=False)
    assert not calls


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (IMPORTING, r"has been importing your script for 61 s \(timeout=9\)(.|\n)*__main__"),
        (STARTING, r"hangs while it started, for 61 s now \(timeout=9\)"),
    ],
)
def test_a_start_has_a_minute_and_its_error_says_what_takes_long(place, message):
    worker = object.__new__(ProcessWorker)
    worker._options = types.SimpleNamespace(timeout=9.0)
    worker._refuse_hanging(place, 59.0)
    with pytest.raises(Ended, match=message):
        worker._refuse_hanging(place, 61.0)


def test_a_process_imports_the_script_if_there_is_one(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert not _imports_script()  # a notebook, or `python -c`
    main.__file__ = "train.py"
    assert _imports_script()
    del main.__file__
    main.__spec__ = types.SimpleNamespace(name="train")  # `python -m train`
    assert _imports_script()
