"""DQN on a mesh of four devices, simulated on the CPU: one buffer, drawn from by all of them.

Needs `pip install fbuf flax gymnax optax six`.
"""

import os
import sys

# Leave this out where there are real devices.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, STEPS, GAMMA = 16, 4000, 0.98  # of all devices together
mesh = jax.make_mesh((jax.device_count(),), ("data",))
split, same = jax.P("data"), jax.P()  # an equal part on each device; all on each
env, _ = gymnax.make("CartPole-v1")
network = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(2)])
optimiser = optax.adam(optax.linear_schedule(1e-3, 0.0, STEPS))


def learn(params, target_params, opt_state, batch):
    """Take a step of DQN, with the mean of the gradients of all devices."""
    data = batch.data
    next_value = network.apply(target_params, data["next_observation"]).max(-1)
    target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated

    def loss(params):
        q = network.apply(params, data["observation"])
        chosen = jnp.take_along_axis(q, data["action"][:, None], axis=1)[:, 0]
        return ((chosen - target) ** 2).mean()

    # Without this JAX adds up the gradients of all devices by itself, and takes no mean.
    own = jax.lax.pcast(params, "data", to="varying")
    gradient = jax.lax.pmean(jax.grad(loss)(own), "data")
    updates, opt_state = optimiser.update(gradient, opt_state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target_params, 0.01), opt_state


def step(carry, number_and_key):
    """Act, add, draw and learn: what each device does."""
    buffer, params, target_params, opt_state, observation, env_state = carry
    number, key = number_and_key
    key, sample_key = jax.random.split(key)
    key = jax.random.fold_in(key, jax.lax.axis_index("data"))  # another one on each device
    explore_key, action_key, step_key = jax.random.split(key, 3)
    here = len(observation)  # 4 environments on each device
    epsilon = jnp.maximum(0.05, 1 - number / (0.2 * STEPS))
    explore = jax.random.uniform(explore_key, (here,)) < epsilon
    greedy = network.apply(params, observation).argmax(-1)
    action = jnp.where(explore, jax.random.randint(action_key, (here,), 0, 2), greedy)
    then, env_state, reward, terminated, truncated, info = jax.vmap(env.step)(
        jax.random.split(step_key, here), env_state, action
    )
    rows = {"observation": observation, "action": action, "reward": reward}
    rows["next_observation"] = info["final_observation"]
    buffer = fbuf.add(buffer, rows, terminated=terminated, truncated=truncated)
    batch = fbuf.sample(buffer, sample_key, 128)  # the same key on all; 32 rows on each
    params, target_params, opt_state = learn(params, target_params, opt_state, batch)
    carry = (buffer, params, target_params, opt_state, then, env_state)
    return carry, terminated | truncated


init_key, reset_key, train_key = jax.random.split(jax.random.key(SEED), 3)
envs = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
envs = jax.device_put(envs, jax.NamedSharding(mesh, split))
params = network.init(init_key, jnp.zeros((1, 4)))
item = {"observation": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
item["next_observation"] = jnp.zeros(4)
buffer = fbuf.sharded.init(item, 64_000, mesh=mesh, num_envs=NUM_ENVS)

carry = (buffer, params, params, optimiser.init(params), *envs)
specs = (fbuf.sharded.specs(buffer), same, same, same, split, split)
train = jax.shard_map(
    lambda carry, inputs: jax.lax.scan(step, carry, inputs),
    mesh=mesh,
    in_specs=(specs, same),
    out_specs=(specs, jax.P(None, "data")),
)
carry, ended = jax.jit(train)(carry, (jnp.arange(STEPS), jax.random.split(train_key, STEPS)))

fbuf.raise_on_fault(carry[0])
tenths = np.asarray(ended).reshape(10, -1)
returns = tenths.shape[1] / tenths.sum(axis=1).clip(1)  # CartPole gives a reward of 1 a step
print("mean return of an episode, tenth by tenth of the run:", *returns.round().astype(int))
if returns[-1] < 100:
    sys.exit(f"failed: a mean return of {returns[-1]:.0f}, below 100")
print("It learned.")
