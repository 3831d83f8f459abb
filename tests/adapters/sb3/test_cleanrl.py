"""Loops of CleanRL: infos of a vector environment, ends that are terminations alone."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import ReplayBuffer
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common import buffers

import fbuf

TERMINATES, LIMIT = 5, 3


class Counting(gym.Env):
    """Observes its environment, its episode and the step in float64; each third is cut off."""

    action_space = spaces.Discrete(2)

    def __init__(self, env):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.env, self.episode = env, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.step_ = self.episode + 1, 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.env, self.episode, self.step_ + 0.1])

    def step(self, action):
        self.step_ += 1
        cut_off = self.episode % 3 == 0 and self.step_ == LIMIT
        terminated = self.step_ == TERMINATES
        return self.observe(), 0.1 * self.step_, terminated, cut_off, {"step": self.step_}


def played(buffer, envs, steps):
    """Add what CleanRL's scripts add. They mend the next observations of truncated rows alone."""
    obs, _ = envs.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions = rng.integers(2, size=envs.num_envs)
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for env in np.flatnonzero(truncations):
            real_next_obs[env] = infos["final_obs"][env]
        buffer.add(obs, real_next_obs, actions, rewards, terminations, infos)
        obs = next_obs
    return buffer


def counting(n_envs):
    make = [lambda env=env: Counting(env) for env in range(n_envs)]
    envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.single_observation_space.dtype = np.float32  # as they do for MuJoCo
    return envs


def buffer_of(envs, size=40, kind=ReplayBuffer, **options):
    """The buffer, made as their scripts make it."""
    return kind(
        size * envs.num_envs,
        envs.single_observation_space,
        envs.single_action_space,
        torch.device("cpu"),
        n_envs=envs.num_envs,
        **{"handle_timeout_termination": False} | options,
    )


@pytest.mark.parametrize("n_envs", [1, 3])
def test_rows_are_those_of_the_buffer_it_had(n_envs):
    ours, theirs = (
        played(buffer_of(counting(n_envs), 20, kind), counting(n_envs), 33)
        for kind in (ReplayBuffer, buffers.ReplayBuffer)
    )
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        mine, wanted = getattr(ours, name), getattr(theirs, name)
        if name == "dones":  # theirs knows of no truncation
            assert (mine * (1 - ours.timeouts) == wanted).all()
            assert ours.timeouts.any()
            continue
        np.testing.assert_array_equal(mine, wanted)
        assert mine.dtype == wanted.dtype
    batch = ours.sample(64)
    assert batch.observations.dtype == batch.dones.dtype == torch.float32
    assert batch.rewards.flatten().shape == batch.dones.flatten().shape == (64,)
    torch.zeros(64, 2).gather(1, batch.actions)
    cut_off = (batch.next_observations[:, 1] % 3 == 0) & (batch.next_observations[:, 2] > LIMIT)
    assert cut_off.any()
    assert not batch.dones.flatten()[cut_off].any()


def test_several_steps_stay_in_the_episode():
    envs = counting(1)
    buffer = buffer_of(envs, n_steps=3, gamma=0.5, seed=0)
    batch = played(buffer, envs, 40).sample(500)
    at = batch.observations[:, 2].round().long()
    cut_off = batch.observations[:, 1] % 3 == 0
    end = torch.where(cut_off, LIMIT, TERMINATES)
    steps = (end - at).clamp(max=3)
    bootstraps = ~batch.dones.bool().flatten()
    # The newest rows of an episode that goes on have fewer.
    newest = batch.observations[:, 1] == batch.observations[:, 1].max()
    known = ~newest
    wanted = sum(0.5**n * 0.1 * (at + n + 1) * (n < steps) for n in range(3))
    torch.testing.assert_close(batch.rewards.flatten()[known], wanted[known])
    torch.testing.assert_close(batch.discounts.flatten()[known], 0.5 ** steps[known].float())
    assert (bootstraps == cut_off | (at + steps < TERMINATES))[known].all()
    reached = known & bootstraps
    assert torch.equal(batch.next_observations[reached][:, 1], batch.observations[reached][:, 1])


