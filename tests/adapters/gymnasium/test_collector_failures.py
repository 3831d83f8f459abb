"""No step is lost and nothing is left behind, whichever part raises or hangs."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from fbuf_adapters.gymnasium import Collector, CollectorError, _chunk_writer
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from support.environments import Walk, policy, steps_in, steps_of, vector

import fbuf
from fbuf.owner import owner

MODES = ("same_step", "next_step", "disabled")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and collecting():
        time.sleep(0.01)
    assert not collecting()


def collecting():
    return [thread for thread in threading.enumerate() if thread.name == "fbuf collector"]


def buffer(collector):
    options = {"next_of": "observation", "max_ends": 300, **collector.options}
    return fbuf.init(collector.item, 600, **options)


def steps(state):
    batch = fbuf.rows(state, view=fbuf.Transition())
    return steps_in(batch, batch.data.item, batch.data.next_observation)


def of(env, found):
    return [step for step in found if step.env == env]


def check_first(found, count, mode):
    """The steps of each environment before a failure; the last one ended its episode."""
    for env in range(3):
        before = steps_of(env, count, mode == "next_step")
        came = of(env, found)[: len(before)]
        assert came[:-1] == before[:-1]
        assert (came[-1].step, came[-1].reward) == (before[-1].step, before[-1].reward)
        assert came[-1].terminated == before[-1].terminated
        assert came[-1].terminated or came[-1].truncated, "its episode goes on nowhere"
        after = of(env, found)[len(before) :]
        assert not after or after[0].step == 0


@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=[pytest.mark.sweep] * (mode != "same_step")) for mode in MODES],
)
def test_an_environment_raises(mode):
    with Collector(vector(3, mode, fails=(1, 12)), policy, chunk=8) as collector:
        state = buffer(collector)
        with pytest.raises(ZeroDivisionError) as raised:
            collector.collect(state, 40)
        assert "environment 1 raised" in raised.value.__notes__[0]
        assert "collector.recover()" in raised.value.__notes__[0]
        state = collector.recover()
        before = int(fbuf.size(state))
        calls = 11 if mode != "next_step" else _calls(1, 11)
        assert before == sum(len(steps_of(env, calls, mode == "next_step")) for env in range(3))
        state = collector.collect(state, 10)
        assert int(fbuf.size(state)) > before
        assert collector.stats()["steps"] == int(fbuf.size(state))  # without those that only reset
    check_first(steps(state), calls, mode)


def _calls(env, made):
    """The number of calls of a vector for so many steps of an environment, with dummies."""
    return next(n for n in range(100) if len(steps_of(env, n, dummies=True)) == made)


def test_the_steps_made_are_added_by_the_next_call_too():
    with Collector(vector(3, fails=(1, 6)), policy, chunk=8) as collector:
        state = buffer(collector)
        with pytest.raises(ZeroDivisionError):
            collector.collect(state, 8)  # the first chunk: nothing was consumed
        state = collector.collect(state, 10)
    assert int(fbuf.size(state)) == 3 * (5 + 10)
    check_first(steps(state), 5, "same_step")


def interrupting(at):
    """A policy during whose call the user presses Ctrl-C."""
    calls = 0

    def act(observation):
        nonlocal calls
        calls += 1
        if calls == at:
            signal.raise_signal(signal.SIGINT)
        return policy(observation)

    return act


def test_a_call_in_the_midst_of_another_is_refused():
    """As a signal handler may make it; here the policy does."""
    refused, tries = [], []

    def calling(observation):
        for call in tries:
            with pytest.raises(CollectorError, match="collect is under way") as error:
                call()
            refused.append(error)
        return policy(observation)

    with Collector(vector(3), calling) as collector:
        state = buffer(collector)
        tries += [lambda: collector.collect(None, 1), collector.recover]
        state = collector.collect(state, 3)
        assert refused
        tries.clear()
        assert int(fbuf.size(state)) == 9
        assert int(fbuf.size(collector.collect(state, 1))) == 12


def test_ctrl_c_between_steps():
    with Collector(vector(3), interrupting(at=14), chunk=8) as collector:
        state = buffer(collector)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(state, 40)
    state = collector.recover()  # after the end of the block, too
    assert int(fbuf.size(state)) == 3 * 13


def test_ctrl_c_between_an_add_and_its_result(monkeypatch):
    calls = 0
    add = fbuf.add

    def adding(*args, **kwargs):
        nonlocal calls
        calls += 1
        state = add(*args, **kwargs)
        if calls == 2:
            signal.raise_signal(signal.SIGINT)
        return state

    monkeypatch.setattr(owner, "add", adding)
    with Collector(vector(3), policy, chunk=8) as collector:
        state = buffer(collector)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(state, 40)
        state = collector.recover()
        assert int(fbuf.size(state)) == 3 * 16
        state = collector.collect(state, 8)
    check_first(steps(state), 16, "same_step")


def test_resets_that_a_failed_add_has_left_are_taken_again():
    with Collector(vector(3, "next_step"), policy, chunk=8) as collector:
        state = collector.collect(buffer(collector), 8)
    dummy = np.ones(3, np.bool_)
    for _ in range(2):
        state = _chunk_writer._with_resets(dummy, state)
    assert state.ring.open.resets is dummy


def test_a_chunk_that_was_lost_leaves_no_hole(monkeypatch):
    with Collector(vector(3), policy, chunk=8) as collector:
        state = collector.collect(buffer(collector), 8)
        make = collector._producer.chunk

        def lost(*args):
            make(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(collector._producer, "chunk", lost)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(state, 8)
        monkeypatch.undo()
        state = collector.collect(collector.recover(), 8)
    check_first(steps(state), 8, "same_step")


# --- in the background ----------------------------------------------------------------------------


def background(envs, act=policy, **options):
    return Collector(envs, act, chunk=8, background=True, **options)


@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=[pytest.mark.sweep] * (mode != "same_step")) for mode in MODES],
)
def test_a_thread_makes_the_same_steps(mode):
    with background(vector(3, mode)) as collector:
        state = buffer(collector)
        made = 0
        for at_least in (0, 20, 1, 33):
            state = collector.drain(state, at_least=at_least)
            now = int(state.ring.count()) // 3  # also steps that only reset
            assert now >= made + at_least
            made = now
    dummies = mode == "next_step"
    assert steps(state) == [s for env in range(3) for s in steps_of(env, made, dummies)]


@pytest.mark.sweep
def test_behind_a_chunk_that_cannot_be_stored_is_a_reset(monkeypatch):
    """It is lost, so the steps behind it are not those that follow what is in the buffer."""

    class Far(Walk):
        def observation(self):
            return super().observation() * (1e300 if self.made == 30 else 1)

    envs = SyncVectorEnv([lambda: Far(0, "float64")], autoreset_mode=AutoresetMode.SAME_STEP)
    resets, reset = [], envs.reset
    monkeypatch.setattr(envs, "reset", lambda **options: resets.append(1) or reset(**options))
    with background(envs) as collector:
        state = buffer(collector)
        with pytest.raises(CollectorError, match="which float32 cannot hold"):
            collector.drain(state, at_least=100)
        assert len(resets) == 1
        collector.drain(collector.recover(), at_least=8)
        assert len(resets) == 2


@pytest.mark.sweep
def test_a_queue_that_a_thread_fills_is_read_once():
    """The loop of the page on on-policy data; segments need not overlap."""
    segment, room, found = 6, 8 * 2, []
    with background(vector(3), queue=2) as collector:
        options = {"next_of": "observation", "max_ends": 66, **collector.options}
        state = fbuf.init(collector.item, 3 * (segment + room), sampler=fbuf.Fifo(), **options)
        while len(found) < 3 * 90:
            if bool((fbuf.space(state) >= room).all()):
                state = collector.drain(state, at_least=1)
            whole = fbuf.unread(state) >= segment
            state, batch = fbuf.pop(state, segment, mask=whole, view=fbuf.Transition())
            found += steps_in(batch, batch.data.item, batch.data.next_observation)
    fbuf.raise_on_fault(state)
    each = len(found) // 3
    found.sort(key=lambda step: (step.env, step.episode, step.step))
    assert found == [step for env in range(3) for step in steps_of(env, each)]


def test_the_queue_is_bounded():
    with background(vector(3), queue=2) as collector:
        state = collector.drain(buffer(collector), at_least=8)
        deadline = time.monotonic() + 20
        while collector._producer.steps < 3 * 8 * 4:  # one in the buffer, two wait, one has no room
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.05)
        assert collector._producer.steps == 3 * 8 * 4
        assert collector.stats()["queue_depth"] == 2
        collector.drain(state, at_least=40)
        stats = collector.stats()
    assert stats["environments_waited"] > 0.04
    assert stats["learner_waited"] > 0


def test_an_environment_raises_in_the_thread():
    with background(vector(3, fails=(2, 21))) as collector:
        state = buffer(collector)
        with pytest.raises(CollectorError, match=r"ZeroDivisionError.*environment 2 raised") as e:
            collector.drain(state, at_least=100)
        assert isinstance(e.value.__cause__, ZeroDivisionError)
        assert not collecting()
        state = collector.drain(state, at_least=8)  # begins anew; what was made is not lost
        assert int(fbuf.size(state)) >= 3 * 28
    check_first(steps(state), 20, "same_step")


def test_another_thread_closes_it():
    with background(vector(3)) as collector:
        state = buffer(collector)
        closing = threading.Timer(0.3, collector.close)
        closing.start()
        with pytest.raises(CollectorError, match="the collector is closed"):
            collector.drain(state, at_least=10**9)
        closing.join()
        assert int(fbuf.size(collector.recover())) > 0


def test_ctrl_c_while_draining():
    ready = threading.Event()

    def act(observation):
        if threading.current_thread() is not threading.main_thread() and not ready.is_set():
            ready.set()
            os.kill(os.getpid(), signal.SIGINT)  # for the main thread, which waits
        return policy(observation)

    with background(vector(3), act) as collector:
        state = buffer(collector)
        with pytest.raises(KeyboardInterrupt):
            collector.drain(state, at_least=8 * 1000)
        state = collector.drain(collector.recover(), at_least=8)
        made = collector.stats()["steps"] // 3
    assert steps(state) == [s for env in range(3) for s in steps_of(env, made)]


def test_new_weights_while_the_thread_steps():
    class Loads:
        def __init__(self):
            self.threads = []

        def __call__(self, observation):
            return policy(observation)

        def load(self, weights):
            self.threads.append(threading.current_thread().name)

    act = Loads()
    with background(vector(3), act) as collector:
        state = buffer(collector)
        for version in range(1, 4):
            assert collector.publish({"w": np.zeros(2)}) == version
            while collector.stats()["policy_version"] < version:
                state = collector.drain(state, at_least=1)
        assert collector.stats()["policy_age"] == 0
        with pytest.raises(CollectorError, match=r"call collector.drain\(state\)"):
            collector.collect(state, 1)
    assert act.threads == ["fbuf collector"] * 3


@pytest.mark.sweep
def test_close_while_a_step_hangs(monkeypatch):
    monkeypatch.setattr("fbuf_adapters.gymnasium._collector._PATIENCE", 0.2)
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(Walk):
        def step(self, action):
            if self.made == 10:
                hangs.set()
                assert goes_on.wait(60)
            return super().step(action)

    envs = SyncVectorEnv([lambda: Hangs(0)], autoreset_mode=AutoresetMode.SAME_STEP)
    collector = background(envs)
    collector.drain(buffer(collector), at_least=8)
    assert hangs.wait(20)
    begun = time.monotonic()
    collector.close()
    assert time.monotonic() - begun < 5
    goes_on.set()


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_a_process_is_killed():
    envs = vector(2, asynchronous=True)
    with Collector(envs, policy, chunk=8) as collector:
        state = collector.collect(buffer(collector), 8)
        envs.processes[1].kill()
        envs.processes[1].join(10)
        with pytest.raises((ConnectionError, EOFError)) as raised:
            collector.collect(state, 8)
        assert "the process of environment 1 ended with exit code -9" in raised.value.__notes__[0]
        state = collector.recover()
        with pytest.raises(CollectorError, match="cannot be reset; make new ones"):
            collector.collect(state, 8)
        state = collector.recover()
    assert int(fbuf.size(state)) == 2 * 8
    assert not any(process.is_alive() for process in envs.processes)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*ERROR")  # Gymnasium's, with the traceback of the process
def test_an_environment_raises_in_its_process():
    envs = vector(2, asynchronous=True, fails=(1, 3))
    with Collector(envs, policy, chunk=8) as collector:
        state = buffer(collector)
        with pytest.raises(ZeroDivisionError) as raised:
            collector.collect(state, 8)
        assert "environment 1 raised in its process" in raised.value.__notes__[0]
        assert int(fbuf.size(collector.recover())) == 2 * 2
    assert not any(process.is_alive() for process in envs.processes)


class Sleeps(Walk):
    def step(self, action):
        time.sleep(3600)


@pytest.mark.sweep
def test_close_while_a_process_hangs(monkeypatch):
    monkeypatch.setattr("fbuf_adapters.gymnasium._collector._PATIENCE", 0.2)
    mode = AutoresetMode.SAME_STEP
    envs = AsyncVectorEnv([lambda: Sleeps(0)], context="spawn", autoreset_mode=mode)
    collector = background(envs)
    collector.drain(buffer(collector))
    deadline = time.monotonic() + 20
    while envs._state.value != "step":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    collector.close()
    assert not any(process.is_alive() for process in envs.processes)


class SleepsLater(Walk):
    def step(self, action):
        if self.made == 10:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        return super().step(action)


class Wrapped(gymnasium.vector.VectorWrapper):
    pass


@pytest.mark.sweep
@pytest.mark.parametrize("in_background", [False, True])
def test_an_environment_that_hangs_is_named(in_background, nothing_left):
    envs = AsyncVectorEnv(
        [lambda: Walk(0), lambda: SleepsLater(1)],
        context="spawn",
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs = envs if in_background else Wrapped(envs)
    hangs = "environment 1 hangs, for 1 s now"
    with Collector(
        envs, policy, chunk=4, timeout=1.0, background=in_background, queue=9
    ) as collector:
        state = buffer(collector)
        more = functools.partial(collector.drain, at_least=20)
        more = more if in_background else functools.partial(collector.collect, steps=20)
        begun = time.monotonic()
        with pytest.raises(CollectorError, match=hangs) as raised:
            more(state)
        assert time.monotonic() - begun < 15
        assert "environment 0" not in str(raised.value)
        state = collector.recover()
        with pytest.raises(CollectorError, match="cannot be reset"):
            more(state)
        state = collector.recover()
    assert steps(state) == [step for env in range(2) for step in steps_of(env, 10)]


class Never(Walk):
    def reset(self, **_):
        time.sleep(3600)


@pytest.mark.sweep
def test_a_reset_that_hangs():
    mode = AutoresetMode.SAME_STEP
    envs = AsyncVectorEnv([lambda: Never(0)], context="spawn", autoreset_mode=mode)
    with (
        Collector(envs, policy, timeout=0.5) as collector,
        pytest.raises(CollectorError, match="environment 0 hangs"),
    ):
        buffer(collector)
    with pytest.raises(ValueError, match="timeout must be above 0 seconds, got 0"):
        Collector(vector(1), policy, timeout=0)


@pytest.mark.sweep
def test_a_program_ends_that_never_closed():
    script = """
