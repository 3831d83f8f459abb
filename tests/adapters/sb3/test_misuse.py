"""Messages for what users of Stable-Baselines3 get wrong."""

from __future__ import annotations

import numpy as np
import pytest
from fbuf_adapters.sb3 import ReplayBuffer
from fbuf_adapters.sb3._memory import Memory
from gymnasium import spaces

import fbuf

FLOATS = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"a": FLOATS, "b": spaces.Discrete(4)})
IMAGES = spaces.Box(0, 255, (4, 4, 4), np.uint8)
ACTIONS = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"buffer_size": 10**12}, (MemoryError, ValueError), "capacity"),
        ({"n_steps": 3}, ValueError, "n_steps=3 needs gamma"),
        ({"n_steps": 0, "gamma": 0.9}, ValueError, "n_steps must be from 1"),
        ({"n_steps": 2.0, "gamma": 0.9}, TypeError, "n_steps must be an int"),
        ({"n_steps": 3, "gamma": 1.5}, ValueError, "gamma"),
        ({"n_stack": 4}, ValueError, "cannot be stacked in an observation of shape"),
        ({"n_stack": 4, "observation_space": DICT}, ValueError, "one array"),
        ({"sampler": fbuf.Shuffled()}, ValueError, "draws in an order"),
        ({"sampler": fbuf.Fifo()}, ValueError, "draws in an order"),
        ({"sampler": fbuf.FreshFirst()}, ValueError, "FreshFirst remembers what was drawn"),
        ({"sampler": fbuf.Limited(max_uses=2)}, ValueError, "Limited remembers.*Mixture"),
        ({"sampler": "prioritized"}, TypeError, "must be one of fbuf"),
        ({"arrays": "numpy"}, ValueError, "arrays must be one of"),
        ({"rows_on": "tpu"}, ValueError, "rows_on must be one of"),
        ({"seed": -1}, ValueError, "seed must be from 0"),
        ({"alpha": 0.6}, TypeError, "alpha"),
    ],
)
def test_arguments(options, error, text):
    arguments = {"buffer_size": 10, "observation_space": FLOATS, "action_space": ACTIONS} | options
    with pytest.raises(error, match=text):
        ReplayBuffer(**arguments)


def test_more_rows_than_the_machine_has_room_for():
    with pytest.raises(MemoryError, match="capacity"):
        ReplayBuffer(10**9, spaces.Box(0, 255, (84, 84, 4), np.uint8), ACTIONS)


def step(n_envs=2, space=FLOATS, **changes):
    observe = lambda: stacked([space.sample() for _ in range(n_envs)])
    row = {
        "obs": observe(),
        "next_obs": observe(),
        "action": np.zeros(n_envs, int),
        "reward": np.zeros(n_envs),
        "done": np.zeros(n_envs),
        "infos": [{} for _ in range(n_envs)],
    }
    return row | changes


def stacked(rows):
    if isinstance(rows[0], dict):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows)


@pytest.mark.parametrize(
    ("space", "changes", "error", "text"),
    [
        (FLOATS, {"obs": np.zeros((1, 3), np.float32)}, ValueError, r"\(2, 3\), for n_envs=2"),
        (FLOATS, {"next_obs": np.zeros((2, 4))}, ValueError, "next_obs must be of shape"),
        (FLOATS, {"obs": {"a": np.zeros((2, 3))}}, ValueError, "observation must be of shape"),
        (FLOATS, {"reward": np.zeros(3)}, ValueError, "reward must be of shape"),
        (FLOATS, {"reward": np.zeros(1)}, ValueError, "reward must be of shape"),
        (FLOATS, {"done": np.zeros(1)}, ValueError, "done must be of shape"),
        (FLOATS, {"action": np.zeros((2, 2), int)}, ValueError, "action must be of shape"),
        (FLOATS, {"action": np.array([0.5, 0.2])}, TypeError, "action must be int64"),
        (FLOATS, {"infos": {}}, ValueError, "infos must be a list of 2 dicts"),
        (FLOATS, {"infos": [{}]}, ValueError, "infos must be a list of 2 dicts"),
        (DICT, {"obs": np.zeros((2, 3))}, ValueError, "must be a dict with"),
        (DICT, {"obs": {"a": np.zeros((2, 3))}}, ValueError, r"must be a dict with \['a', 'b'\]"),
        (DICT, {"obs": {"a": np.zeros((2, 3)), "c": 1}}, ValueError, r"with \['a', 'b'\]"),
        (IMAGES, {"obs": np.zeros((2, 4, 4, 4))}, TypeError, "observation must be uint8"),
        (IMAGES, {"obs": np.full((2, 4, 4, 4), 300)}, ValueError, "must fit uint8"),
    ],
)
def test_steps(space, changes, error, text):
    """A refused step leaves nothing behind."""
    buffer = ReplayBuffer(10, space, ACTIONS, n_envs=2)
    with pytest.raises(error, match=text):
        buffer.add(**step(space=space, **changes))
    assert buffer.size() == 0
    buffer.add(**step(space=space))
    assert buffer.size() == 1


def test_spaces_of_one_number_take_it_with_or_without_its_axis():
    buffer = ReplayBuffer(10, spaces.Discrete(5), spaces.MultiDiscrete([2, 3]), n_envs=2)
    for lead in ((2,), (2, 1)):
        obs = np.arange(2).reshape(lead)
        buffer.add(obs, obs + 1, np.zeros((2, 2), int), np.zeros(2), np.zeros(2), [{}, {}])
    assert buffer.sample(3).observations.shape == (3, 1)
    assert buffer.sample(3).actions.shape == (3, 2)


def test_environments_that_do_not_divide_the_size():
    """As in Stable-Baselines3: what is left over is not used."""
    assert ReplayBuffer(10, FLOATS, ACTIONS, n_envs=3).buffer_size == 3
    assert ReplayBuffer(2, FLOATS, ACTIONS, n_envs=3).buffer_size == 1


def test_what_is_no_stack_of_frames():
    buffer = ReplayBuffer(10, IMAGES, ACTIONS, n_stack=4)
    with pytest.raises(ValueError, match="not the stack of the observation with one more frame"):
        buffer.add(**step(1, IMAGES))
    first = np.zeros((1, 4, 4, 4), np.uint8)
    first[..., 3] = 1
    with pytest.raises(ValueError, match="not the stack of the observation with one more frame"):
        buffer.add(**step(1, IMAGES, obs=first))
    assert buffer.size() == 0


def test_nothing_to_draw():
    buffer = ReplayBuffer(10, FLOATS, ACTIONS, n_envs=2)
    with pytest.raises(RuntimeError, match="the buffer is empty"):
        buffer.sample(4)
    with pytest.raises(AttributeError, match="no attribute 'observation'"):
        buffer.observation  # noqa: B018


def test_a_pickle_of_another_format_is_refused():
    memory = ReplayBuffer(8, spaces.Discrete(3), spaces.Discrete(2), "cpu").memory
    for other in ({"format": 0}, {}):
        kept = {k: v for k, v in memory.__getstate__().items() if k != "format"} | other
        with pytest.raises(ValueError, match="load it with the version that wrote it"):
            Memory.__new__(Memory).__setstate__(kept)


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()])
def test_sizes_of_batches(sampler):
    buffer = ReplayBuffer(8, spaces.Discrete(3), spaces.Discrete(2), "cpu", sampler=sampler)
    one = np.ones(1, int)
    buffer.add(one, one, one, np.ones(1), np.zeros(1), [{}])
    for size, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="batch_size must be"):
            buffer.sample(size)
    assert len(buffer.sample(np.int64(3)).rewards) == 3
