"""Exceptions at any instant: an object holds the old state or the new one, and loses no batch."""

# ruff: noqa: B023  a function made in a loop is called in the same turn
from __future__ import annotations

import _thread
import contextlib
import functools
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

import jax
import pytest
from support.interrupt import interrupted
from support.reentry import call_at_line

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch._spec import Spec  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches._batch_stream import Drawn  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)
from fbuf.runtime import interrupts, thread  # noqa: E402 (after the skip)

# An exception in a callback of the garbage collector is lost, whoever raises it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MANY = [50, pytest.param(2000, marks=pytest.mark.sweep)]


def one(number):
    return {"n": torch.tensor(number, dtype=torch.int32), "x": torch.zeros(3)}


def rows(first, count):
    return {"n": torch.arange(first, first + count, dtype=torch.int32), "x": torch.zeros(count, 3)}


def stored(buffer):
    """The numbers of the rows, the oldest first; None where there is none, or was one."""
    owner = buffer.contents.stored.backend
    found = owner.read(fbuf.newest_ids(owner.state, 64))
    numbers, mask = found.data["n"].tolist(), found.mask.tolist()
    return [n if there else None for n, there in zip(numbers, mask, strict=True)]


@pytest.mark.sweep
@pytest.mark.parametrize("host", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 2])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("times", MANY)
def test_the_state_is_the_old_one_or_the_new_one(
    interrupted, host, prefetch, times, waits, tmp_path, monkeypatch
):
    monkeypatch.setattr(Spec, "defers", waits)  # updates of priorities wait for a draw, or do not
    rng, hit, number = random.Random(0), 0, 8
    options = {"sampler": fbuf.Prioritized(), "batch_size": 4, "prefetch": prefetch, "host": host}
    with ReplayBuffer(64, **options) as buffer:
        buffer.extend(rows(0, 8))
        saved, kept = buffer.state_dict(), stored(buffer)
        batch = buffer.sample()
        while hit < times:
            before = stored(buffer)
            gone = set(batch.data["n"].tolist())
            calls = {  # each method, and what the rows are after it
                "add": (lambda: buffer.add(one(number)), [*before, number]),
                "extend": (
                    lambda: buffer.extend(rows(number, 8)),
                    [*before, *range(number, number + 8)],
                ),
                "odd": (
                    lambda: buffer.extend(rows(number, 5)),
                    [*before, *range(number, number + 5)],
                ),
                "remove": (
                    lambda: buffer.remove(batch.ids),
                    [None if n in gone else n for n in before],
                ),
                "load": (lambda: buffer.load_state_dict(saved), kept),
                "update": (lambda: buffer.update_priority(batch.ids, torch.rand(4)), before),
                "write": (lambda: buffer.write(batch.ids, {"x": torch.ones(4, 3)}), before),
                "end": (buffer.end_episode, before),
                "len": (lambda: len(buffer), before),
                "stats": (buffer.stats, before),
                "can": (buffer.can_sample, before),
                "save": (buffer.state_dict, before),
            }
            if not host:
                calls["state"] = lambda: setattr(buffer, "state", buffer.state), before
            if set(before) != {None}:
                calls["sample"] = buffer.sample, before
                calls["another"] = lambda: buffer.sample(3), before
            if rng.random() < 0.02:
                calls = {
                    "empty": (buffer.empty, [None] * 64),
                    "disk": (lambda: buffer.save(tmp_path, background=rng.random() < 0.5), before),
                }
            name = rng.choice(list(calls))
            call, after = calls[name]
            done, result = interrupted(call, rng.uniform(0, 1.5e-3))
            hit += not done
            if name == "sample" and done:
                batch = result
            number += 8
            found = stored(buffer)
            assert found == after[-64:] or (not done and found == before), name
        buffer.raise_on_fault()
        before = stored(buffer)
        buffer.save(tmp_path)
        buffer.load(tmp_path)
        assert stored(buffer) == before
        buffer.extend(rows(number, 8))
        assert len(buffer.sample().data["n"]) == 4


@pytest.mark.parametrize("host", [pytest.param(False, marks=pytest.mark.sweep), True])
@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 3])
@pytest.mark.parametrize("times", MANY)
def test_no_batch_is_lost_or_doubled(interrupted, host, prefetch, times):
    no_batch_is_lost_or_doubled(interrupted, times, host=host, prefetch=prefetch)


@pytest.mark.parametrize("times", MANY)
def test_no_batch_of_several_is_lost_or_doubled(interrupted, times):
    no_batch_is_lost_or_doubled(interrupted, times, batches_per_draw=3)


def no_batch_is_lost_or_doubled(interrupted, times, **options):
    rng, batches, hit = random.Random(1), [], 0
    options |= {"sampler": fbuf.Shuffled(), "batch_size": 4}
    with ReplayBuffer(64, **options) as buffer:
        buffer.extend({"n": torch.arange(64, dtype=torch.int32)})
        took = []
        for _ in range(20):
            begin = time.perf_counter()
            batches.append(buffer.sample())
            took.append(time.perf_counter() - begin)
        longest = 2 * statistics.median(took)
        while hit < times:
            # A returned value is kept in the same instruction.
            keep = lambda: batches.append(buffer.sample())
            done, _ = interrupted(keep, rng.uniform(0, longest))
            hit += not done
    seen = [n for batch in batches for n in batch.data["n"].tolist()]
    epochs = [seen[at : at + 64] for at in range(0, len(seen), 64)]
    assert len(epochs) > 1
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)


