"""Prioritised double DQN: environments and replay in JAX, the learner in PyTorch.

    python examples/torch_dqn.py --help

One round of the loop, and where it runs:

1. JAX, one compiled call: all environments take a step with an epsilon-greedy policy, and
   `fbuf.add` writes the transitions into the buffer, in place, for the buffer is donated.
2. JAX: `fbuf.sample` draws a batch by priority.
3. `to_torch`: PyTorch gets tensors on the memory of that batch. Nothing is copied.
4. PyTorch: a step of double DQN, weighted by the importance weights.
5. `from_torch`: the TD errors go back, and `fbuf.update_priority` makes them the priorities.

Every few rounds the network goes to JAX as well, to act with. It is copied, because PyTorch's
optimiser goes on writing into its parameters, and JAX takes arrays never to change.

Needs fbuf[torch], gymnax>=1.0 (and six, which it forgets to ask for), matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import collections
import copy
import os
import pathlib
import statistics
import sys
import time
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave PyTorch some of the GPU

import gymnax
import jax
import jax.numpy as jnp
import matplotlib
import torch
from torch import nn
from tqdm import tqdm

import fbuf
from fbuf_adapters.pytorch import from_torch, to_torch

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")

NUM_ENVS = 16
CAPACITY = 100_000
BATCH_SIZE = 128
HIDDEN = 64
GAMMA = 0.99
LEARNING_RATE = 1e-3  # falls to 0 over the run
TARGET_RATE = 0.005  # how far the target network moves towards the learned one in a step
EPSILON = (1.0, 0.05)  # exploration: from, to
EXPLORATION = 0.2  # the share of the run over which it falls
BETA = (0.4, 1.0)  # importance weights: from, to, over the whole run
WARM_UP = 100  # rounds before the first learner step
SYNC_EVERY = 10  # rounds between copies of the network for acting
TIME_EVERY = 16  # rounds between those that are timed


# ---- JAX: acting, the environments and the replay memory -------------------------------------


class Actor(NamedTuple):
    """What acting carries from one round to the next."""

    env_state: Any
    observation: jax.Array
    key: jax.Array


def q_values(weights: list[jax.Array], observation: jax.Array) -> jax.Array:
    """The network in JAX: the parameters of PyTorch's `nn.Sequential`, in their order."""
    x = observation
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weight.T + bias)
    return x @ weights[-2].T + weights[-1]


def reset(key: jax.Array) -> Actor:
    """Start all environments."""
    key, reset_key = jax.random.split(key)
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, NUM_ENVS), ENV_PARAMS
    )
    return Actor(env_state, observation, key)


def act(actor: Actor, weights: list[jax.Array], epsilon: jax.Array) -> tuple[Actor, dict, dict]:
    """Take one step in all environments; returns the transitions, and how episodes ended."""
    key, explore_key, action_key, step_key = jax.random.split(actor.key, 4)
    greedy = q_values(weights, actor.observation).argmax(-1)
    explored = jax.random.randint(action_key, (NUM_ENVS,), 0, ENV.num_actions)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        ENV.step, in_axes=(0, 0, 0, None)
    )(jax.random.split(step_key, NUM_ENVS), actor.env_state, action, ENV_PARAMS)
    transition = {
        "observation": actor.observation,
        "action": action,
        "reward": reward,
        # Not `observation`: where an episode ended, that is already the first one of the next.
        "next_observation": info["final_observation"],
    }
    ends = {"terminated": terminated, "truncated": truncated}
    return Actor(env_state, observation, key), transition, ends


@partial(jax.jit, donate_argnames="buffer")
def act_and_add(
    actor: Actor, buffer: fbuf.State, weights: list[jax.Array], epsilon: jax.Array
) -> tuple[Actor, fbuf.State, jax.Array]:
    """Act and remember, in one program; also returns a key to sample with."""
    actor, transition, ends = act(actor, weights, epsilon)
    # The two ends differ: what follows a terminated step is worth nothing, what follows a
    # truncated one is worth what the network says it is.
    buffer = fbuf.add(buffer, transition, **ends)
    key, sample_key = jax.random.split(actor.key)
    return actor._replace(key=key), buffer, sample_key


@jax.jit
def evaluate(weights: list[jax.Array], key: jax.Array) -> jax.Array:
    """The returns of 100 whole episodes, played greedily."""
    reset_key, step_key = jax.random.split(key)
    start = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(reset_key, 100), ENV_PARAMS)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        observation, env_state, playing, score = carry
        action = q_values(weights, observation).argmax(-1)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(
            ENV.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(key, 100), env_state, action, ENV_PARAMS)
        score += jnp.where(playing, reward, 0)
        return (observation, env_state, playing & ~(terminated | truncated), score), None

    keys = jax.random.split(step_key, ENV_PARAMS.max_steps_in_episode)
    carry = (*start, jnp.ones(100, bool), jnp.zeros(100))
    return jax.lax.scan(step, carry, keys)[0][-1]


# ---- PyTorch: the learner --------------------------------------------------------------------


class Learner:
    """Double DQN with a target network that follows slowly."""

    def __init__(self, device: str) -> None:
        self.network = nn.Sequential(
            nn.Linear(4, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)
        ).to(device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, batch: fbuf.Sample, learning_rate: float) -> torch.Tensor:
        """Learn from a batch; returns the magnitude of each row's TD error."""
        data = batch.data
        with torch.no_grad():
            best = self.network(data["next_observation"]).argmax(1, keepdim=True)
            value = self.target(data["next_observation"]).gather(1, best).squeeze(1)
            wanted = data["reward"] + GAMMA * value * ~batch.terminated
        said = self.network(data["observation"])
        said = said.gather(1, data["action"].long().unsqueeze(1)).squeeze(1)
        loss = (batch.weight * nn.functional.smooth_l1_loss(said, wanted, reduction="none")).mean()
        self.optimiser.param_groups[0]["lr"] = learning_rate
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(
                self.target.parameters(), self.network.parameters(), strict=True
            ):
                slow.lerp_(fast, TARGET_RATE)
        return (said.detach() - wanted).abs()

    def weights(self) -> list[jax.Array]:
        """The network for JAX, as copies: the next step writes into the originals."""
        return from_torch([parameter.detach() for parameter in self.network.parameters()])