import fbuf, gymnasium
from support.environments import policy, vector
from fbuf_adapters.gymnasium import Collector

collector = Collector(vector(3), policy, chunk=8, background=True)
state = fbuf.init(collector.item, 600, **collector.options)
state = collector.drain(state, at_least=8)
print("drained")
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "drained\n", "")


def test_weights_whose_load_was_broken_off_are_loaded_by_the_next_chunk():
    class Loads:
        loads = 0

        def __call__(self, observation):
            return policy(observation)

        def load(self, weights):
            self.loads += 1
            if self.loads == 1:
                raise KeyboardInterrupt

    loads = Loads()
    with Collector(vector(3), loads, chunk=8) as collector:
        state = buffer(collector)
        collector.publish({"w": 1.0})
        with pytest.raises(KeyboardInterrupt):
            collector.collect(state, 8)
        collector.collect(collector.recover(), 8)
        assert loads.loads == 2
        assert collector.stats()["policy_version"] == 1


def test_a_reset_that_raised_is_done_again_with_the_seed(monkeypatch):
    envs, seeds = vector(3), []
    reset = envs.reset

    def fails_once(*, seed=None, **options):
        seeds.append(seed)
        if len(seeds) == 1:
            raise ZeroDivisionError
        return reset(seed=seed, **options)

    monkeypatch.setattr(envs, "reset", fails_once)
    with Collector(envs, policy, seed=7) as collector:
        with pytest.raises(ZeroDivisionError):
            _ = collector.item
        _ = collector.item
    assert seeds == [7, 7]


def test_a_close_that_was_broken_off_is_done_by_the_next(monkeypatch):
    envs, closes = vector(3), []

    def fails_once():
        closes.append(1)
        if len(closes) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(envs, "close", fails_once)
    collector = Collector(envs, policy)
    with pytest.raises(KeyboardInterrupt):
        collector.close()
    collector.close()
    collector.close()
    assert len(closes) == 2


def test_what_the_thread_raised_is_told_after_a_ctrl_c_too(monkeypatch):
    with Collector(vector(3, fails=(1, 6)), policy, chunk=8, background=True) as collector:
        state, get = buffer(collector), collector._background.get

        def pressed(wait):
            entry = get(wait)
            if entry is not None and not hasattr(entry, "steps"):
                signal.raise_signal(signal.SIGINT)
            return entry

        monkeypatch.setattr(collector._background, "get", pressed)
        with pytest.raises(KeyboardInterrupt):
            collector.drain(state, at_least=100)
        with pytest.raises(CollectorError, match="environment 1 raised"):
            collector.drain(collector.recover(), at_least=100)
