"""A recurrent agent that has to remember: prioritised sequences, stored states, burn-in.

    python examples/recurrent_memory.py --help

bsuite's memory chain shows a bit in the first two steps of an episode, and asks for it in the last
of 21 steps. The right answer is worth 1, the wrong one -1. No other step tells the two bits apart:
an agent without memory gets half of the answers right, whatever its policy. The bar is 95 %.

The agent is a small R2D2: double Q-learning with a GRU, whose state is stored with every step. A
sequence runs on from one episode into the next; the state is reset where `is_first` is True. It
begins with the stored state, and its first steps only warm the state up, because the weights have
changed since. A sequence has 16 steps, too few to hold both the bit and the answer: only the stored
state carries the bit to the answer.

Two more agents learn beside it, with all else the same. One begins its sequences with zeros instead
of the stored state. The other has no memory: its state is wiped at every step.

All of it is one `lax.scan` under `jax.jit`, `vmap`ped over the agents. Each has its own buffer.

Needs gymnax>=1.0 (and six, which gymnax does not declare), optax and matplotlib.

References:
    Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning,
    ICLR 2019.
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

ENV, DEFAULTS = gymnax.make("MemoryChain-bsuite")
ENV_PARAMS = DEFAULTS.replace(memory_length=20)
EPISODE = 21  # steps; the last one is the answer
OBSERVATION = 3  # the time left, zero, and the bit while it is shown: -1 or 1

NUM_ENVS = 16
CAPACITY = 32_000
BATCH_SIZE = 32
HIDDEN = 32
BURN_IN, LENGTH = 4, 12
STRIDE = 4  # a sequence begins at every fourth step
GAMMA = 0.97
LEARNING_RATE = 2e-3  # falls to 0 over the run, as a square: late steps are small
TARGET_RATE = 0.02  # how far the target network moves towards the learned one in a step
EPSILON = 0.05  # after falling from 1 over the first tenth of the run
KEEP = 1.0  # a bias: a new GRU rather keeps its state
WARM_UP = 4000  # rows in the buffer before learning begins

ROUNDS, QUICK_ROUNDS = 4_000, 1_500
EVALUATIONS, EPISODES = 20, 500
BAR, QUICK_BAR = 0.95, 0.75
BY_CHANCE = 0.6  # at most, for the agent without memory; of 500 guesses 0.5 +- 0.022 are right

Weights = dict[str, jax.Array]
VIEW = fbuf.Sequence(
    LENGTH,
    burn_in=BURN_IN,
    bootstrap=1,
    boundary="cross",
    state="hidden",
    fields=("observation", "action", "reward"),  # the state of the first step is enough
)


class Agent(NamedTuple):
    """The abilities of an agent: bools, so that all agents are one program."""

    remembers: jax.Array  # its state lasts longer than a step
    starts_from_stored: jax.Array  # sequences begin with the stored state, not with zeros


AGENTS = ("with stored states", "from zeros", "without memory")
ABILITIES = Agent(jnp.array([True, True, False]), jnp.array([True, False, False]))


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights
    target: Weights
    optimiser: Any
    buffer: fbuf.State
    env_state: Any
    observation: jax.Array
    hidden: jax.Array
    key: jax.Array
    round: jax.Array


def initial_weights(key: jax.Array) -> Weights:
    """Uniform in the reach of one over the root of a layer's inputs."""
    sizes = {
        "input": (OBSERVATION, 3 * HIDDEN),
        "recurrent": (HIDDEN, 3 * HIDDEN),
        "output": (HIDDEN, ENV.num_actions),
    }
    weights = {}
    for (name, shape), layer in zip(sizes.items(), jax.random.split(key, 3), strict=True):
        reach = shape[0] ** -0.5
        weights[name] = jax.random.uniform(layer, shape, minval=-reach, maxval=reach)
        weights[name + "_bias"] = jnp.zeros(shape[1])
    weights["input_bias"] = weights["input_bias"].at[HIDDEN : 2 * HIDDEN].set(KEEP)
    return weights


def gru(weights: Weights, hidden: jax.Array, driven: jax.Array) -> jax.Array:
    """One step of a gated recurrent unit; `driven` is what the input adds to its gates."""
    recurrent = hidden @ weights["recurrent"] + weights["recurrent_bias"]
    (r, z, n), (hr, hz, hn) = jnp.split(driven, 3, -1), jnp.split(recurrent, 3, -1)
    keep = jax.nn.sigmoid(z + hz)
    return (1 - keep) * jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn) + keep * hidden


def unroll(
    weights: Weights, hidden: jax.Array, observation: jax.Array, wipe: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Q-values `[B, T, actions]` and the state behind the last step, from that before the first.

    `wipe` is bool `[B, T]`: steps before which the state is set to zero.
    """
    driven = observation @ weights["input"] + weights["input_bias"]

    def step(hidden: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        driven, wipe = now
        hidden = gru(weights, jnp.where(wipe[:, None], 0, hidden), driven)
        return hidden, hidden

    steps = jnp.swapaxes(driven, 0, 1), jnp.swapaxes(wipe, 0, 1)
    hidden, every = jax.lax.scan(step, hidden, steps)
    q = every @ weights["output"] + weights["output_bias"]
    return jnp.swapaxes(q, 0, 1), hidden


def act(weights: Weights, hidden: jax.Array, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The greedy action of every environment, and the recurrent state behind it."""
    q, hidden = unroll(
        weights, hidden, observation[:, None], jnp.zeros((len(observation), 1), bool)
    )
    return q[:, 0].argmax(-1).astype(jnp.int32), hidden


def optimiser(rounds: int) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.polynomial_schedule(LEARNING_RATE, 0.0, 2, rounds)),
    )


