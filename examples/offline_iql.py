"""Offline: an agent's first steps become a data set of Minari, and IQL learns from that alone.

    python examples/offline_iql.py --help

1. A small actor-critic learns online for some seconds, and is stopped when it begins to succeed.
   All that it lived through is in its buffer: mostly failures.
2. `to_minari` writes the episodes of that buffer as a data set of Minari: an ordinary one, of
   Gymnasium's Pendulum-v1.
3. `from_minari` reads it into a new buffer. From here on nothing is learned from an environment.
4. IQL learns from that buffer, in one `lax.scan` under one `jax.jit`, `vmap`ped over seeds. All
   seeds draw from the same buffer, for a draw changes nothing in it.

IQL never asks what an action is worth that is not in the data. Its value is an expectile: what the
better of the actions in the data lead to. Its policy copies the data, and an action counts the more
the better it is. Beside it, another policy copies the same batches, and there all actions count the
same. It shows what copying alone is worth.

A new policy gets about -1300 in an episode, a good one about -150.

Needs fbuf[datasets], optax and matplotlib.

References:
    Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, arXiv:2110.06169.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from fbuf_adapters.datasets import from_minari, to_minari

import fbuf

STEPS = 200  # of an episode
OBSERVATION, ACTION = 3, 1  # their sizes
SCALE = (1.0, 1.0, 1 / 8)  # brings what is observed to the order of 1
TORQUE = 2.0  # the policies' actions, -1 to 1, times this; torques are stored

BATCH_SIZE = 256
HIDDEN = 64
GAMMA = 0.98
REWARD_SCALE = 0.1

# The agent that makes the data.
NUM_ENVS = 20
SUCCESS = -600.0  # it is stopped when an episode returned more, as a mean over environments
LONGEST_LIFE = 40  # episodes in each environment
ONLINE = optax.adam(3e-4)
ONLINE_TARGET_RATE = 0.01  # how far the target networks move towards the learned ones in an update
NOISE = 0.3  # the deviation of what is added to its actions

# The agents that learn from the data.
UPDATES, QUICK_UPDATES = 10_000, 6_000
SEEDS, QUICK_SEEDS = 5, 2
OFFLINE_RATE = 1e-3  # falls to 0 over the run, as a square: late steps are small
OFFLINE_TARGET_RATE = 0.005
EXPECTILE = 0.9  # 0.5 would be the mean over the actions in the data, and 1 the best of them
SHARPNESS = 10.0  # how fast the weight of an action grows with its advantage
LARGEST_WEIGHT = 100.0

POLICIES = ("IQL", "copying")  # side by side
DATASET = "pendulum/first-steps-v0"
EVALUATIONS = 20
EPISODES = 100  # of an evaluation
GAIN, QUICK_GAIN = 600.0, 400.0  # by how much every seed must be better than the data
FAST_TO_COMPILE = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"

Layers = list[tuple[jax.Array, jax.Array]]
Weights = dict[str, Layers]
Loss = Callable[[Weights, Weights, fbuf.Sample], jax.Array]


# ---- networks --------------------------------------------------------------------------------


def network(layers: Layers, x: jax.Array) -> jax.Array:
    """From `[B, inputs]` to `[B, outputs]`."""
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def initial_layers(key: jax.Array, inputs: int, outputs: int) -> Layers:
    """Two hidden layers, uniform in the reach of one over the root of a layer's inputs."""
    # One draw, of which some is left out, compiles faster than three.
    draws = jax.random.uniform(key, (3, HIDDEN, HIDDEN), minval=-1, maxval=1)
    weights = draws[0, :inputs], draws[1], draws[2, :, :outputs]
    return [(weight * len(weight) ** -0.5, jnp.zeros(weight.shape[1])) for weight in weights]


def initial_pair(key: jax.Array, inputs: int, outputs: int) -> Layers:
    """Two networks side by side: leaves `[2, ...]`."""
    make = partial(initial_layers, inputs=inputs, outputs=outputs)
    return jax.vmap(make)(jax.random.split(key))


def act(policy: Layers, observation: jax.Array) -> jax.Array:
    """An action for each observation, from -1 to 1."""
    return jnp.tanh(network(policy, observation * jnp.array(SCALE)))


def worth(critics: Layers, observation: jax.Array, action: jax.Array) -> jax.Array:
    """Return each critic's value of actions: `[2, B]`."""
    x = jnp.concatenate([observation * jnp.array(SCALE), action], axis=-1)
    return jax.vmap(network, in_axes=(0, None))(critics, x)[..., 0]


def value(layers: Layers, observation: jax.Array) -> jax.Array:
    """The value of each observation: `[B]`."""
    return network(layers, observation * jnp.array(SCALE))[:, 0]


