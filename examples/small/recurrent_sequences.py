"""A recurrent DQN that learns from sequences: CartPole without its velocities.

Needs `pip install fbuf flax gymnax optax six`.
"""

import sys

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, STEPS, GAMMA, HIDDEN = 16, 4000, 0.98, 64
SEEN = jnp.array([0, 2])  # the position and the angle, but not how fast they change
env, _ = gymnax.make("CartPole-v1")
optimiser = optax.adam(optax.linear_schedule(1e-3, 0.0, STEPS))
# 4 steps bring the stored state up to date, 16 are learned from, and the last one is for targets.
view = fbuf.Sequence(16, burn_in=4, bootstrap=1, boundary="cross", state="hidden", time_major=True)


class Network(nn.Module):
    """A GRU between two layers."""

    @nn.compact
    def __call__(self, hidden, observation, is_first):
        """Return the new state and the action values of one step."""
        hidden = jnp.where(is_first[:, None], 0, hidden)
        hidden, x = nn.GRUCell(HIDDEN)(hidden, nn.relu(nn.Dense(HIDDEN)(observation)))
        return hidden, nn.Dense(2)(x)


def unroll(params, sequence):
    """Return the action values of each step, `[time, batch, actions]`."""
    steps = sequence.item["observation"], sequence.is_first
    return jax.lax.scan(lambda h, s: Network().apply(params, h, *s), sequence.state, steps)[1]


def learn(params, target_params, opt_state, batch):
    """Take a step of DQN on all steps of the sequences."""
    sequence = batch.data
    value = unroll(target_params, sequence).max(-1)
    reward = (1 - GAMMA) * sequence.item["reward"]
    found = fbuf.targets.lambda_returns(batch, reward, value, gamma=GAMMA, lambda_=0.0)

    def loss(params):
        action = sequence.item["action"][..., None]
        chosen = jnp.take_along_axis(unroll(params, sequence), action, axis=-1)[..., 0]
        return jnp.where(found.mask, (chosen - found.target) ** 2, 0).mean()

    updates, opt_state = optimiser.update(jax.grad(loss)(params), opt_state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target_params, 0.01), opt_state


def step(carry, number_and_key):
    buffer, params, target_params, opt_state, hidden, ended, observation, env_state = carry
    number, key = number_and_key
    explore_key, action_key, step_key, sample_key = jax.random.split(key, 4)
    rows = {"observation": observation[:, SEEN], "hidden": hidden}
    hidden, q = Network().apply(params, hidden, rows["observation"], ended)
    epsilon = jnp.maximum(0.05, 1 - number / (0.2 * STEPS))
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, jax.random.randint(action_key, (NUM_ENVS,), 0, 2), q.argmax(-1))
    stepped = jax.vmap(env.step)(jax.random.split(step_key, NUM_ENVS), env_state, action)
    observation, env_state, reward, terminated, truncated, _ = stepped
    rows |= {"action": action, "reward": reward}
    buffer = fbuf.add(buffer, rows, terminated=terminated, truncated=truncated)
    batch = fbuf.sample(buffer, sample_key, 32, view=view)
    buffer = fbuf.after(buffer, batch)  # what is written from here on waits for the batch
    params, target_params, opt_state = learn(params, target_params, opt_state, batch)
    agent, ended = (buffer, params, target_params, opt_state, hidden), terminated | truncated
    return (*agent, ended, observation, env_state), ended


@jax.jit
def train(key):
    """Train an agent; returns the buffer, and which steps ended an episode."""
    init_key, reset_key, train_key = jax.random.split(key, 3)
    observation, env_state = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
    hidden, ended = jnp.zeros((NUM_ENVS, HIDDEN)), jnp.ones(NUM_ENVS, bool)
    params = Network().init(init_key, hidden, observation[:, SEEN], ended)
    item = {"observation": jnp.zeros(2), "action": jnp.int32(0), "reward": 0.0}
    buffer = fbuf.init({**item, "hidden": jnp.zeros(HIDDEN)}, 64_000, num_envs=NUM_ENVS)
    carry = buffer, params, params, optimiser.init(params), hidden, ended, observation, env_state
    numbers_and_keys = (jnp.arange(STEPS), jax.random.split(train_key, STEPS))
    carry, ended = jax.lax.scan(step, carry, numbers_and_keys)
    return carry[0], ended


buffer, ended = train(jax.random.key(SEED))
fbuf.raise_on_fault(buffer)
returns = ended.size / 10 / ended.reshape(10, -1).sum(axis=1).clip(1)  # a reward of 1 a step
print("mean return of an episode, tenth by tenth of the run:", *returns.round().astype(int))
if returns[-1] < 100:
    sys.exit(f"failed: a mean return of {returns[-1]:.0f}, below 100")
print("It learned.")
