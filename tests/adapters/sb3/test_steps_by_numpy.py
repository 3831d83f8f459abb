"""Transitions of several steps that NumPy makes are those of `fbuf.NStep`."""

from __future__ import annotations

import copy
import itertools

import gymnasium as gym
import jax
import numpy as np
import pytest
from fbuf_adapters.sb3 import ReplayBuffer, _write_sizes
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import fbuf

ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
FLOATS = spaces.Box(-10, 10, (3,), np.float32)
DICT = spaces.Dict({"a": FLOATS, "b": spaces.Box(0, 9, (1,), np.float64)})


def run(space, n_envs, seed):
    """Steps whose episodes end, are cut off, and are left by a reset that nobody tells of."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    sampled = lambda: [space.sample() for _ in range(n_envs)]
    obs = sampled()
    batch = lambda rows: (
        {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        if isinstance(space, spaces.Dict)
        else np.stack(rows)
    )
    while True:
        following, done = sampled(), rng.random(n_envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(rng.random() < 0.5)} for _ in range(n_envs)]
        reward = rng.standard_normal(n_envs).astype(np.float32)
        action = rng.uniform(-1, 1, (n_envs, 2)).astype(np.float32)
        yield batch(obs), batch(following), action, reward, done, infos
        again = done | (rng.random(n_envs) < 0.1)
        obs = [
            new if left else old for left, new, old in zip(again, sampled(), following, strict=True)
        ]


def made(n, *, n_envs=2, size=40, space=FLOATS, gamma=0.9, **options):
    options |= {"n_steps": n, "gamma": gamma, "seed": 0}
    buffer = ReplayBuffer(size, space, ACTIONS, "cpu", n_envs, **options)
    assert buffer.memory._uniform is not None
    return buffer


def of_all(buffer, read):
    """The fields of all stored rows; those without a mask are left out."""
    steps, envs = np.divmod(np.arange(buffer.size() * buffer.n_envs), buffer.n_envs)
    fields = read(steps, envs)
    fields.pop("rewards", None)
    fields.pop("ids", None)
    mask = fields.pop("mask")
    mask = np.ones(len(steps), bool) if mask is None else np.asarray(mask)
    return mask, jax.tree.map(lambda leaf: np.asarray(leaf)[mask], fields)


def check(buffer):
    """NumPy reads what the compiled view reads, before the steps are written and after."""
    memory = buffer.memory
    before = of_all(buffer, memory.take)
    compiled = of_all(buffer, lambda steps, envs: memory.read(memory.slots(steps, envs)))
    after = of_all(buffer, memory.take)
    for found in (before, after):
        np.testing.assert_array_equal(found[0], compiled[0])
        for (path, one), other in zip(
            jax.tree.leaves_with_path(found[1]), jax.tree.leaves(compiled[1]), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=jax.tree_util.keystr(path))
            assert one.dtype == other.dtype


@pytest.mark.parametrize(
    ("n", "n_envs", "space"),
    [
        (3, 2, FLOATS),
        (2, 1, FLOATS),
        pytest.param(7, 3, FLOATS, marks=pytest.mark.sweep),
        pytest.param(3, 2, DICT, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_every_row_is_that_of_the_view(n, n_envs, space, seed, monkeypatch):
    """Amid staged steps, around the end of the ring, and behind resets that nobody told of."""
    monkeypatch.setattr(_write_sizes, "SIZES", (1, 4, 16))
    buffer, steps = made(n, n_envs=n_envs, space=space), run(space, n_envs, seed)
    for count in (1, 2, 9, 3, 30, 1, 25):
        for step in itertools.islice(steps, count):
            buffer.add(*copy.deepcopy(step))
        check(buffer)
        buffer.memory.end(np.arange(n_envs) == 0)
        check(buffer)


def test_a_step_that_is_not_continued_ends_the_episode_before_it_is_written():
    buffer = made(3, n_envs=1)
    row = lambda value: np.full((1, 3), value, np.float32)
    none = np.zeros(1)
    for now, following in ((0, 1), (1, 2), (7, 8), (8, 9)):
        buffer.add(row(now), row(following), np.zeros((1, 2)), np.ones(1), none, [{}])
    fields = buffer.memory.take(np.arange(4), np.zeros(4, int))
    assert fields["reward"].ravel().tolist() == pytest.approx([1.9, 1, 1.9, 1])
    assert fields["next_observation"][:, 0].tolist() == [2, 2, 9, 9]
    buffer.add(row(9), row(10), np.zeros((1, 2)), np.ones(1), none, [{}])
    fields = buffer.memory.take(np.arange(5), np.zeros(5, int))
    assert fields["reward"].ravel().tolist() == pytest.approx([1.9, 1, 2.71, 1.9, 1])


def test_draws_go_on_when_the_number_of_steps_changes():
    buffer = made(3)
    for step in itertools.islice(run(FLOATS, 2, 0), 30):
        buffer.add(*copy.deepcopy(step))
    for n in (1, 5, 2):
        buffer.n_steps = n
        batch = buffer.sample(500)
        found = buffer.memory._uniform.view
        assert found == (fbuf.Transition() if n == 1 else fbuf.NStep(n, gamma=0.9))
        assert (batch.discounts is None) == (n == 1)
        if n > 1:
            powers = {np.float32(0.9) ** np.float32(k) for k in range(1, n + 1)}
            assert set(batch.discounts.ravel().tolist()) <= powers


def test_rows_are_drawn_alike():
    buffer = made(3, n_envs=2, size=16)
    for step in itertools.islice(run(FLOATS, 2, 0), 13):
        buffer.add(*copy.deepcopy(step))
    drawn = buffer.sample(40_000).observations[:, 0].numpy()
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 16
    expected = 40_000 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees: 1 in 10,000


def test_rewards_of_each_step_are_normalised():
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), clip_reward=1.0)
    env.reset()
    env.ret_rms.var = np.float64(0.25)
    buffer = ReplayBuffer(
        40, env.observation_space, env.action_space, "cpu", 1, n_steps=2, gamma=0.5, seed=0
    )
    none, obs = np.zeros(1), np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    for step in range(3):
        reward = np.array([0.25 * (step + 1)])
        buffer.add(obs[step], obs[step + 1], np.zeros((1, 1)), reward, none, [{}])
    rewards = set(np.round(buffer.sample(200, env).rewards.ravel().tolist(), 4))
    assert rewards == {round(0.5 + 0.5 * 1, 4), round(1 + 0.5 * 1, 4), 1}
