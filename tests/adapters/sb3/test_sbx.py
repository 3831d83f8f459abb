"""Batches of JAX arrays, as SBX takes them: on the memory of the tensors that they would be."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters.sb3 import PrioritizedDQN, PrioritizedSAC, ReplayBuffer
from fbuf_adapters.sb3._jax_arrays import JaxTensor
from gymnasium import spaces
from stable_baselines3.common.envs import IdentityEnvBox
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import fbuf

FLOATS = spaces.Box(-10, 10, (3,), np.float32)
DOUBLES = spaces.Box(-10, 10, (3,), np.float64)
IMAGES = spaces.Box(0, 255, (3, 36, 36), np.uint8)
SPACES = {
    "float32": FLOATS,
    "images": IMAGES,
    "binary": spaces.MultiBinary(3),
    "float16": spaces.Box(-10, 10, (3,), np.float16),
    "uint16": spaces.Box(0, 2**16 - 1, (3,), np.uint16),
    "dict": spaces.Dict({"a": FLOATS, "b": IMAGES}),
}
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
STEPS = {"n_steps": 3, "gamma": 0.9}


def filled(space, actions=ACTIONS, **options):
    """A buffer of 20 steps; the same for the same space."""
    buffer = ReplayBuffer(64, space, actions, "cpu", **{"arrays": "jax", "seed": 0} | options)
    buffer.memory._uniform = None  # or batches of tensors would have other rows
    rng = np.random.default_rng(0)
    space.seed(0), actions.seed(0)
    observe = lambda: jax.tree.map(lambda x: np.asarray(x)[None], space.sample())
    obs = observe()
    for step in range(20):
        following = observe()
        reward, done = rng.standard_normal(1), np.array([step % 7 == 6])
        buffer.add(obs, following, np.array([actions.sample()]), reward, done, [{}])
        obs = observe() if done else following
    return buffer


@pytest.fixture
def crossings(monkeypatch):
    """Tells of each tensor that became an array whether both have the same memory."""
    plain, told = JaxTensor.of.__func__, []

    def of(cls, tensor):
        made = plain(cls, tensor)
        told.append(tensor.data_ptr() == made.array.unsafe_buffer_pointer())
        return made

    monkeypatch.setattr(JaxTensor, "of", classmethod(of))
    return told


def numpy(batch):
    """The leaves of a batch, by `numpy()`."""
    leaves = jax.tree.leaves(tuple(batch), is_leaf=lambda leaf: hasattr(leaf, "numpy"))
    return [leaf.numpy() for leaf in leaves]


def assert_same(batch, wanted):
    for one, other in zip(numpy(batch), numpy(wanted), strict=True):
        assert isinstance(one, jax.Array)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.first(3)
@pytest.mark.parametrize("batch_size", [3, 256])
@pytest.mark.parametrize("name", SPACES)
def test_no_number_is_copied(crossings, name, batch_size):
    options = STEPS if name == "float32" else {}
    batch = filled(SPACES[name], **options).sample(batch_size)
    assert len(crossings) == len(numpy(batch))
    assert all(crossings)
    assert_same(batch, filled(SPACES[name], arrays="torch", **options).sample(batch_size))


def test_64_bits_are_cut_as_jax_does():
    """Observations of MuJoCo are float64, and discrete actions int64."""
    batch = filled(DOUBLES, spaces.Discrete(5)).sample(16)
    wanted = filled(DOUBLES, spaces.Discrete(5), arrays="torch").sample(16)
    for name in ("observations", "next_observations"):
        array = getattr(batch, name).numpy()
        assert array.dtype == jnp.float32
        np.testing.assert_array_equal(array, getattr(wanted, name).float().numpy())
    actions = batch.actions.long().numpy()
    assert actions.dtype == jnp.int32
    np.testing.assert_array_equal(actions, wanted.actions.numpy())


def test_64_bits_are_kept_where_jax_has_them():
    with jax.enable_x64(True):
        batch = filled(DOUBLES, spaces.Discrete(5)).sample(16)
        assert batch.actions.long().numpy().dtype == jnp.int64
        assert_same(batch, filled(DOUBLES, spaces.Discrete(5), arrays="torch").sample(16))


@pytest.mark.first(2)
@pytest.mark.parametrize("options", [{}, STEPS])
@pytest.mark.parametrize("space", [FLOATS, DOUBLES, spaces.Dict({"a": FLOATS, "b": DOUBLES})])
def test_batches_are_normalised(space, options):
    env = VecNormalize(DummyVecEnv([lambda: Spaced(space)]), norm_obs_keys=None)
    env.ret_rms.var = np.array(4.0)
    for rms in env.obs_rms.values() if isinstance(env.obs_rms, dict) else [env.obs_rms]:
        rms.mean, rms.var = rms.mean + 1.0, rms.var * 9.0
    batch = filled(space, **options).sample(17, env)
    assert_same(batch, filled(space, arrays="torch", **options).sample(17, env))
    assert abs(numpy(batch)[0]).max() < 4


class Spaced(IdentityEnvBox):
    def __init__(self, space):
        super().__init__()
        self.observation_space = space


def test_what_sbx_calls_gives_the_array_itself():
    batch = filled(FLOATS, spaces.Discrete(5), **STEPS).sample(6)
    dones, rewards = batch.dones, batch.rewards
    assert batch.observations.numpy() is batch.observations.array
    assert len(dones) == 6
    assert dones.shape == (6, 1)
    assert dones.dtype == jnp.float32
    assert rewards.flatten().numpy().shape == rewards.numpy().flatten().shape == (6,)
    np.testing.assert_array_equal(rewards.flatten().numpy(), rewards.numpy()[:, 0])
    both = np.concatenate([dones.numpy(), rewards], axis=1)
    np.testing.assert_array_equal(both, jnp.hstack([dones.array, rewards.array]))
    assert np.asarray(rewards, np.float64).dtype == np.float64
    assert jax.jit(jnp.sum)(batch.discounts.numpy()) > 0


@pytest.mark.sweep
def test_a_batch_is_its_own_whatever_comes_after():
    buffer = filled(FLOATS)
    batches = [buffer.sample(256) for _ in range(3)]
    kept = [[np.array(leaf) for leaf in numpy(batch)] for batch in batches]
    for _ in range(70):
        row = np.ones((1, 3), np.float32)
        buffer.add(row, row, np.ones((1, 2)), np.ones(1), np.ones(1), [{}])
        buffer.sample(256)
    for batch, wanted in zip(batches, kept, strict=True):
        for one, other in zip(numpy(batch), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_gives_arrays(way):
    buffer = filled(FLOATS)
    assert_same(way(buffer).sample(5), buffer.sample(5))


def test_a_loss_that_knows_no_weights_is_refused():
    buffer = filled(FLOATS, sampler=fbuf.Prioritized())
    buffer.sample(4)
    with pytest.raises(RuntimeError, match="For SBX, whose losses know no weights, leave the sam"):
        buffer.sample(4)


def test_a_loss_in_jax_takes_weights_and_gives_priorities():
    buffer = filled(FLOATS, sampler=fbuf.Prioritized(alpha=1.0))
    batch = buffer.sample(200)
    assert batch.weights.numpy().shape == (200, 1)
    largest = float(batch.rewards.numpy().max())
    error = (batch.rewards.numpy() == largest).astype(jnp.float32)
    buffer.update_priority(batch.ids, error)
    assert (buffer.sample(200).rewards.numpy() == largest).mean() > 0.9


@pytest.mark.parametrize(
    ("kind", "env"), [(PrioritizedDQN, "CartPole-v1"), (PrioritizedSAC, "Pendulum-v1")]
)
def test_losses_of_torch_take_no_arrays_of_jax(kind, env):
    with pytest.raises(ValueError, match="arrays='jax' has no losses of torch"):
        kind("MlpPolicy", env, replay_buffer_kwargs={"arrays": "jax"})