# ---- what is learned -------------------------------------------------------------------------
#
# A loss is the sum of those of all networks. No two of them reach the same weights.


class Learner(NamedTuple):
    """An agent that learns."""

    weights: Weights
    target: Weights
    optimiser: Any


def critics_loss(weights: Weights, batch: fbuf.Sample, value_then: jax.Array) -> jax.Array:
    """Return the error of the critics against the value of the next step."""
    item = batch.data.item
    # Bootstrap through a truncation, not through a termination.
    wanted = REWARD_SCALE * item["reward"] + GAMMA * value_then * ~batch.terminated
    said = worth(weights["critics"], item["observation"], item["action"] / TORQUE)
    return ((said - jax.lax.stop_gradient(wanted)) ** 2).mean(axis=1).sum()


def online_loss(weights: Weights, target: Weights, batch: fbuf.Sample) -> jax.Array:
    """Twin critics, and a policy that does what one of them likes best."""
    now, then = batch.data.item["observation"], batch.data.next_observation
    value_then = worth(target["critics"], then, act(target["policy"], then)).min(axis=0)
    critics = jax.lax.stop_gradient(weights["critics"])
    liked = worth(critics, now, act(weights["policy"], now))[0].mean()
    return critics_loss(weights, batch, value_then) - liked


def iql_loss(weights: Weights, target: Weights, batch: fbuf.Sample) -> jax.Array:
    """Twin critics, an expectile of what they say, and policies that copy actions by weight."""
    now, action = batch.data.item["observation"], batch.data.item["action"] / TORQUE
    advantage = worth(target["critics"], now, action).min(axis=0) - value(weights["value"], now)
    expectile = jnp.where(advantage > 0, EXPECTILE, 1 - EXPECTILE) * advantage**2

    better = jnp.exp(SHARPNESS * jax.lax.stop_gradient(advantage))
    weight = jnp.stack([jnp.minimum(better, LARGEST_WEIGHT), jnp.ones(BATCH_SIZE)])  # as `POLICIES`
    miss = jax.vmap(act, in_axes=(0, None))(weights["policies"], now) - action
    policies = (weight * (miss**2).sum(axis=2)).sum(axis=0)

    value_then = value(weights["value"], batch.data.next_observation)
    return (expectile + policies).mean() + critics_loss(weights, batch, value_then)


def learned(
    learner: Learner,
    loss: Loss,
    buffer: fbuf.State,
    key: jax.Array,
    adam: optax.GradientTransformation,
    target_rate: float,
) -> Learner:
    """The agent after a batch."""
    batch = fbuf.sample(buffer, key, BATCH_SIZE, view=fbuf.Transition())
    gradient = jax.grad(loss)(learner.weights, learner.target, batch)
    updates, optimiser = adam.update(gradient, learner.optimiser)
    weights = optax.apply_updates(learner.weights, updates)
    target = optax.incremental_update(weights, learner.target, target_rate)
    return Learner(weights, target, optimiser)


# ---- the pendulum ----------------------------------------------------------------------------


class World(NamedTuple):
    """Gymnasium's Pendulum-v1, many of them; leaves `[count]`."""

    angle: jax.Array  # 0 is upright
    speed: jax.Array


def new_world(key: jax.Array, count: int) -> World:
    """Pendulums anywhere, with little speed."""
    angle, speed = jax.random.uniform(key, (2, count), minval=-1, maxval=1)
    return World(jnp.pi * angle, speed)


def observe(world: World) -> jax.Array:
    return jnp.stack([jnp.cos(world.angle), jnp.sin(world.angle), world.speed], axis=1)


def swing(world: World, torque: jax.Array) -> tuple[World, jax.Array]:
    """The pendulums after a step, and what they get for it."""
    angle, speed = world
    torque = torque[:, 0]
    lean = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
    reward = -(lean**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * torque), -8, 8)
    return World(angle + 0.05 * speed, speed), reward


def evaluate(policy: Layers, key: jax.Array) -> jax.Array:
    """The mean return of whole episodes without noise."""

    def played(world: World, _: None) -> tuple[World, jax.Array]:
        return swing(world, TORQUE * act(policy, observe(world)))

    rewards = jax.lax.scan(played, new_world(key, EPISODES), None, length=STEPS)[1]
    return rewards.sum(axis=0).mean()


# ---- online: an agent lives ------------------------------------------------------------------


def new_buffer() -> fbuf.State:
    """Room for the longest life; an observation is not stored twice."""
    item = {
        "observation": jnp.zeros(OBSERVATION),
        "action": jnp.zeros(ACTION),
        "reward": 0.0,
    }
    capacity = NUM_ENVS * LONGEST_LIFE * STEPS
    return fbuf.init(item, capacity, num_envs=NUM_ENVS, next_of="observation")