@pytest.mark.sweep
def test_an_interrupted_first_call_is_finished_by_the_next(interrupted):
    for seconds in (0.02, 0.2, 0.6):
        buffer = ReplayBuffer(8, item={"n": torch.tensor(0).int()})
        name = threading.active_count()
        interrupted(lambda b=buffer: b.extend({"n": torch.arange(3).int()}), seconds)
        assert len(buffer) in (0, 3)
        buffer.extend({"n": torch.arange(3, 6).int()})
        assert fbuf.rows(buffer.state).data["n"][-3:].tolist() == [3, 4, 5]
        assert threading.active_count() <= name + 1


@pytest.mark.sweep
def test_an_interrupted_transform_is_done_once(interrupted):
    """On memory of its own: what is drawn anew is not transformed twice."""
    rng = random.Random(2)
    buffer = ReplayBuffer(
        8, batch_size=4, transform=lambda batch: batch.data["x"].mul_(2) is None or batch
    )
    buffer.extend({"x": torch.ones(8, 3)})
    for _ in range(150):
        interrupted(buffer.sample, rng.uniform(0, 5e-4))
        assert set(buffer.sample().data["x"].reshape(-1).tolist()) == {2.0}


@pytest.mark.sweep
def test_a_signal_handler_may_use_the_buffer():
    """It raises nothing, and saves the state, say."""
    saved, rng = [], random.Random(3)
    buffers = [ReplayBuffer(32, sampler=fbuf.Prioritized(), batch_size=2)]
    before = signal.signal(signal.SIGALRM, lambda *_: saved.append(buffers[-1].state_dict()))
    try:
        for count in range(1, 4):
            buffers.append(ReplayBuffer(32 + count, batch_size=2))
            for size in (count, count + 1):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 5e-3))
                buffers[-1].extend(rows(0, size))
            buffers[-1].sample()
            assert len(buffers[-1]) == 2 * count + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert saved


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("host", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_rows_that_a_handler_adds_amid_a_call(host, waits, monkeypatch):
    """At each line of a call that adds, draws, counts or reads."""
    monkeypatch.setattr(Spec, "defers", waits)
    buffer = ReplayBuffer(4096, sampler=fbuf.Prioritized(), batch_size=4, host=host)
    count = 0

    def add():
        nonlocal count
        count += 1
        buffer.add(one(count))

    for _ in range(8):
        add()
    calls = {
        "add": add,
        "sample": buffer.sample,
        "len": buffer.__len__,
        "read": lambda: buffer[0],
        "update": lambda: buffer.update_priority(buffer.sample().ids, torch.ones(4)),
        "state": buffer.state_dict,
    }
    for name, call in calls.items():
        call()
        number = 1
        while call_at_line(number, call, add):
            number += 1 if name == "add" else 9
    assert sorted(buffer[:]["n"].tolist()) == list(range(1, count + 1))
    buffer.raise_on_fault()


def test_the_first_row_may_be_that_of_a_handler():
    for number in range(1, 60, 4):
        buffer = ReplayBuffer(8)
        assert call_at_line(number, lambda: buffer.add(one(1)), lambda: buffer.add(one(2)))
        assert sorted(buffer[:]["n"].tolist()) == [1, 2]


class Lost:
    """A turn that a program could not compute, for lack of memory."""

    def block_until_ready(self):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])
def test_a_turn_that_was_lost_comes_again(order):
    """Two threads drew, the second from the turn that the first one lost; or an interrupt came."""
    buffer = ReplayBuffer(64, sampler=fbuf.Shuffled(), batch_size=4)
    buffer.extend({"n": torch.arange(64, dtype=torch.int32)})
    seen = buffer.sample().data["n"].tolist()
    draws, turn = buffer.contents.stream, buffer.contents.stream._turn
    lost = [Lost(), Lost()]
    drawn = [Drawn(turn, lost[0], 4, None), Drawn(lost[0], lost[1], 4, None)]
    draws._turn = lost[1]
    for number in order:
        draws.failed(drawn[number])
    assert draws._turn is turn
    for _ in range(15):
        seen += buffer.sample().data["n"].tolist()
    assert sorted(seen) == list(range(64))


def test_a_batch_that_was_broken_off_and_lost_is_drawn_anew():
    buffer = ReplayBuffer(64, sampler=fbuf.Shuffled(), batch_size=4)
    buffer.extend({"n": torch.arange(64, dtype=torch.int32)})
    seen = buffer.sample().data["n"].tolist()
    draws = buffer.contents.stream
    drawn = Drawn(draws._turn, Lost(), 4, None)
    draws.__dict__.update(_unfinished=drawn, _turn=drawn.after)
    for _ in range(15):
        seen += buffer.sample().data["n"].tolist()
    assert sorted(seen) == list(range(64))


