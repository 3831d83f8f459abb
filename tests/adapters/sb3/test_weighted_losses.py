"""Prioritised replay in algorithms that know no weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import PrioritizedDQN, PrioritizedSAC, ReplayBuffer
from fbuf_adapters.sb3 import PrioritizedTD3 as TD3WithPriorities
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from torch.nn import functional

import fbuf

SMALL = {"buffer_size": 200, "learning_starts": 20, "batch_size": 16, "seed": 0, "device": "cpu"}
SWEEP = pytest.mark.sweep


def buffer(**options):
    made = ReplayBuffer(
        64, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), "cpu",
        sampler=fbuf.Prioritized(alpha=1, eps=0), seed=0, **options,
    )  # fmt: skip
    for at in range(32):
        obs = np.full((1, 2), at / 32, np.float32)
        made.add(obs, obs + 1 / 32, np.zeros(1, int), np.full(1, float(at)), [False], [{}])
    first = made.sample(512)
    priority = 1 + (first.observations[:, 0] * 32).round()
    made.update_priority(first.ids, priority)
    return made


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
def test_losses_are_weighted_and_their_errors_become_priorities(loss):
    made = buffer()
    value = torch.nn.Linear(2, 1)
    with made.weighted_losses():
        batch = made.sample(64)
        target = batch.rewards + (1 - batch.dones) * 0.9 * torch.ones(64, 1)
        current = value(batch.observations)
        found = 0.5 * sum(loss(x, target) for x in (current, 2 * current))
        found.backward()
    gradient = value.weight.grad.clone()
    value.zero_grad()
    plain = target.as_subclass(torch.Tensor)
    weights = batch.weights
    assert 0 < float(weights.min()) < float(weights.max()) == 1
    each = sum(
        loss(x, plain, reduction="none")
        for x in (value(batch.observations), 2 * value(batch.observations))
    )
    wanted = 0.5 * (weights * each).mean()
    wanted.backward()
    torch.testing.assert_close(torch.Tensor(found.detach()), wanted.detach())
    torch.testing.assert_close(gradient, value.weight.grad)
    errors = ((current - plain).abs() + (2 * current - plain).abs()).detach() / 2
    ids = batch.ids
    state = made.memory.state
    likely = fbuf.probability(state, fbuf.Ids(np.asarray(ids.slot), np.asarray(ids.generation)))
    last = {int(slot): float(error) for slot, error in zip(ids.slot, errors, strict=True)}
    mass = np.array([last[int(slot)] for slot in ids.slot])
    ratio = np.asarray(likely) / mass
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


def test_a_loss_that_is_not_known_says_so():
    made = buffer()

    def learn(loss):
        with made.weighted_losses():
            loss(made.sample(8))

    with pytest.raises(RuntimeError, match="no loss of the last batch"):
        learn(lambda batch: (batch.rewards - 1).abs().mean())
    with pytest.raises(ValueError, match="must be of values and targets"):
        learn(lambda batch: functional.mse_loss(torch.zeros(8, 5), batch.rewards.expand(8, 5)))
    with pytest.raises(ValueError, match="weighted as a mean"):
        learn(lambda batch: functional.mse_loss(torch.zeros(8, 1), batch.rewards, reduction="sum"))
    assert type(made.sample(4).rewards) is torch.Tensor


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "env"),
    [
        (PrioritizedDQN, "CartPole-v1"),
        pytest.param(PrioritizedSAC, "Pendulum-v1", marks=SWEEP),
        pytest.param(TD3WithPriorities, "Pendulum-v1", marks=SWEEP),
    ],
)
def test_algorithms_learn_and_go_on_after_a_load(kind, env, tmp_path):
    model = kind("MlpPolicy", env, train_freq=1, **SMALL).learn(40)
    assert model.replay_buffer.beta == 1  # at the end of the run
    likely = fbuf.probability(
        model.replay_buffer.memory.state,
        fbuf.ids_at(model.replay_buffer.memory.state, np.arange(40, dtype=np.int32)),
    )
    assert len(set(np.asarray(likely).round(7))) > 10
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows")
    again = kind.load(tmp_path / "model", env=model.get_env())
    again.load_replay_buffer(tmp_path / "rows")
    again.learn(20, reset_num_timesteps=False)
    assert again.replay_buffer.size() == 60


@pytest.mark.parametrize(
    ("kind", "env"),
    [
        (DQN, "CartPole-v1"),
        pytest.param(SAC, "Pendulum-v1", marks=SWEEP),
        pytest.param(TD3, "Pendulum-v1", marks=SWEEP),
    ],
)
def test_a_plain_algorithm_is_refused_priorities(kind, env):
    options = {
        "replay_buffer_class": ReplayBuffer,
        "replay_buffer_kwargs": {"sampler": fbuf.Prioritized()},
    }
    model = kind("MlpPolicy", env, train_freq=1, **SMALL, **options)
    with pytest.raises(RuntimeError, match="PrioritizedDQN"):
        model.learn(40)


def test_priorities_and_plain_algorithms_exchange_files(tmp_path):
    """A plain one refuses rows by priority; one with priorities takes a plain model."""
    prioritised = PrioritizedDQN("MlpPolicy", "CartPole-v1", train_freq=1, **SMALL).learn(30)
    prioritised.save_replay_buffer(tmp_path / "rows")
    plain = DQN("MlpPolicy", "CartPole-v1", train_freq=1, **SMALL).learn(30)
    plain.save(tmp_path / "model")
    plain.load_replay_buffer(tmp_path / "rows")
    with pytest.raises(RuntimeError, match="PrioritizedDQN"):
        plain.learn(20, reset_num_timesteps=False)
    loaded = PrioritizedDQN.load(tmp_path / "model", env=plain.get_env())
    loaded.learn(30)
    assert loaded.replay_buffer.beta == 1


def test_a_run_that_diverged_says_so():
    made = buffer()
    with pytest.raises(ValueError, match="TD errors must be finite"):
        made.update_priority(made.sample(2).ids, torch.tensor([1.0, float("nan")]))


def test_misuse():
    with pytest.raises(TypeError, match="must be a ReplayBuffer of fbuf_adapters"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=dict)
    with pytest.raises(ValueError, match="must keep priorities"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"sampler": fbuf.Uniform()})
    with pytest.raises(ValueError, match="keeps no priorities"):
        ReplayBuffer(8, spaces.Discrete(2), spaces.Discrete(2)).update_priority(None, np.ones(1))
