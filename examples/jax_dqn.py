"""Prioritised double DQN all in JAX: acting, replay and learning in one program, eight seeds.

    python examples/jax_dqn.py --help

All of training is one `lax.scan` under one `jax.jit`, `vmap`ped over seeds. The buffer is part of
the carry, so every write is in place. There is no branch: while the buffer is empty, the weights of
a batch are 0, and the update of priorities is masked.

Needs gymnax>=1.0 (and six, which gymnax does not declare), optax and matplotlib.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import matplotlib as mpl
import optax

import fbuf

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")

NUM_ENVS = 16
CAPACITY = 100_000
BATCH_SIZE = 128
HIDDEN = 128
SCALE = (1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2)  # brings what is observed to the order of 1
GAMMA = 0.99
REWARD_SCALE = 0.01  # and with it the values, which are sums of up to 100 rewards
LEARNING_RATE = 3e-3  # falls to 0 over the run, as a square: late steps are small
TARGET_RATE = 0.03  # how far the target network moves towards the learned one in a step
EPSILON = 0.05  # after falling from 1 over the first fifth of the run
WARM_UP = 1000  # rows in the buffer before learning begins

ROUNDS, QUICK_ROUNDS = 12_000, 1_500
EVALUATIONS = 20
SOLVED, QUICK_BAR = 450.0, 100.0  # a new network gets about 20 on average

Weights = list[tuple[jax.Array, jax.Array]]


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights
    target: Weights
    optimiser: Any
    buffer: fbuf.State
    env_state: Any
    observation: jax.Array
    key: jax.Array
    round: jax.Array


def q_values(weights: Weights, observation: jax.Array) -> jax.Array:
    """A network of two hidden layers."""
    x = observation * jnp.array(SCALE)
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ weights[-1][0] + weights[-1][1]


def initial_weights(key: jax.Array) -> Weights:
    """Uniform in the reach of one over the root of a layer's inputs."""
    sizes = ((4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ENV.num_actions))
    weights = []
    for (inputs, outputs), layer in zip(sizes, jax.random.split(key, 3), strict=True):
        reach = inputs**-0.5
        one, two = jax.random.split(layer)
        weights.append(
            (
                jax.random.uniform(one, (inputs, outputs), minval=-reach, maxval=reach),
                jax.random.uniform(two, (outputs,), minval=-reach, maxval=reach),
            )
        )
    return weights


def optimiser(rounds: int) -> optax.GradientTransformation:
    """Adam, with a learning rate that falls to 0."""
    return optax.adam(optax.polynomial_schedule(LEARNING_RATE, 0.0, 2, rounds))


def start(key: jax.Array, rounds: int) -> Training:
    """A new agent, its environments and an empty buffer."""
    weights_key, reset_key, key = jax.random.split(key, 3)
    weights = initial_weights(weights_key)
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, NUM_ENVS), ENV_PARAMS
    )
    item = {
        "observation": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": 0.0,
        "next_observation": jnp.zeros(4),
    }
    sampler = fbuf.Prioritized(alpha=0.6, eps=1e-3)
    buffer = fbuf.init(item, CAPACITY, num_envs=NUM_ENVS, sampler=sampler)
    state = optimiser(rounds).init(weights)
    return Training(weights, weights, state, buffer, env_state, observation, key, jnp.int32(0))


def td_error(weights: Weights, target: Weights, batch: fbuf.Sample) -> jax.Array:
    """Double DQN: the learned network chooses, the target network values."""
    data = batch.data
    best = q_values(weights, data["next_observation"]).argmax(-1)
    then = q_values(target, data["next_observation"])
    value = jnp.take_along_axis(then, best[:, None], 1)[:, 0]
    # Bootstrap through a truncation, not through a termination.
    wanted = REWARD_SCALE * data["reward"] + GAMMA * value * ~batch.terminated
    said = jnp.take_along_axis(q_values(weights, data["observation"]), data["action"][:, None], 1)
    return said[:, 0] - jax.lax.stop_gradient(wanted)


def train_round(training: Training, _: None, rounds: int) -> tuple[Training, None]:
    """One step in every environment, and one of learning."""
    done = training.round / rounds
    key, explore_key, action_key, step_key, sample_key = jax.random.split(training.key, 5)
    greedy = q_values(training.weights, training.observation).argmax(-1)
    explored = jax.random.randint(action_key, (NUM_ENVS,), 0, ENV.num_actions)
    epsilon = jnp.maximum(EPSILON, 1 - done / 0.2)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        ENV.step, in_axes=(0, 0, 0, None)
    )(jax.random.split(step_key, NUM_ENVS), training.env_state, action, ENV_PARAMS)
    transition = {
        "observation": training.observation,
        "action": action,
        "reward": reward,
        # Not `observation`: at the end of an episode that is the first one of the next episode.
        "next_observation": info["final_observation"],
    }
    buffer = fbuf.add(training.buffer, transition, terminated=terminated, truncated=truncated)

    ready = fbuf.size(buffer) >= WARM_UP
    batch = fbuf.sample(buffer, sample_key, BATCH_SIZE, beta=0.4 + 0.6 * done)

    def loss(weights: Weights) -> tuple[jax.Array, jax.Array]:
        error = td_error(weights, training.target, batch)
        return (ready * batch.weight * error**2).mean(), jnp.abs(error)

    gradient, error = jax.grad(loss, has_aux=True)(training.weights)
    updates, state = optimiser(rounds).update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    target = optax.incremental_update(weights, training.target, TARGET_RATE)
    buffer = fbuf.update_priority(buffer, batch.ids, error, mask=ready)
    after = Training(
        weights, target, state, buffer, env_state, observation, key, training.round + 1
    )
    return after, None


