"""The vector environments of envpool are collected as they step by themselves."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("envpool")  # no extra of fbuf, and in no lock file

import envpool
from fbuf_adapters.gymnasium import Collector
from gymnasium.vector import AutoresetMode

import fbuf

# Gymnasium says it of the spaces of envpool.
pytestmark = pytest.mark.filterwarnings("ignore:.*Box:UserWarning")

NUM_ENVS, STEPS = 3, 70


def make():
    return envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=NUM_ENVS, seed=7, max_episode_steps=20
    )


def policy(observation):
    return (observation[:, 0] * 1000).astype(np.int32) % 2  # some fall, some do not


def stepped():
    """Each transition of each environment; the step after an end only resets."""
    envs, found = make(), [[] for _ in range(NUM_ENVS)]
    observation, _ = envs.reset()
    observation, resets = observation.copy(), np.zeros(NUM_ENVS, bool)
    for _ in range(STEPS):
        action = policy(observation)
        following, reward, terminated, truncated, _ = envs.step(action)
        for env in np.flatnonzero(~resets):
            row = observation[env], action[env], reward[env], terminated[env], truncated[env]
            found[env].append([np.copy(part) for part in (*row, following[env])])
        observation, resets = following.copy(), terminated | truncated
    envs.close()
    return found


def test_every_step_is_in_the_buffer():
    with Collector(make(), policy, chunk=16) as collector:
        assert collector.options == {"num_envs": NUM_ENVS, "autoreset": "next_step"}
        state = fbuf.init(collector.item, 300, next_of="observation", **collector.options)
        state = collector.collect(collector.collect(state, 33), STEPS - 33)
    fbuf.raise_on_fault(state)
    batch = fbuf.rollout(state, view=fbuf.Transition())
    item, flags = batch.data.item, (batch.terminated, batch.truncated)
    columns = item["observation"], item["action"], item["reward"], *flags
    whole = stepped()
    for flag in (3, 4):
        assert any(row[flag] for expected in whole for row in expected), "ends of both kinds"
    for env, expected in enumerate(whole):
        there = np.asarray(batch.mask[env])
        for column, wanted in zip(
            (*columns, batch.data.next_observation), zip(*expected, strict=True), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(column[env])[there], np.stack(wanted))


def test_a_version_that_does_not_say_how_it_resets():
    envs = make()
    said = envs.metadata
    envs.metadata = {name: said[name] for name in said.keys() - {"autoreset_mode"}}
    with pytest.raises(ValueError, match="does not say what the environments do at the end"):
        Collector(envs, policy)
    envs.metadata = {**(envs.metadata or {}), "autoreset_mode": AutoresetMode.NEXT_STEP}
    with Collector(envs, policy) as collector:
        assert collector.options["autoreset"] == "next_step"