def start(key: jax.Array, rounds: int) -> Training:
    """A new agent, its environments and an empty buffer."""
    weights_key, reset_key, key = jax.random.split(key, 3)
    weights = initial_weights(weights_key)
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, NUM_ENVS), ENV_PARAMS
    )
    item = {
        "observation": jnp.zeros(OBSERVATION),
        "action": jnp.int32(0),
        "reward": 0.0,
        "hidden": jnp.zeros(HIDDEN),
    }
    buffer = fbuf.init(
        item,
        CAPACITY,
        num_envs=NUM_ENVS,
        sampler=fbuf.Prioritized(alpha=0.6, eps=1e-3, stride=STRIDE),
    )
    hidden = jnp.zeros((NUM_ENVS, HIDDEN))
    return Training(
        weights,
        weights,
        optimiser(rounds).init(weights),
        buffer,
        env_state,
        observation,
        hidden,
        key,
        jnp.int32(0),
    )


def td_error(
    weights: Weights, target: Weights, batch: fbuf.Sample, agent: Agent
) -> tuple[jax.Array, jax.Array]:
    """Double DQN at the steps to learn from, `[B, LENGTH]`, and whether there is such a step."""
    data = batch.data
    begin = jnp.where(agent.starts_from_stored, data.state, 0)
    observation, wipe = data.item["observation"], data.is_first | ~agent.remembers

    def values(weights: Weights) -> jax.Array:
        """Q-values behind the burn-in, through which nothing is learned."""
        _, hidden = unroll(weights, begin, observation[:, :BURN_IN], wipe[:, :BURN_IN])
        hidden = jax.lax.stop_gradient(hidden)
        return unroll(weights, hidden, observation[:, BURN_IN:], wipe[:, BURN_IN:])[0]

    online, later = values(weights), values(target)
    best = online[:, 1:].argmax(-1)
    value = jnp.take_along_axis(later[:, 1:], best[..., None], -1)[..., 0]
    now = slice(BURN_IN, BURN_IN + LENGTH)
    ended = batch.terminated[:, now]
    wanted = data.item["reward"][:, now] + GAMMA * value * ~ended
    action = data.item["action"][:, now, None]
    said = jnp.take_along_axis(online[:, :-1], action, -1)[..., 0]
    # There is no step after the newest one; after a truncation comes another episode.
    behind = data.valid[:, BURN_IN + 1 :] & ~batch.truncated[:, now]
    learn = data.loss_mask[:, now] & (ended | behind)
    return jnp.where(learn, said - jax.lax.stop_gradient(wanted), 0), learn


def train_round(training: Training, _: None, rounds: int, agent: Agent) -> tuple[Training, None]:
    """One step in every environment, and one of learning."""
    done = training.round / rounds
    key, explore_key, action_key, step_key, sample_key = jax.random.split(training.key, 5)
    greedy, hidden = act(training.weights, training.hidden, training.observation)
    explored = jax.random.randint(action_key, (NUM_ENVS,), 0, ENV.num_actions)
    epsilon = jnp.maximum(EPSILON, 1 - done / 0.1)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, _ = jax.vmap(
        ENV.step, in_axes=(0, 0, 0, None)
    )(jax.random.split(step_key, NUM_ENVS), training.env_state, action, ENV_PARAMS)
    step = {
        "observation": training.observation,
        "action": action,
        "reward": reward,
        "hidden": training.hidden,  # that before this step
    }
    buffer = fbuf.add(training.buffer, step, terminated=terminated, truncated=truncated)
    hidden = jnp.where((terminated | truncated)[:, None] | ~agent.remembers, 0, hidden)

    ready = fbuf.size(buffer) >= WARM_UP
    batch = fbuf.sample(buffer, sample_key, BATCH_SIZE, view=VIEW, beta=0.4 + 0.6 * done)

    def loss(weights: Weights) -> tuple[jax.Array, Any]:
        error, learn = td_error(weights, training.target, batch, agent)
        return (ready * batch.weight[:, None] * error**2).mean(), (jnp.abs(error), learn)

    gradient, (error, learn) = jax.grad(loss, has_aux=True)(training.weights)
    updates, state = optimiser(rounds).update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    target = optax.incremental_update(weights, training.target, TARGET_RATE)
    # Sequences that begin at the newest steps have nothing to learn from yet: keep their priority.
    buffer = fbuf.update_priority(
        buffer, batch.ids, fbuf.sequence_priority(error, learn), mask=ready & learn.any(axis=1)
    )
    after = Training(
        weights,
        target,
        state,
        buffer,
        env_state,
        observation,
        hidden,
        key,
        training.round + 1,
    )
    return after, None


