"""Reports of the buffers of Stable-Baselines3's algorithms."""

from __future__ import annotations

import pytest

pytest.importorskip("stable_baselines3")

from fbuf_adapters.sb3 import ReplayBuffer
from stable_baselines3 import DQN

import fbuf


def test_a_report():
    options = {"buffer_size": 1000, "learning_starts": 900, "device": "cpu", "seed": 0}
    cart = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, **options)
    cart.learn(800)
    report = fbuf.report(cart.replay_buffer)
    assert not report.findings, report
    assert report.figures["rows"] == 800  # also those that were not written yet
    car = DQN("MlpPolicy", "MountainCar-v0", replay_buffer_class=ReplayBuffer, **options)
    car.learn(800)
    found = [finding.name for finding in fbuf.report(car.replay_buffer).findings]
    assert found == ["rewards_constant"]
