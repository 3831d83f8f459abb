"""Offline to online: learn from a data set, then from batches that are half data set, half new.

Needs `pip install fbuf flax gymnax optax six`.
"""

import sys

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from fbuf_adapters.gymnax import Collector

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, GAMMA = 16, 0.98
OFFLINE, ONLINE = 100, 150  # rounds of 16 batches; those online also make 16 steps
env, _ = gymnax.make("CartPole-v1")
network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(2)])
optimiser = optax.adam(5e-4)
view = fbuf.NStep(3, gamma=GAMMA)


def clumsy(_, observation, key):
    """Push to the side that the pole leans to, but every other time to any side."""
    good = (observation[:, 2] > 0).astype(jnp.int32)
    return jnp.where(jax.random.bernoulli(key, 0.25, good.shape), 1 - good, good)


def greedy(params, observation, key):
    """Take the best action, but with a probability of 0.05 any."""
    best = network.apply(params, observation).argmax(-1)
    return jnp.where(jax.random.bernoulli(key, 0.025, best.shape), 1 - best, best)


@jax.jit
def learn(agent, buffers, key):
    """Take 16 steps of DQN, each from a batch with equal parts from all buffers."""

    def step(agent, key):
        params, target_params, opt_state = agent
        mixed = fbuf.sample_mixed([(buffer, 1) for buffer in buffers], key, 128, view=view)
        data = mixed.sample.data  # `item` is the drawn row; the rest is of the steps that follow
        next_value = network.apply(target_params, data.next_observation).max(-1)
        # The discount is 0 behind a termination. Values are from 0 to 1.
        target = (1 - GAMMA) * data.reward + data.discount * next_value

        def loss(params):
            q = network.apply(params, data.item["observation"])
            chosen = jnp.take_along_axis(q, data.item["action"][:, None], axis=1)[:, 0]
            return ((chosen - target) ** 2).mean()

        updates, opt_state = optimiser.update(jax.grad(loss)(params), opt_state)
        params = optax.apply_updates(params, updates)
        return (params, optax.incremental_update(params, target_params, 0.01), opt_state), None

    return jax.lax.scan(step, agent, jax.random.split(key, 16))[0]


def mean_return(policy, params, key):
    """Return the mean return of a policy over the episodes of 8,000 steps."""
    collector = Collector(env, policy, params, num_envs=NUM_ENVS, key=key)
    collector.collect(fbuf.init(collector.item, NUM_ENVS, **collector.options), 500)
    return 8000 / max(collector.stats()["episodes"], 1)  # CartPole gives a reward of 1 a step


init_key, data_key, online_key, test_key, key = jax.random.split(jax.random.key(SEED), 5)
params = network.init(init_key, jnp.zeros((1, 4)))
agent = (params, params, optimiser.init(params))

# The data set. Those of Minari, LeRobot and others: `fbuf_adapters.datasets.from_minari(...)`.
collector = Collector(env, clumsy, None, num_envs=NUM_ENVS, key=data_key)
offline = fbuf.init(collector.item, 960, next_of="observation", **collector.options)
offline = collector.collect(offline, 60)
for number in range(OFFLINE):
    agent = learn(agent, [offline], jax.random.fold_in(key, number))
of_data, of_offline = mean_return(clumsy, None, test_key), mean_return(greedy, agent[0], test_key)

collector = Collector(env, greedy, agent[0], num_envs=NUM_ENVS, key=online_key)
online = fbuf.init(collector.item, 32_000, next_of="observation", **collector.options)
for number in range(OFFLINE, OFFLINE + ONLINE):
    online = collector.collect(online, 16)
    agent = learn(agent, [offline, online], jax.random.fold_in(key, number))
    collector.publish(agent[0])
of_online = mean_return(greedy, agent[0], test_key)

fbuf.raise_on_fault(online)
print(f"mean return: {of_data:.0f} in the data set, {of_offline:.0f} after learning from it,")
print(f"{of_online:.0f} after going on with new rows")
if of_online < max(100, 1.5 * of_data):
    sys.exit("failed: it should be 100 and half more than in the data set")
print("It learned.")
