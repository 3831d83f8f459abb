"""brax's own SAC trains with the buffers, on one device and on two, by one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters import brax as buffers

pytestmark = [
    pytest.mark.sweep,
    # brax says on import that it is not developed any further.
    pytest.mark.filterwarnings("ignore:Brax System:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def sac(monkeypatch):
    pytest.importorskip("brax")
    from brax.training.agents.sac import train as sac

    def replicated(tree, devices):
        mesh = jax.sharding.Mesh(np.array(devices), ("device",))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        return jax.tree.map(
            lambda leaf: jax.device_put(jnp.stack([leaf] * len(devices)), place), tree
        )

    if not hasattr(jax, "device_put_replicated"):  # brax 0.14.2 calls it; JAX 0.10 has it no more
        monkeypatch.setattr(jax, "device_put_replicated", replicated, raising=False)
    monkeypatch.setattr(sac, "replay_buffers", buffers)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield sac


def point():
    """A point to be moved to the origin."""
    from brax.envs.base import Env, State

    class Point(Env):
        observation_size, action_size, backend = 2, 2, "none"

        def reset(self, rng):
            place = jax.random.uniform(rng, (2,), minval=-1, maxval=1)
            zero = jnp.zeros(())
            return State(None, place, zero, zero)

        def step(self, state, action):
            place = jnp.clip(state.obs + 0.3 * action, -1, 1)
            return state.replace(obs=place, reward=-jnp.sum(place**2))

    return Point()


@pytest.mark.parametrize("devices", [1, 2])
def test_sac_learns_with_our_buffer_in_place_of_its_own(sac, devices):
    reports = []
    sac.train(
        point(),
        num_timesteps=4096,
        episode_length=20,
        num_envs=8,
        num_eval_envs=16,
        num_evals=2,
        batch_size=64,
        grad_updates_per_step=4,
        learning_rate=3e-3,
        min_replay_size=512,
        max_replay_size=1024,
        max_devices_per_host=devices,
        progress_fn=lambda _, metrics: reports.append(metrics),
    )
    before, after = (float(one["eval/episode_reward"]) for one in reports)
    assert after > before / 2  # rewards are below 0
    assert float(reports[-1]["training/buffer_current_size"]) > 0.8 * 1024 / devices
