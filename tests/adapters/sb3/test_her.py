"""Hindsight goals: new goals are achievements of the episode, and the environment rewards them."""

from __future__ import annotations

import copy
import pickle
import signal

import gymnasium as gym
import numpy as np
import pytest
from fbuf_adapters.sb3 import HerReplayBuffer
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her import HerReplayBuffer as Theirs

BOX = spaces.Box(-1, 1000, (2,), np.float64)
SPACE = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})
ACTIONS = spaces.Discrete(2)
LENGTHS = 4, 7, 3, 6


class Rewarding(gym.Env):
    """Rewards the distance in time; infos tell the step."""

    observation_space, action_space = SPACE, ACTIONS
    calls = 0

    def compute_reward(self, achieved, desired, infos):
        type(self).calls += 1
        assert achieved.dtype == desired.dtype == np.float64
        assert len(infos) == len(achieved)
        for info, place in zip(infos, achieved, strict=True):
            assert info.get("at", place[1]) == place[1]
        return -np.abs(achieved[:, 1] - desired[:, 1])


def observation(episode, at):
    place = np.array([[episode, at]], np.float64)
    return {"observation": place, "achieved_goal": place, "desired_goal": np.full((1, 2), -1.0)}


def filled(**options):
    """Episodes of several lengths; the last one is under way."""
    env = DummyVecEnv([Rewarding])
    buffer = HerReplayBuffer(32, SPACE, ACTIONS, env, "cpu", seed=0, **options)
    for episode, length in enumerate(LENGTHS):
        for at in range(length):
            done = at == length - 1 and episode < len(LENGTHS) - 1
            infos = [{"at": at + 1.0}]
            rows = observation(episode, at), observation(episode, at + 1)
            buffer.add(*rows, np.zeros((1, 1), int), np.full(1, -9.0), np.array([done]), infos)
    return buffer


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_new_goals_are_achievements_of_the_episode(strategy):
    buffer = filled(goal_selection_strategy=strategy, n_sampled_goal=3, copy_info_dict=True)
    calls = Rewarding.calls
    batch = buffer.sample(2000)
    assert Rewarding.calls == calls + 1
    place, goal = (batch.observations[k].numpy() for k in ("observation", "desired_goal"))
    np.testing.assert_array_equal(goal, batch.next_observations["desired_goal"])
    new = goal[:, 0] >= 0
    assert abs(new.mean() - 0.75) < 0.04
    np.testing.assert_array_equal(batch.rewards[~new], -9)
    np.testing.assert_array_equal(goal[new, 0], place[new, 0])
    achieved = batch.next_observations["achieved_goal"].numpy()
    np.testing.assert_array_equal(achieved[:, 1], place[:, 1] + 1)
    wanted = -np.abs(achieved[new, 1] - goal[new, 1])
    np.testing.assert_array_equal(batch.rewards[new][:, 0], wanted)
    for episode, length in enumerate(LENGTHS):
        for at in range(length):
            found = set(goal[new & (place == (episode, at)).all(axis=1), 1])
            first = {"future": at + 1, "final": length, "episode": 1}[strategy]
            assert found == set(range(first, length + 1))


def test_it_stands_where_theirs_does():
    buffer = filled()
    assert isinstance(buffer, Theirs)
    assert buffer.n_sampled_goal == 4
    assert buffer.her_ratio == pytest.approx(0.8)


def test_one_reward_for_all_rows_is_refused(monkeypatch):
    """As a norm without its axis gives it."""
    one = lambda self, achieved, desired, infos: np.linalg.norm(achieved - desired)
    monkeypatch.setattr(Rewarding, "compute_reward", one)
    with pytest.raises(ValueError, match="a reward for each of"):
        filled().sample(64)


def test_a_row_and_its_info_are_there_together(monkeypatch):
    """Ctrl-C comes while the row is added, and waits for the info."""
    buffer = filled(copy_info_dict=True)
    plain, at = type(buffer.memory).add, buffer.pos

    def add(*args, **options):
        plain(*args, **options)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(type(buffer.memory), "add", add)
    rows = observation(9, 0), observation(9, 1)
    with pytest.raises(KeyboardInterrupt):
        buffer.add(*rows, np.zeros((1, 1), int), np.zeros(1), np.zeros(1), [{"mine": True}])
    assert buffer.pos == at + 1
    assert buffer.infos[at, 0] == {"mine": True}


def test_no_state_is_assigned_where_infos_are_kept():
    """They are not in it, and those that are kept would be of other rows."""
    buffer = filled(copy_info_dict=True)
    with pytest.raises(ValueError, match=r"copy_info_dict.*use buffer\.save and buffer\.load"):
        buffer.memory.state = buffer.memory.state


def test_pickled_without_its_environment():
    buffer = filled(copy_info_dict=True)
    other = pickle.loads(pickle.dumps(buffer))
    with pytest.raises(RuntimeError, match="set_env"):
        other.sample(64)
    other.set_env(DummyVecEnv([Rewarding]))
    assert other.sample(64).rewards.shape == (64, 1)
    with pytest.warns(UserWarning, match="will be truncated"):
        other.truncate_last_trajectory()
    assert other.dones[other.pos - 1] == other.timeouts[other.pos - 1] == 1
    other.truncate_last_trajectory()  # no episode is under way, so that it does not warn
    copy.deepcopy(buffer).set_env(DummyVecEnv([Rewarding]))


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({}, {"goal_selection_strategy": "best"}, "goal_selection_strategy must be one of"),
        ({}, {"n_steps": 3}, "n_steps is not for hindsight goals"),
        ({"desired_goal": spaces.Box(0, 1, (3,))}, {}, "one shape and dtype"),
        ({"desired_goal": None}, {}, "must be a dict with"),
        ({}, {"n_sampled_goal": -1}, "n_sampled_goal"),
    ],
)
def test_misuse(change, options, text):
    parts = {name: space for name, space in (SPACE.spaces | change).items() if space is not None}
    with pytest.raises(ValueError, match=text):
        HerReplayBuffer(8, spaces.Dict(parts), ACTIONS, DummyVecEnv([Rewarding]), **options)
