"""Signal handlers that call a buffer in the midst of another call: no row is lost or torn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from fbuf_adapters.sb3 import ReplayBuffer, _write_sizes
from gymnasium import spaces
from support.reentry import call_at_line

import fbuf

SPACES = spaces.Box(-1e6, 1e6, (3,), np.float32), spaces.Box(-1e6, 1e6, (2,), np.float32)
SAMPLERS = {"uniform": fbuf.Uniform(), "per": fbuf.Prioritized()}


class Counted:
    """A buffer of rows that are one number each; an error of a handler is kept."""

    def __init__(self, sampler, monkeypatch):
        monkeypatch.setattr(_write_sizes, "SIZES", (1, 4))
        self.buffer = ReplayBuffer(4096, *SPACES, "cpu", seed=0, sampler=sampler)
        self.count, self.refused = 0, []
        for _ in range(6):
            self.add()

    def add(self):
        number = self.count = self.count + 1
        # The next step goes on from it, or does not: so there are ends, too.
        rows = [np.full((1, n), number, np.float32) for n in (3, 3, 2)]
        rows[1] += 0.5
        done = np.array([number % 3 == 0])
        self.buffer.add(*rows, np.full(1, number, np.float32), done, [{}])

    def sample(self):
        batch = self.buffer.sample(4)
        self.check(batch.observations, batch.next_observations, batch.actions, batch.rewards)
        return batch

    def update(self):
        if self.buffer.memory.drawing.weighted:
            self.buffer.update_priority(self.buffer.sample(4).ids, np.ones(4))

    def pickle(self):
        other = pickle.loads(pickle.dumps(self.buffer))
        assert other.size() == int(fbuf.size(other.memory.state))

    def read(self):
        rewards = np.sort(self.buffer.rewards[: self.buffer.pos].ravel())
        np.testing.assert_array_equal(rewards, np.arange(1, len(rewards) + 1))

    def handler(self, name):
        def call():
            try:
                getattr(self, name)()
            except RuntimeError as error:
                self.refused.append((name, str(error)))

        return call

    def check(self, observations, following, actions, rewards):
        """Each row is one number."""
        number = np.asarray(rewards).reshape(-1, 1)
        np.testing.assert_array_equal(np.asarray(observations), np.repeat(number, 3, 1))
        np.testing.assert_array_equal(np.asarray(following), np.repeat(number + 0.5, 3, 1))
        np.testing.assert_array_equal(np.asarray(actions), np.repeat(number, 2, 1))

    def whole(self):
        """All rows are there, once."""
        stored, count = self.buffer.stored(), self.count
        assert self.buffer.size() == count
        rows = [getattr(stored, name)[:count, 0] for name in stored._fields[:4]]
        self.check(*rows)
        assert sorted(rows[3].ravel()) == list(range(1, count + 1))
        np.testing.assert_array_equal(stored.dones[:count, 0] >= (rows[3] % 3 == 0), True)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_step_that_a_handler_adds_is_added(sampler, monkeypatch):
    """At each line of a call that adds, and of one that draws."""
    counted = Counted(SAMPLERS[sampler], monkeypatch)
    for name in ("add", "sample"):
        number = 1
        while call_at_line(number, getattr(counted, name), counted.handler("add")):
            counted.update()
            number += 1 if name == "add" else 3
        assert number > 30
    assert not counted.refused
    counted.whole()


@pytest.mark.parametrize("sampler", ["per", pytest.param("uniform", marks=pytest.mark.sweep)])
def test_other_calls_of_a_handler_work_or_are_refused(sampler, monkeypatch):
    counted = Counted(SAMPLERS[sampler], monkeypatch)
    calls = ("add", "sample", "update", "pickle", "read")
    for name in calls[:3]:
        for number in range(1, 90, 7):
            for handler in calls:
                call_at_line(number, getattr(counted, name), counted.handler(handler))
                counted.update()
    names = {name for name, _ in counted.refused}
    assert "add" not in names
    assert names or sampler == "uniform"
    assert all("in the midst of" in text for _, text in counted.refused)
    counted.whole()


def test_a_step_that_waits_is_a_copy(monkeypatch):
    """The handler may use its arrays again."""
    counted = Counted(fbuf.Uniform(), monkeypatch)
    mine = np.full((1, 3), 7.0, np.float32)

    def handler():
        counted.buffer.add(mine, mine, np.zeros((1, 2)), np.full(1, 7.0), [True], [{}])
        mine[:] = 8

    assert call_at_line(12, counted.sample, handler)
    assert counted.buffer.observations[counted.buffer.pos - 1].tolist() == [[7, 7, 7]]


@pytest.mark.sweep
def test_many_steps_may_wait(monkeypatch):
    """As while a program compiles."""
    counted = Counted(fbuf.Uniform(), monkeypatch)
    with counted.buffer.memory.turns.held():
        for _ in range(1200):
            counted.add()
        assert counted.buffer.size() == 6
    counted.whole()


def test_a_wrong_step_of_a_handler_is_said(monkeypatch):
    counted = Counted(fbuf.Uniform(), monkeypatch)
    handler = lambda: counted.buffer.add(np.zeros((1, 9)), *[np.zeros((1, 3))] * 5)
    with pytest.raises(ValueError, match="must be"):
        call_at_line(12, counted.add, handler)
    counted.whole()


@pytest.mark.parametrize("at", [20, 32])
def test_a_handler_takes_no_rows_away_amid_a_step(at, monkeypatch):
    counted = Counted(fbuf.Uniform(), monkeypatch)
    state = fbuf.clear(counted.buffer.memory.state, donate=False)
    said = []

    def handler():
        for call in (counted.buffer.reset, lambda: setattr(counted.buffer.memory, "state", state)):
            with pytest.raises(RuntimeError, match="in the midst of add"):
                call()
            said.append(call)

    assert call_at_line(at, counted.add, handler)
    assert len(said) == 2
    counted.whole()