def evaluate(weights: Weights, key: jax.Array, agent: Agent) -> jax.Array:
    """The share of right answers, over one whole episode each in many environments."""
    reset_key, step_key = jax.random.split(key)
    begin = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, EPISODES), ENV_PARAMS
    )

    def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        observation, env_state, hidden = carry
        action, hidden = act(weights, hidden, observation)
        observation, env_state, reward, *_ = jax.vmap(ENV.step, in_axes=(0, 0, 0, None))(
            jax.random.split(key, EPISODES), env_state, action, ENV_PARAMS
        )
        return (observation, env_state, jnp.where(agent.remembers, hidden, 0)), reward

    carry = (*begin, jnp.zeros((EPISODES, HIDDEN)))
    rewards = jax.lax.scan(step, carry, jax.random.split(step_key, EPISODE))[1]
    return (rewards.sum(axis=0) > 0).mean()


@partial(jax.jit, static_argnames="rounds")
def train(key: jax.Array, agents: Agent, rounds: int) -> tuple[fbuf.State, jax.Array]:
    """Train all agents; returns their buffers, and shares of answers `[evaluations, agents]`."""

    def one(agent: Agent) -> tuple[fbuf.State, jax.Array]:
        def stretch(training: Training, key: jax.Array) -> tuple[Training, jax.Array]:
            body = partial(train_round, rounds=rounds, agent=agent)
            training, _ = jax.lax.scan(body, training, None, length=rounds // EVALUATIONS)
            return training, evaluate(training.weights, key, agent)

        start_key, evaluation_key = jax.random.split(key)
        keys = jax.random.split(evaluation_key, EVALUATIONS)
        training, right = jax.lax.scan(stretch, start(start_key, rounds), keys)
        return training.buffer, right

    return jax.vmap(one, out_axes=(0, 1))(agents)


def plot(right: jax.Array, rounds: int, path: pathlib.Path) -> None:
    """Save the learning curve of every agent."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [(i + 1) * rounds // EVALUATIONS * NUM_ENVS / 1000 for i in range(EVALUATIONS)]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    axes.axhline(100 * BAR, color="grey", linewidth=0.8, linestyle="--")
    for name, curve, color in zip(AGENTS, right.T, ("blue", "orange", "grey"), strict=True):
        axes.plot(steps, 100 * curve, label=name, color=f"tab:{color}", linewidth=2)
    axes.set(
        xlabel="environment steps of an agent (thousands)",
        ylabel=f"right answers of {EPISODES}, in %",
        xlim=(0, None),
        ylim=(0, 105),
        title=f"Recall after {EPISODE - 2} steps: a recurrent agent",
    )
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curves       {path}")


def main() -> None:
    """Read the command line, train, and fail if it is not memory that was learned."""
    parser = argparse.ArgumentParser(
        description="A recurrent agent that learns to remember, from prioritised sequences with "
        "stored states and burn-in. Beside it are one that ignores the stored states and one "
        "without memory. Prints which share of their answers is right (half are by chance). Exits "
        f"with an error if the share is less than {BAR:.0%} for the first agent, or more than "
        f"{BY_CHANCE:.0%} for the last.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, for all agents")
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps of each agent; each round takes {NUM_ENVS} of them, one in every "
        f"environment, and learns from {BATCH_SIZE} sequences",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a shorter run of {QUICK_ROUNDS * NUM_ENVS} steps; {100 * QUICK_BAR:.0f} %% will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/recurrent_memory.png",
        help="where the picture of the learning curves goes",
    )
    options = parser.parse_args()
    rounds, bar = (QUICK_ROUNDS, QUICK_BAR) if options.quick else (options.steps // NUM_ENVS, BAR)
    if rounds < EVALUATIONS:
        parser.error(f"there must be at least {EVALUATIONS * NUM_ENVS} steps")
    rounds -= rounds % EVALUATIONS  # as many as are made
    started = time.perf_counter()
    key = jax.random.key(options.seed)
    program = train.lower(key, ABILITIES, rounds).compile()
    compiled = time.perf_counter()
    print(f"compiled in {compiled - started:.0f} s; training {len(AGENTS)} agents", flush=True)
    buffers, right = jax.block_until_ready(program(key, ABILITIES))
    seconds = time.perf_counter() - compiled
    fbuf.raise_on_fault(buffers)
    print(f"right answers, of {EPISODES}")
    for name, share in zip(AGENTS, right[-1], strict=True):
        print(f"  {name:<20}{share:.1%}")
    steps = rounds * NUM_ENVS * len(AGENTS)
    print(f"environment steps     {steps / seconds:,.0f} a second, {seconds:.0f} s in all")
    plot(right, rounds, options.plot)
    learned, by_chance = float(right[-1, 0]), float(right[-1, -1])
    if learned < bar:
        sys.exit(f"failed: {learned:.1%} of the answers are right, fewer than {bar:.0%}")
    if by_chance > BY_CHANCE:
        sys.exit(f"failed: {by_chance:.1%} are right without memory, which cannot be")


if __name__ == "__main__":
    main()
