"""Prioritised replay with a beta that is annealed to 1, in one compiled scan.

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
    """Take a weighted step of DQN; also returns the size of each row's TD error."""
    data = batch.data
    next_value = network.apply(target_params, data["next_observation"]).max(-1)
    # Bootstrap through a truncation, not through a termination. Values are from 0 to 1.
    target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated

    def loss(params):
        q = network.apply(params, data["observation"])
        chosen = jnp.take_along_axis(q, data["action"][:, None], axis=1)[:, 0]
        error = chosen - target
        return (batch.weight * error**2).mean(), jnp.abs(error)

    gradient, td_error = jax.grad(loss, has_aux=True)(params)
    updates, opt_state = optimiser.update(gradient, opt_state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target_params, 0.01), opt_state, td_error


def step(carry, number_and_key):
    """Act, add, draw, learn, and give the drawn rows their new priorities."""
    buffer, params, target_params, opt_state, observation, env_state = carry
    number, key = number_and_key
    act_key, sample_key = jax.random.split(key)
    epsilon = jnp.maximum(0.05, 1 - number / (0.2 * STEPS))
    observation, env_state, rows, ends = act(params, observation, env_state, epsilon, act_key)
    buffer = fbuf.add(buffer, rows, **ends)
    batch = fbuf.sample(buffer, sample_key, 128, beta=0.4 + 0.6 * number / STEPS)
    params, target_params, opt_state, td_error = learn(params, target_params, opt_state, batch)
    buffer = fbuf.update_priority(buffer, batch.ids, td_error)
    carry = buffer, params, target_params, opt_state, observation, env_state
    return carry, ends["terminated"] | ends["truncated"]


def begin(key):
    """Return an empty buffer, networks, and environments."""
    init_key, reset_key = jax.random.split(key)
    observation, env_state = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
    params = network.init(init_key, observation)
    item = {"observation": observation[0], "action": jnp.int32(0), "reward": 0.0}
    item["next_observation"] = observation[0]
    buffer = fbuf.init(item, 80_000, num_envs=NUM_ENVS, sampler=fbuf.Prioritized(alpha=0.6))
    copied = jax.tree.map(jnp.copy, params)  # an array can be donated once only
    return buffer, params, copied, optimiser.init(params), observation, env_state


train = jax.jit(lambda carry, given: jax.lax.scan(step, carry, given), donate_argnums=0)
begin_key, train_key = jax.random.split(jax.random.key(SEED))
given = begin(begin_key), (jnp.arange(STEPS), jax.random.split(train_key, STEPS))
fbuf.check_in_place(train, *given)  # raises if a step copied the buffer
(buffer, *_), ended = train(*given)
fbuf.raise_on_fault(buffer)
tenths = ended.reshape(10, -1)
returns = tenths.shape[1] / tenths.sum(axis=1).clip(1)  # CartPole gives a reward of 1 a step
print("mean return of an episode, tenth by tenth of the run:", *returns.round().astype(int))
if returns[-1] < 100:
    sys.exit(f"failed: a mean return of {returns[-1]:.0f}, below 100")
print("It learned.")