def evaluate(weights: Weights, key: jax.Array) -> jax.Array:
    """The mean return of the greedy policy over 100 whole episodes."""
    reset_key, step_key = jax.random.split(key)
    begin = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(reset_key, 100), ENV_PARAMS)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        observation, env_state, playing, score = carry
        action = q_values(weights, observation).argmax(-1)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(
            ENV.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(key, 100), env_state, action, ENV_PARAMS)
        score += jnp.where(playing, reward, 0)
        return (observation, env_state, playing & ~(terminated | truncated), score), None

    keys = jax.random.split(step_key, ENV_PARAMS.max_steps_in_episode)
    carry = (*begin, jnp.ones(100, bool), jnp.zeros(100))
    return jax.lax.scan(step, carry, keys)[0][-1].mean()


@partial(jax.jit, static_argnames="rounds")
def train(keys: jax.Array, rounds: int) -> tuple[fbuf.State, jax.Array]:
    """Train an agent for each key; returns their buffers, and returns `[evaluations, seeds]`."""

    def one(key: jax.Array) -> tuple[fbuf.State, jax.Array]:
        def stretch(training: Training, key: jax.Array) -> tuple[Training, jax.Array]:
            body = partial(train_round, rounds=rounds)
            training, _ = jax.lax.scan(body, training, None, length=rounds // EVALUATIONS)
            return training, evaluate(training.weights, key)

        start_key, evaluation_key = jax.random.split(key)
        keys = jax.random.split(evaluation_key, EVALUATIONS)
        training, returns = jax.lax.scan(stretch, start(start_key, rounds), keys)
        return training.buffer, returns

    return jax.vmap(one, out_axes=(0, 1))(keys)


def plot(returns: jax.Array, rounds: int, path: pathlib.Path) -> None:
    """Save the learning curve of every seed."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [(i + 1) * rounds // EVALUATIONS * NUM_ENVS / 1000 for i in range(EVALUATIONS)]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.plot(steps, returns, color="tab:blue", alpha=0.3, linewidth=1)
    axes.plot(steps, returns.mean(axis=1), color="tab:blue", linewidth=2.5)
    axes.set(
        xlabel="environment steps of a seed (thousands)",
        ylabel="mean return of 100 episodes",
        xlim=(0, None),
        ylim=(0, 520),
        yticks=(0, 100, 200, 300, 400, SOLVED, 500),
        title=f"CartPole-v1, all in JAX: {returns.shape[1]} seeds and their mean",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curves     {path}")


def main() -> None:
    """Read the command line, train, and fail if an agent did not learn."""
    parser = argparse.ArgumentParser(
        description="Prioritised double DQN on CartPole-v1, all in JAX: many agents at once, each "
        "with its own buffer, in one compiled program. Prints what each agent gets in 100 "
        "episodes, and exits with an error if they did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, for all agents")
    parser.add_argument("--seeds", type=int, default=8, help="how many agents to train at once")
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps of each agent; each round takes {NUM_ENVS} of them, one in every "
        f"environment, and learns from one batch. The mean return over the agents must then be "
        f"{SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: "
        f"{QUICK_ROUNDS * NUM_ENVS} steps, and a mean return of {QUICK_BAR:.0f} will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/jax_dqn.png",
        help="where the picture of the learning curves goes",
    )
    options = parser.parse_args()
    rounds, bar = (
        (QUICK_ROUNDS, QUICK_BAR) if options.quick else (options.steps // NUM_ENVS, SOLVED)
    )
    if rounds < EVALUATIONS or options.seeds < 1:
        parser.error(f"there must be at least {EVALUATIONS * NUM_ENVS} steps and one agent")
    rounds -= rounds % EVALUATIONS  # as many as are made
    started = time.perf_counter()
    keys = jax.random.split(jax.random.key(options.seed), options.seeds)
    one_round = jax.jit(partial(train_round, rounds=rounds), donate_argnums=0)
    fbuf.check_in_place(one_round, jax.eval_shape(partial(start, rounds=rounds), keys[0]), None)
    program = train.lower(keys, rounds).compile()
    compiled = time.perf_counter()
    print(f"compiled in {compiled - started:.0f} s; training {options.seeds} agents", flush=True)
    buffers, returns = jax.block_until_ready(program(keys))
    seconds = time.perf_counter() - compiled
    fbuf.raise_on_fault(buffers)
    final = returns[-1]
    print(f"evaluation returns  {' '.join(f'{value:.1f}' for value in final)}")
    print(f"their mean          {final.mean():.1f}")
    steps = rounds * NUM_ENVS * options.seeds
    print(f"environment steps   {steps / seconds:,.0f} a second, {seconds:.0f} s in all")
    plot(returns, rounds, options.plot)
    if float(final.mean()) < bar:
        sys.exit(f"failed: a mean return of {final.mean():.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
