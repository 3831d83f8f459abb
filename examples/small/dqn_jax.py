"""DQN all in JAX: acting, replay and learning are one compiled scan.

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
NUM_ENVS, STEPS, GAMMA = 16, 5000, 0.98
env, _ = gymnax.make("CartPole-v1")
network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(2)])
optimiser = optax.adam(optax.linear_schedule(1e-3, 0.0, STEPS))


def act(params, observation, env_state, epsilon, key):
    """Take one step in all environments; returns their states, and the rows to store."""
    explore_key, action_key, step_key = jax.random.split(key, 3)
    greedy = network.apply(params, observation).argmax(-1)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, jax.random.randint(action_key, (NUM_ENVS,), 0, 2), greedy)
    keys = jax.random.split(step_key, NUM_ENVS)
    then, env_state, reward, terminated, truncated, info = jax.vmap(env.step)(
        keys, env_state, action
    )
    rows = {
        "observation": observation,
        "action": action,
        "reward": reward,
        # At an end `then` is the first observation of the next episode, and this is the last one.
        "next_observation": info["final_observation"],
    }
    return then, env_state, rows, {"terminated": terminated, "truncated": truncated}


def learn(params, target_params, opt_state, batch):
    """Take a step of DQN."""
    data = batch.data
    next_value = network.apply(target_params, data["next_observation"]).max(-1)
    # Bootstrap through a truncation, not through a termination. Values are from 0 to 1.
    target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated

    def loss(params):
        q = network.apply(params, data["observation"])
        chosen = jnp.take_along_axis(q, data["action"][:, None], axis=1)[:, 0]
        return ((chosen - target) ** 2).mean()

    updates, opt_state = optimiser.update(jax.grad(loss)(params), opt_state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target_params, 0.01), opt_state


def step(carry, number_and_key):
    """Act, add, draw and learn."""
    buffer, params, target_params, opt_state, observation, env_state = carry
    number, key = number_and_key
    act_key, sample_key = jax.random.split(key)
    epsilon = jnp.maximum(0.05, 1 - number / (0.2 * STEPS))
    observation, env_state, rows, ends = act(params, observation, env_state, epsilon, act_key)
    buffer = fbuf.add(buffer, rows, **ends)
    batch = fbuf.sample(buffer, sample_key, 128)
    params, target_params, opt_state = learn(params, target_params, opt_state, batch)
    ended = ends["terminated"] | ends["truncated"]
    return (buffer, params, target_params, opt_state, observation, env_state), ended


@jax.jit
def train(key):
    """Train an agent; returns the buffer, and which steps ended an episode."""
    init_key, reset_key, train_key = jax.random.split(key, 3)
    observation, env_state = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
    params = network.init(init_key, observation)
    item = {"observation": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
    item["next_observation"] = jnp.zeros(4)
    buffer = fbuf.init(item, capacity=80_000, num_envs=NUM_ENVS)
    carry = (buffer, params, params, optimiser.init(params), observation, env_state)
    numbers_and_keys = (jnp.arange(STEPS), jax.random.split(train_key, STEPS))
    carry, ended = jax.lax.scan(step, carry, numbers_and_keys)
    return carry[0], ended


buffer, ended = train(jax.random.key(SEED))
fbuf.raise_on_fault(buffer)
tenths = ended.reshape(10, -1)
returns = tenths.shape[1] / tenths.sum(axis=1).clip(1)  # CartPole gives a reward of 1 a step
print("mean return of an episode, tenth by tenth of the run:", *returns.round().astype(int))
if returns[-1] < 100:
    sys.exit(f"failed: a mean return of {returns[-1]:.0f}, below 100")
print("It learned.")