def test_a_batch_that_another_thread_waits_for_is_not_given_up():
    buffer = ReplayBuffer(64, batch_size=4)
    buffer.extend({"n": torch.arange(64, dtype=torch.int32)})
    draws = buffer.contents.stream
    waiting = draws._unfinished = Drawn(draws._turn, draws._turn, 4, None)
    draws.failed(Drawn(draws._turn, draws._turn, 4, None))
    assert draws._unfinished is waiting


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of a process")
def test_a_buffer_is_whole_when_memory_has_run_out():
    pytest.importorskip("psutil")
    script = pathlib.Path(__file__).parents[2] / "support" / "out_of_memory.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split("\n")[:2] == ["whole: extend", "whole: sample"], done.stderr


FORKED = """
import os, pathlib, sys, threading
sys.path.insert(0, "adapters")
from fbuf.checkpoint import background
from fbuf.runtime import thread
may_end = threading.Event()
background.start(pathlib.Path("x"), lambda: may_end.wait(60))
worker = thread.Worker("worker")
worker.submit(thread.Task(lambda: may_end.wait(60)))
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
"""


@pytest.mark.sweep
def test_a_process_that_was_forked_off_waits_for_no_thread():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=50)


@pytest.mark.parametrize("which", ["worker", "background"])
def test_a_thread_is_waited_for_after_a_wait_that_was_interrupted(which):
    """Its work may use what is closed next: environments, or an interpreter that ends."""
    may_end = threading.Event()
    if which == "worker":
        worker = thread.Worker("worker")
        worker.submit(thread.Task(lambda: may_end.wait(60)))
        close = worker.close
    else:
        pytest.importorskip("gymnasium")
        from fbuf_adapters.gymnasium._producer import Background

        collecting = Background(lambda stop: may_end.wait(60), lambda: None, 1)
        collecting.get(wait=False)
        close = functools.partial(collecting.close, 60)
    interrupted(close)
    threading.Timer(0.1, may_end.set).start()
    assert close() is not False
    assert may_end.is_set()


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized(), fbuf.Shuffled()], ids=repr)
def test_no_python_runs_within_the_call_of_a_program(sampler):
    """There a signal handler could add a row, and consume the state that was read."""
    names, batch = [], 4
    with ReplayBuffer(64, sampler=sampler, batch_size=batch) as buffer:
        buffer.extend({"n": torch.arange(64, dtype=torch.int32)})
        for _ in range(3):
            buffer.sample()

        def trace(frame, event, arg):
            names.append(frame.f_code.co_name)

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            buffer.sample()
        finally:
            sys.settrace(before)
    assert "sample" in names
    assert not [name for name in names if "flatten" in name]


@pytest.mark.parametrize("line", range(6, 13))
def test_two_exceptions_one_after_the_other_leave_no_lock(line, monkeypatch):
    """The first as the thread of a call is started, the second as the next call waits for it."""
    calls, start = interrupts.Calls(), _thread.start_new_thread

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        begun = lambda *given: (start(*given), interrupt())
        patch.setattr(interrupts._thread, "start_new_thread", begun)
        with pytest.raises(KeyboardInterrupt):
            calls("first", lambda: 1)
    with contextlib.suppress(KeyboardInterrupt):
        call_at_line(line, calls.settle, interrupt)
    late = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a lock is held for ever"))
    signal.alarm(10)
    try:
        assert calls("second", lambda: 2) == 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, late)


class TimeUpError(Exception):
    """The exception of a time limit, as a handler of a user's raises it."""


def time_up(*_):
    raise TimeUpError


class Limit:
    """A handler that is an object, as those of libraries are."""

    def __call__(self, *_):
        raise TimeUpError

    def method(self, *_):
        raise TimeUpError


HANDLERS = {
    "function": time_up,
    "method": Limit().method,
    "object": Limit(),
    "partial": functools.partial(time_up, None),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_no_batch_is_lost_by_a_handler_that_raises_an_ordinary_exception(kind):
    """A transform that fails loses its batch; a time limit that comes while it runs does not."""
    armed, broken = [True], [False]

    def transform(batch):
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGALRM)
        if broken[0]:
            raise TimeUpError
        return batch

    buffers = [ReplayBuffer(64, batch_size=4, seed=0, transform=f) for f in (transform, None)]
    for buffer in buffers:
        buffer.extend({"x": torch.arange(50.0)})
    buffer, expected = buffers[0], [buffers[1].sample().data["x"] for _ in range(4)]
    before = signal.signal(signal.SIGALRM, HANDLERS[kind])
    try:
        with pytest.raises(TimeUpError):
            buffer.sample()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert torch.equal(buffer.sample().data["x"], expected[0])
    broken[0] = True
    with pytest.raises(TimeUpError):
        buffer.sample()
    broken[0] = False
    assert torch.equal(buffer.sample().data["x"], expected[2])