@partial(jax.jit, donate_argnames="buffer")
def live_an_episode(
    learner: Learner, buffer: fbuf.State, key: jax.Array
) -> tuple[Learner, fbuf.State, jax.Array]:
    """An episode in every environment; also returns the return of each."""

    def one_step(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        """One step in every environment, and one of learning."""
        learner, buffer, world = carry
        key, is_last = now
        noise_key, sample_key = jax.random.split(key)
        observation = observe(world)
        noise = NOISE * jax.random.normal(noise_key, (NUM_ENVS, ACTION))
        torque = TORQUE * jnp.clip(act(learner.weights["policy"], observation) + noise, -1, 1)
        world, reward = swing(world, torque)
        buffer = fbuf.add(
            buffer,
            {"observation": observation, "action": torque, "reward": reward},
            # A pendulum never falls for good: its episodes are cut off.
            truncated=jnp.full(NUM_ENVS, is_last),
            next_observation=observe(world),
        )
        learner = learned(learner, online_loss, buffer, sample_key, ONLINE, ONLINE_TARGET_RATE)
        return (learner, buffer, world), reward

    world_key, steps_key = jax.random.split(key)
    steps = jax.random.split(steps_key, STEPS), jnp.arange(STEPS) == STEPS - 1
    carry = learner, buffer, new_world(world_key, NUM_ENVS)
    (learner, buffer, _), rewards = jax.lax.scan(one_step, carry, steps)
    return learner, buffer, rewards.sum(axis=0)


@jax.jit
def newborn(key: jax.Array) -> Learner:
    policy_key, critics_key = jax.random.split(key)
    weights = {
        "policy": initial_layers(policy_key, OBSERVATION, ACTION),
        "critics": initial_pair(critics_key, OBSERVATION + ACTION, 1),
    }
    return Learner(weights, weights, ONLINE.init(weights))


def live(key: jax.Array) -> tuple[fbuf.State, float]:
    """Train an agent until it begins to succeed; returns its buffer, and what it gets then."""
    learner_key, evaluation_key, key = jax.random.split(key, 3)
    learner, buffer = newborn(learner_key), new_buffer()
    for episode_key in jax.random.split(key, LONGEST_LIFE):
        learner, buffer, returns = live_an_episode(learner, buffer, episode_key)
        if returns.mean() > SUCCESS:
            break
    return buffer, float(jax.jit(evaluate)(learner.weights["policy"], evaluation_key))


# ---- offline: another one learns from that ---------------------------------------------------


@partial(jax.jit, static_argnames="updates")
def learn(buffer: fbuf.State, keys: jax.Array, updates: int) -> jax.Array:
    """Train an agent for each key; what its policies get: `[evaluations, seeds, policies]`."""
    adam = optax.adam(optax.polynomial_schedule(OFFLINE_RATE, 0.0, 2, updates))

    def update(learner: Learner, key: jax.Array) -> tuple[Learner, None]:
        return learned(learner, iql_loss, buffer, key, adam, OFFLINE_TARGET_RATE), None

    def stretch(learner: Learner, key: jax.Array) -> tuple[Learner, jax.Array]:
        updates_key, evaluation_key = jax.random.split(key)
        keys = jax.random.split(updates_key, updates // EVALUATIONS)
        learner, _ = jax.lax.scan(update, learner, keys)
        returns = jax.vmap(evaluate, in_axes=(0, None))(learner.weights["policies"], evaluation_key)
        return learner, returns

    def one(key: jax.Array) -> jax.Array:
        policies_key, critics_key, value_key, key = jax.random.split(key, 4)
        weights = {
            "policies": initial_pair(policies_key, OBSERVATION, ACTION),
            "critics": initial_pair(critics_key, OBSERVATION + ACTION, 1),
            "value": initial_layers(value_key, OBSERVATION, 1),
        }
        learner = Learner(weights, weights, adam.init(weights))
        return jax.lax.scan(stretch, learner, jax.random.split(key, EVALUATIONS))[1]

    return jax.vmap(one, out_axes=1)(keys)


# ---- the data set ----------------------------------------------------------------------------


def through_minari(lived: fbuf.State, folder: pathlib.Path) -> tuple[fbuf.State, np.ndarray]:
    """Write a data set and read it; returns the new buffer, and the return of each episode."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    dataset = to_minari(
        lived,
        DATASET,
        env="Pendulum-v1",
        eval_env="Pendulum-v1",
        algorithm_name="DDPG with two critics",
        description="All that an agent did until it began to succeed.",
        author="fbuf",
        author_email="maintainers@example.com",
        code_permalink="https://github.com/fbuf/fbuf/blob/main/examples/offline_iql.py",
    )
    returns = np.array([episode.rewards.sum() for episode in dataset])
    return from_minari(DATASET, next_of="observation"), returns


# ---- all of it -------------------------------------------------------------------------------


def plot(curves: np.ndarray, data: float, maker: float, updates: int, path: pathlib.Path) -> None:
    """Save the learning curve of every seed, beside what is in the data."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    done = [(i + 1) * (updates // EVALUATIONS) / 1000 for i in range(EVALUATIONS)]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for number, colour in enumerate(("tab:blue", "tab:orange")):
        curve, name = curves[..., number], POLICIES[number]
        axes.plot(done, curve, color=colour, alpha=0.3, linewidth=1)
        axes.plot(done, curve.mean(axis=1), color=colour, linewidth=2.5, label=name)
    axes.axhline(maker, color="grey", linewidth=1.2, linestyle="--", label="agent that made it")
    axes.axhline(data, color="grey", linewidth=1.2, linestyle=":", label="the data")
    axes.set(
        xlabel="updates (thousands)",
        ylabel=f"mean return of {EPISODES} episodes",
        xlim=(0, None),
        ylim=(-1400, 0),
        yticks=(-1200, -800, -400, 0),
        title=f"Pendulum-v1 from a data set: {curves.shape[1]} seeds and their mean",
    )
    axes.legend(frameon=False, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curves     {path}")


def make_parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description="IQL on Pendulum-v1, from a data set of Minari that another agent's first "
        "steps left behind. Prints the returns of the episodes in the data, of their agent, and of "
        "IQL's. Exits with an error if IQL is not clearly better than the data, for each seed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, the data set too")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="how many agents learn from the data set at once"
    )
    parser.add_argument(
        "--updates",
        type=int,
        default=UPDATES,
        help=f"batches that each of them learns from. It must then be {GAIN:.0f} better than the "
        "data",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not how well: "
        f"{QUICK_SEEDS} agents and {QUICK_UPDATES} updates, and {QUICK_GAIN:.0f} better than the "
        "data will do",
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        help=f"a directory of Minari's data sets, in which to leave this one as {DATASET}",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/offline_iql.png",
        help="where the picture of the learning curves goes",
    )
    return parser


def main() -> None:
    """Read the command line, make the data, learn from it, and fail if that is no better."""
    parser = make_parser()
    options = parser.parse_args()
    seeds, updates, gain = options.seeds, options.updates, GAIN
    if options.quick:
        seeds, updates, gain = QUICK_SEEDS, QUICK_UPDATES, QUICK_GAIN
        # A program that runs for seconds only is not worth the time to optimise it.
        flags = f"{os.environ.get('XLA_FLAGS', '')} {FAST_TO_COMPILE}".strip()
        os.environ["XLA_FLAGS"] = flags  # read when JAX is first used, in the lines below
    if updates < EVALUATIONS or seeds < 1:
        parser.error(f"there must be at least {EVALUATIONS} updates and one agent")
    updates -= updates % EVALUATIONS  # as many as are made
    if options.data and (options.data / DATASET).exists():
        parser.error(f"--data {options.data}: there is a {DATASET} already")
    live_key, learn_key = jax.random.split(jax.random.key(options.seed))

    began = time.perf_counter()
    lived, maker = live(live_key)
    fbuf.raise_on_fault(lived)
    done = time.perf_counter()
    print(f"an agent lived      {int(fbuf.size(lived)):,} steps, {done - began:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        buffer, returns = through_minari(lived, options.data or pathlib.Path(temporary))
    began, done = done, time.perf_counter()
    print(f"out and in again    {len(returns)} episodes, {done - began:.0f} s", flush=True)

    keys = jax.random.split(learn_key, seeds)
    program = learn.lower(buffer, keys, updates).compile()
    began, done = done, time.perf_counter()
    print(f"compiled in {done - began:.0f} s; training {seeds} agents", flush=True)
    curves = np.asarray(program(buffer, keys))
    began, done = done, time.perf_counter()
    print(f"updates             {updates:,} of each agent, {done - began:.0f} s")

    print("\nreturns, and their deviation")
    print(f"  the data          {returns.mean():7.1f}  {returns.std():5.1f}  over episodes")
    print(f"  agent that made it{maker:8.1f}")
    for name, final in zip(POLICIES, curves[-1].T, strict=True):
        each = " ".join(f"{value:.1f}" for value in final)
        print(f"  {name:<18}{final.mean():7.1f}  {final.std():5.1f}  over seeds: {each}")
    plot(curves, returns.mean(), maker, updates, options.plot)
    worst = curves[-1, :, 0].min()
    if worst < returns.mean() + gain:
        sys.exit(f"failed: a seed gets {worst:.1f}, not {gain:.0f} more than the data")


if __name__ == "__main__":
    main()