@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_scripts_in_jax_take_arrays(arrays):
    buffer = played(buffer_of(counting(1), seed=3, arrays=arrays), counting(1), 20)
    batch, stored = buffer.sample(8), buffer.stored()
    drawn = batch.observations.numpy()
    same = (stored.observations[:20, 0][None] == np.asarray(drawn)[:, None]).all(axis=2)
    rows = same.argmax(axis=1)
    assert same.any(axis=1).all()
    for name in ("actions", "next_observations"):
        np.testing.assert_array_equal(getattr(batch, name).numpy(), getattr(stored, name)[rows, 0])
    np.testing.assert_array_equal(batch.rewards.flatten().numpy(), stored.rewards[rows, 0])
    ends = stored.dones * (1 - stored.timeouts)
    np.testing.assert_array_equal(batch.dones.flatten().numpy(), ends[rows, 0])


def test_infos_of_a_vector_environment_tell_no_timeouts():
    envs = counting(2)
    buffer = buffer_of(envs, handle_timeout_termination=True)
    with pytest.raises(ValueError, match="handle_timeout_termination=False"):
        played(buffer, envs, 1)


def test_priorities_of_a_loss_of_ones_own():
    envs = counting(1)
    buffer = buffer_of(envs, sampler=fbuf.Prioritized(alpha=1.0), seed=0)
    played(buffer, envs, 30)
    batch = buffer.sample(200)
    error = (batch.observations[:, 1:2] == 3.0).float().requires_grad_()
    (error * batch.weights).mean().backward()
    buffer.update_priority(batch.ids, error)
    assert (buffer.sample(200).observations[:, 1] == 3.0).float().mean() > 0.9


def test_a_loss_that_knows_no_priorities_is_refused():
    envs = counting(1)
    buffer = buffer_of(envs, sampler=fbuf.Prioritized())
    played(buffer, envs, 30)
    buffer.sample(4)
    with pytest.raises(RuntimeError, match=r"weigh by batch\.weights and call update_priority"):
        buffer.sample(4)


FRAMES = spaces.Box(0, 255, (4, 5, 5), np.uint8)


def stack(*frames):
    """Stacks of one environment, of frames that are one number each."""
    return np.array([np.full((5, 5), frame) for frame in frames], np.uint8)[None]


def add(buffer, obs, next_obs, reward, terminated=False):
    buffer.add(obs, next_obs, np.zeros(1, int), np.array([reward]), np.array([terminated]), {})


def of_frames(n_steps=1):
    spaces_ = FRAMES, spaces.Discrete(2)
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    return ReplayBuffer(50, *spaces_, **options, n_stack=4, n_steps=n_steps, gamma=1.0, seed=0)


def test_frames_are_stored_once_where_a_terminated_row_leads_to_the_next_episode():
    buffer = of_frames()
    add(buffer, stack(1, 1, 1, 1), stack(1, 1, 1, 2), 0.0)
    add(buffer, stack(1, 1, 1, 2), stack(7, 7, 7, 7), 1.0, terminated=True)
    add(buffer, stack(7, 7, 7, 7), stack(7, 7, 7, 8), 2.0)
    batch = buffer.sample(60)
    wanted = [stack(1, 1, 1, 1), stack(1, 1, 1, 2), stack(7, 7, 7, 7)]
    after = [stack(1, 1, 1, 2), None, stack(7, 7, 7, 8)]
    for row, reward in enumerate(batch.rewards.flatten().long().tolist()):
        np.testing.assert_array_equal(batch.observations[row], wanted[reward][0])
        assert batch.dones[row] == (reward == 1)
        if after[reward] is not None:
            np.testing.assert_array_equal(batch.next_observations[row], after[reward][0])
    with pytest.raises(ValueError, match="is not the stack of the observation"):
        add(buffer, stack(7, 7, 7, 8), stack(9, 9, 9, 9), 0.0)


def test_a_reset_to_the_frame_that_an_episode_was_cut_off_at_ends_the_episode():
    buffer = of_frames(n_steps=3)
    add(buffer, stack(1, 1, 1, 1), stack(1, 1, 1, 2), 1.0)
    add(buffer, stack(2, 2, 2, 2), stack(2, 2, 2, 3), 10.0)
    add(buffer, stack(2, 2, 2, 3), stack(2, 2, 3, 4), 100.0)
    batch = buffer.sample(60)
    first = batch.observations[:, 0, 0, 0] == 1
    assert first.any()
    assert (batch.rewards[first] == 1.0).all()
    assert not batch.dones[first].any()
    frames = batch.next_observations[first][:, :, 0, 0]
    assert torch.equal(frames, torch.tensor([1, 1, 1, 2], dtype=torch.uint8).expand_as(frames))
