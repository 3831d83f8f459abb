"""Environments and replay in JAX, the learner in PyTorch: batches are shared, not copied.

Needs `pip install "fbuf[torch]" gymnax six`.
"""

import copy
import functools
import sys

import gymnax
import jax
import jax.numpy as jnp
import torch
from fbuf_adapters.pytorch import from_torch, to_torch

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
NUM_ENVS, STEPS, GAMMA = 16, 3000, 0.98
torch.manual_seed(SEED)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain

env, _ = gymnax.make("CartPole-v1")
linear, relu = torch.nn.Linear, torch.nn.ReLU()
network = torch.nn.Sequential(linear(4, 64), relu, linear(64, 64), relu, linear(64, 2))
target_network = copy.deepcopy(network)
optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)


def q_values(weights, x):
    """The same network in JAX, to act with."""
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weight.T + bias)
    return x @ weights[-2].T + weights[-1]


@functools.partial(jax.jit, donate_argnames="buffer")
def act_and_draw(buffer, weights, observation, env_state, epsilon, key):
    """Take one step in all environments, add the rows and draw a batch: one compiled call."""
    explore_key, action_key, step_key, sample_key = jax.random.split(key, 4)
    greedy = q_values(weights, observation).argmax(-1)
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
        "next_observation": info["final_observation"],
    }
    buffer = fbuf.add(buffer, rows, terminated=terminated, truncated=truncated)
    batch = fbuf.sample(buffer, sample_key, 128)
    return buffer, batch, then, env_state, (terminated | truncated).sum()


def learn(batch):
    """Take a weighted step of DQN; returns the size of each row's TD error."""
    data = batch.data
    with torch.no_grad():
        next_value = target_network(data["next_observation"]).max(dim=1).values
        target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated
    chosen = network(data["observation"]).gather(1, data["action"][:, None].long())[:, 0]
    error = chosen - target
    optimiser.zero_grad()
    (batch.weight * error**2).mean().backward()
    optimiser.step()
    return error.detach().abs()


key, reset_key = jax.random.split(jax.random.key(SEED))
observation, env_state = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
item = {"observation": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
item["next_observation"] = jnp.zeros(4)
buffer = fbuf.init(item, 48_000, num_envs=NUM_ENVS, sampler=fbuf.Prioritized(alpha=0.6))
ends = 0
for step in range(STEPS):
    if step % 10 == 0:  # a copy, because PyTorch goes on to write its parameters
        weights = from_torch([parameter.detach() for parameter in network.parameters()])
    epsilon = max(0.05, 1 - step / (0.2 * STEPS))
    key, step_key = jax.random.split(key)
    buffer, batch, observation, env_state, ended = act_and_draw(
        buffer, weights, observation, env_state, epsilon, step_key
    )
    td_error = learn(to_torch(batch))
    buffer = fbuf.update_priority(buffer, batch.ids, from_torch(td_error))
    ends += int(ended)
    if step % 100 == 0:
        target_network.load_state_dict(network.state_dict())
    if step % 300 == 299:
        mean_return, ends = NUM_ENVS * 300 / max(ends, 1), 0  # CartPole gives a reward of 1 a step
        print(f"{NUM_ENVS * (step + 1):>6} steps, mean return {mean_return:.0f}", flush=True)

fbuf.raise_on_fault(buffer)
if mean_return < 100:
    sys.exit(f"failed: a mean return of {mean_return:.0f}, below 100")
print("It learned.")
