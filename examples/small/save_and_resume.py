"""A run that is killed, and goes on from its last save with environments that are reset.

Needs `pip install fbuf flax gymnax optax six`.
"""

import os
import signal
import subprocess
import sys
import tempfile

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from fbuf_adapters.gymnax import Collector

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, STEPS, ROUNDS, SAVE_EVERY, GAMMA = 16, 16, 250, 25, 0.98
env, _ = gymnax.make("CartPole-v1")
network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(2)])
optimiser = optax.adam(5e-4)


def policy(params_and_epsilon, observation, key):
    params, epsilon = params_and_epsilon
    explore_key, action_key = jax.random.split(key)
    best = network.apply(params, observation).argmax(-1)
    explore = jax.random.uniform(explore_key, best.shape) < epsilon
    return jnp.where(explore, jax.random.randint(action_key, best.shape, 0, 2), best)


@jax.jit
def learn(agent, buffer, key):
    def step(agent, key):
        params, target_params, opt_state = agent
        batch = fbuf.sample(buffer, key, 128, view=fbuf.NStep(3, gamma=GAMMA))
        data = batch.data  # `item` is the drawn row; the rest is of the steps that follow
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

    return jax.lax.scan(step, agent, jax.random.split(key, STEPS))[0]


def run(folder, killed_at=None):
    """Train from the beginning, or from the last save in the folder; returns where it began."""
    key, init_key = jax.random.split(jax.random.key(SEED))
    params = network.init(init_key, jnp.zeros((1, 4)))
    buffer, agent, first = None, (params, params, optimiser.init(params)), 0
    if fbuf.has_checkpoint(folder):
        # Open episodes are ended, because the environments of this process begin anew.
        buffer, (agent, first) = fbuf.load(folder, extra=(agent, first))
        print(f"goes on from round {first} with {int(fbuf.size(buffer)):,} rows")
    env_key = jax.random.fold_in(key, ROUNDS + first)  # not what the killed process began with
    collector = Collector(env, policy, (params, 1.0), num_envs=NUM_ENVS, key=env_key)
    if buffer is None:
        buffer = fbuf.init(collector.item, 80_000, next_of="observation", **collector.options)
    for number in range(first, ROUNDS):
        if number == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        collector.publish((agent[0], max(0.05, 1 - number / (0.2 * ROUNDS))))
        buffer = collector.collect(buffer, STEPS)
        agent = learn(agent, buffer, jax.random.fold_in(key, number))
        if (number + 1) % SAVE_EVERY == 0:
            buffer = fbuf.save(folder, buffer, extra=(agent, number + 1))
    return buffer, first


if len(sys.argv) > 2:  # in the process that is to be killed
    run(sys.argv[2], killed_at=110)

with tempfile.TemporaryDirectory() as folder:
    killed = subprocess.run([sys.executable, __file__, str(SEED), folder])
    print(f"a process ended with the code {killed.returncode}")
    buffer, first = run(folder)

fbuf.raise_on_fault(buffer)
rows = fbuf.rows(buffer)  # [16, 4000]: those of each environment, oldest first
last = rows.terminated[:, -1000:] | rows.truncated[:, -1000:]
mean_return = last.size / max(int(last.sum()), 1)  # CartPole gives a reward of 1 a step
print(f"the buffer has {rows.mask.sum():,} rows; the mean return is {mean_return:.0f}")
if first != 100 or rows.mask.sum() != NUM_ENVS * STEPS * ROUNDS:
    sys.exit("failed: something was lost")
if mean_return < 100:
    sys.exit(f"failed: a mean return of {mean_return:.0f}, below 100")
print("Nothing was lost, and it learned.")
