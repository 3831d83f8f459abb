"""Gymnasium's environments by a collector, and DQN in JAX.

Needs `pip install "fbuf[gymnasium]" flax optax`.
"""

import sys

import flax.linen as nn
import gymnasium
import jax
import numpy as np
import optax
from fbuf_adapters.gymnasium import Collector

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, ROUNDS, STEPS_A_ROUND, BATCHES_A_ROUND, GAMMA = 8, 250, 16, 16, 0.98
network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(2)])
optimiser = optax.adam(5e-4)


class Policy:
    """Takes the best action, or by chance any."""

    def __init__(self, params):
        self.params, self.epsilon = params, 1.0
        self.random = np.random.default_rng(SEED)
        self.best = jax.jit(
            lambda params, observation: network.apply(params, observation).argmax(-1)
        )

    def __call__(self, observation):
        """Return the actions of all environments, as NumPy has them."""
        best = np.asarray(self.best(self.params, observation))
        explore = self.random.random(NUM_ENVS) < self.epsilon
        return np.where(explore, self.random.integers(2, size=NUM_ENVS), best)


@jax.jit
def learn(agent, state, key):
    """Take some steps of DQN, from batches of the rows as they are now."""

    def step(agent, key):
        params, target_params, opt_state = agent
        batch = fbuf.sample(state, key, 128, view=fbuf.NStep(3, gamma=GAMMA))
        data = batch.data  # `item` is the drawn row; the rest is of the steps that follow
        next_value = network.apply(target_params, data.next_observation).max(-1)
        # The discount is 0 behind a termination. Values are from 0 to 1.
        target = (1 - GAMMA) * data.reward + data.discount * next_value

        def loss(params):
            q = network.apply(params, data.item["observation"])
            chosen = q[np.arange(128), data.item["action"]]
            return ((chosen - target) ** 2).mean()

        updates, opt_state = optimiser.update(jax.grad(loss)(params), opt_state)
        params = optax.apply_updates(params, updates)
        return (params, optax.incremental_update(params, target_params, 0.01), opt_state), None

    return jax.lax.scan(step, agent, jax.random.split(key, BATCHES_A_ROUND))[0]


init_key, key = jax.random.split(jax.random.key(SEED))
params = network.init(init_key, np.zeros((1, 4), np.float32))
agent = (params, params, optimiser.init(params))
policy = Policy(params)
envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="sync")
with Collector(envs, policy, seed=SEED) as collector:
    # The collector knows one row, and how its environments reset.
    state = fbuf.init(collector.item, 20_000, next_of="observation", **collector.options)
    for number in range(ROUNDS):
        policy.params = agent[0]
        policy.epsilon = max(0.05, 1 - number / (0.2 * ROUNDS))
        state = collector.collect(state, STEPS_A_ROUND)
        agent = learn(agent, state, jax.random.fold_in(key, number))
        if number % 25 == 24:
            mean_return = collector.stats()["mean_return"]
            print(
                f"{collector.stats()['steps']:>6} steps, mean return {mean_return:.0f}", flush=True
            )

fbuf.raise_on_fault(state)
if mean_return < 100:
    sys.exit(f"failed: a mean return of {mean_return:.0f}, below 100")
print("It learned.")
