"""Checks that the collectors share whose steps are made by workers: processes, or actors of Ray."""

from __future__ import annotations

import threading

import numpy as np
from fbuf_adapters.gymnasium import CollectorError

import fbuf


def buffer(collector, capacity=800, **options):
    item = {**collector.item, "version": np.int32(0)}
    options = {"next_of": "observation", "max_ends": capacity, **collector.options, **options}
    return fbuf.init(item, capacity, **options)


def lanes(state):
    """The rows of each environment, in the order of time: a list of dicts of arrays."""
    rows = fbuf.rows(state, view=fbuf.Transition())
    leaves = {
        **rows.data.item,
        "next": rows.data.next_observation,
        "terminated": rows.terminated,
        "truncated": rows.truncated,
    }
    there = np.asarray(fbuf.rows(state).mask)
    leaves = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    return [{name: a[env][mask] for name, a in leaves.items()} for env, mask in enumerate(there)]


def assert_whole(rows, seed):
    """All steps of an environment, each once, in order, with what they led to."""
    observation, following = rows["observation"], rows["next"]
    count = len(observation)
    # An environment counts its steps and resets; five steps and a reset are an episode.
    steps = np.arange(count)
    expected = steps + steps // 5
    np.testing.assert_array_equal(observation[:, 0], seed)
    np.testing.assert_array_equal(observation[:, 1], expected)
    np.testing.assert_array_equal(following[:, 1], expected + 1)
    np.testing.assert_array_equal(following[:, 2], steps // 5)  # of the same episode, at ends too
    ends, cut = steps % 5 == 4, steps // 5 % 2 == 1
    np.testing.assert_array_equal(rows["terminated"], ends & ~cut)
    np.testing.assert_array_equal(rows["truncated"], ends & cut)
    np.testing.assert_array_equal(rows["reward"], rows["action"])
    np.testing.assert_array_equal(rows["calls"], steps + 1)


def assert_whole_but_cut(rows, env):
    """Whole, but for the newest row, behind which its episode is cut off."""
    assert rows["terminated"][-1] or rows["truncated"][-1]
    assert_whole({name: leaf[:-1] for name, leaf in rows.items()}, env)


def drain_for_ever(collector, state):
    while True:
        state = collector.drain(state, at_least=3)


def until_all_have(rows, collector, state):
    while min(len(lane["reward"]) for lane in lanes(state)) < rows:
        if collector.options.get("lockstep", True):
            state = collector.collect(state, 7)
        else:
            state = collector.drain(state, at_least=6)
    return state


def assert_goes_on(collector, state, had):
    """No whole chunk was lost of lanes that had so many rows, and what was under way is dropped."""
    if not collector.options.get("lockstep", True):
        state = collector.drain(state, at_least=6)
        for env, rows in enumerate(lanes(state)):
            assert_whole(rows, env)
        return
    state = collector.collect(state, 5)
    for env, rows in enumerate(lanes(state)):
        # Exactly five steps are new, and follow nothing.
        assert len(rows["reward"]) == had[env] + 5
        assert rows["truncated"][had[env] - 1] or rows["terminated"][had[env] - 1]
        np.testing.assert_array_equal(np.diff(rows["calls"][had[env] :]), 1)
        np.testing.assert_array_equal(rows["observation"][:, 0], env)


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, observation):
        return observation


REFUSED = [
    ({"policy": Locked(), "weights": None}, CollectorError, "policy cannot be sent"),
    ({"policy": len}, CollectorError, "no method load"),
    ({"timeout": 0}, ValueError, "timeout must be above 0"),
    ({"mode": "both"}, ValueError, "mode"),
    ({"mode": "free"}, ValueError, "give mode='async'"),
    ({"mode": "barrier"}, ValueError, "give mode='sync'"),
]
"""Arguments that no collector with workers takes."""
