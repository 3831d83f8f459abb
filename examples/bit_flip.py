"""Bit flipping: a goal that is never found by chance, learned with hindsight, and not without.

    python examples/bit_flip.py --help

There are n bits, and a goal of n bits. Each step flips one bit and costs 1, until all bits are as
in the goal. After n steps the episode is cut off. With 15 bits a random agent reaches one goal in
two thousand, so nearly all rewards are the same and teach nothing. But every episode gets
somewhere: `fbuf.Hindsight` turns places that an episode passed into goals of the steps before.

The script trains the same double DQN twice. Only the view differs. Each training is one `lax.scan`
under one `jax.jit`, with the environments and the buffer in its carry.

Needs optax and matplotlib.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import optax

import fbuf

NUM_ENVS = 16
STEPS_STORED = 5_000  # of each environment
BATCH_SIZE = 128
HIDDEN = 256
GAMMA = 0.98
LEARNING_RATE = 1e-3
TARGET_RATE = 0.02  # how far the target network moves towards the learned one in a step
EPSILON = 0.2
LARGEST_COST = 1 / (1 - GAMMA)  # of an agent that never reaches a goal

BITS, QUICK_BITS = 15, 8
ROUNDS, QUICK_ROUNDS = 6_000, 600
EVALUATIONS = 20
SOLVED, LOST = 0.95, 0.1  # success with hindsight must be above, and without it below

Weights = list[tuple[jax.Array, jax.Array]]


class World(NamedTuple):
    """The environments; leaves `[NUM_ENVS, ...]`."""

    bits: jax.Array
    goal: jax.Array
    step: jax.Array


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights
    target: Weights
    optimiser: Any
    buffer: fbuf.State
    world: World
    key: jax.Array


def new_world(key: jax.Array, count: int, bits: int) -> World:
    """Episodes that begin anywhere, with a goal anywhere."""
    here, goal = jax.random.bernoulli(key, 0.5, (2, count, bits))
    return World(here, goal, jnp.zeros(count, jnp.int32))


def flip(world: World, action: jax.Array) -> World:
    """The worlds after a step of each."""
    chosen = jnp.arange(world.bits.shape[1]) == action[:, None]
    return World(world.bits ^ chosen, world.goal, world.step + 1)


def reward_fn(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    """A step costs 1 unless it reaches the goal."""
    return jnp.where(jnp.all(achieved == goal, axis=-1), 0.0, -1.0)


def q_values(weights: Weights, bits: jax.Array, goal: jax.Array) -> jax.Array:
    """A network of one hidden layer, which sees bits and goal as numbers of -1 and 1."""
    x = jnp.concatenate([bits, goal], axis=-1) * 2.0 - 1.0
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ weights[-1][0] + weights[-1][1]


def initial_weights(key: jax.Array, bits: int) -> Weights:
    """Uniform in the reach of one over the root of a layer's inputs."""
    sizes = ((2 * bits, HIDDEN), (HIDDEN, bits))
    weights = []
    for (inputs, outputs), layer in zip(sizes, jax.random.split(key, len(sizes)), strict=True):
        weight = jax.random.uniform(layer, (inputs, outputs), minval=-1, maxval=1)
        weights.append((weight * inputs**-0.5, jnp.zeros(outputs)))
    return weights


def start(key: jax.Array, bits: int) -> Training:
    """A new agent, its environments and an empty buffer."""
    weights_key, world_key, key = jax.random.split(key, 3)
    weights = initial_weights(weights_key, bits)
    place = jax.ShapeDtypeStruct((bits,), bool)
    item = {
        "observation": place,
        "goal": place,
        "action": jnp.int32(0),
        "reward": 0.0,
        "next_observation": place,  # also what the step achieved
    }
    buffer = fbuf.init(item, NUM_ENVS * STEPS_STORED, num_envs=NUM_ENVS, sampler=fbuf.Uniform())
    state = optax.adam(LEARNING_RATE).init(weights)
    return Training(weights, weights, state, buffer, new_world(world_key, NUM_ENVS, bits), key)


def loss(weights: Weights, target: Weights, batch: fbuf.Sample) -> jax.Array:
    """Double DQN: the learned network chooses, the target network values."""
    data = batch.data.item
    there, goal = data["next_observation"], data["goal"]
    best = q_values(weights, there, goal).argmax(-1)
    value = jnp.take_along_axis(q_values(target, there, goal), best[:, None], 1)[:, 0]
    # From the reward, not from `batch.terminated`, which belongs to the goal stored with the row.
    arrived = data["reward"] == 0
    wanted = jnp.maximum(data["reward"] + GAMMA * value * ~arrived, -LARGEST_COST)
    said = q_values(weights, data["observation"], goal)
    said = jnp.take_along_axis(said, data["action"][:, None], 1)[:, 0]
    return (batch.weight * (said - jax.lax.stop_gradient(wanted)) ** 2).mean()


def train_round(training: Training, _: None, view: fbuf.Hindsight) -> tuple[Training, None]:
    """One step in every environment, and one of learning."""
    key, explore_key, action_key, reset_key, sample_key = jax.random.split(training.key, 5)
    world = training.world
    bits = world.bits.shape[1]
    greedy = q_values(training.weights, world.bits, world.goal).argmax(-1)
    explored = jax.random.randint(action_key, (NUM_ENVS,), 0, bits)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < EPSILON
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    after = flip(world, action)
    reward = reward_fn(after.bits, after.goal)
    terminated = reward == 0
    truncated = (after.step == bits) & ~terminated
    transition = {
        "observation": world.bits,
        "goal": world.goal,
        "action": action,
        "reward": reward,
        "next_observation": after.bits,
    }
    buffer = fbuf.add(training.buffer, transition, terminated=terminated, truncated=truncated)
    ended = terminated | truncated
    world = jax.tree.map(
        lambda new, old: jnp.where(ended.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
        new_world(reset_key, NUM_ENVS, bits),
        after,
    )

    batch = fbuf.sample(buffer, sample_key, BATCH_SIZE, view=view)
    buffer = fbuf.after(buffer, batch)  # the next write waits for the batch
    gradient = jax.grad(loss)(training.weights, training.target, batch)
    updates, state = optax.adam(LEARNING_RATE).update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    target = optax.incremental_update(weights, training.target, TARGET_RATE)
    return Training(weights, target, state, buffer, world, key), None


def evaluate(weights: Weights, key: jax.Array, bits: int) -> jax.Array:
    """The share of 1000 goals that the greedy policy reaches in time."""

    def step(carry: tuple[World, jax.Array], _: None) -> tuple[tuple[World, jax.Array], None]:
        world, solved = carry
        world = flip(world, q_values(weights, world.bits, world.goal).argmax(-1))
        return (world, solved | (world.bits == world.goal).all(-1)), None

    carry = (new_world(key, 1000, bits), jnp.zeros(1000, bool))
    return jax.lax.scan(step, carry, None, length=bits)[0][1].mean()


@partial(jax.jit, static_argnames=("bits", "rounds", "view"))
def train(
    key: jax.Array, bits: int, rounds: int, view: fbuf.Hindsight
) -> tuple[fbuf.State, jax.Array]:
    """Train an agent; returns its buffer, and its success `[EVALUATIONS]` on the way."""

    def stretch(training: Training, key: jax.Array) -> tuple[Training, jax.Array]:
        body = partial(train_round, view=view)
        training, _ = jax.lax.scan(body, training, None, length=rounds // EVALUATIONS)
        return training, evaluate(training.weights, key, bits)

    start_key, evaluation_key = jax.random.split(key)
    keys = jax.random.split(evaluation_key, EVALUATIONS)
    training, success = jax.lax.scan(stretch, start(start_key, bits), keys)
    return training.buffer, success


def plot(success: dict[str, jax.Array], bits: int, rounds: int, path: pathlib.Path) -> None:
    """Save both learning curves."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [(i + 1) * rounds // EVALUATIONS * NUM_ENVS / 1000 for i in range(EVALUATIONS)]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for (name, curve), colour in zip(success.items(), ("tab:blue", "tab:grey"), strict=True):
        axes.plot(steps, 100 * curve, color=colour, linewidth=2.5, label=name)
    axes.set(
        xlabel="environment steps (thousands)",
        ylabel="goals reached in time (%)",
        xlim=(0, None),
        ylim=(-2, 102),
        title=f"Flipping {bits} bits",
    )
    axes.legend(frameon=False, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curves     {path}")


def make_parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description="Double DQN that learns to reach goals by flipping bits, with and without "
        "hindsight. Prints how many of 1000 goals each agent reaches in time. Exits with an error "
        f"if that is below {SOLVED:.0%} with hindsight or above {LOST:.0%} without.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, for both agents")
    parser.add_argument("--bits", type=int, default=BITS, help="how many; an episode is as long")
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps of each agent; each round takes {NUM_ENVS} of them, one in every "
        "environment, and learns from one batch",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a check that everything runs and learns: {QUICK_BITS} bits and "
        f"{QUICK_ROUNDS * NUM_ENVS} steps; with more, so few bits are found by chance",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/bit_flip.png",
        help="where the picture of the learning curves goes",
    )
    return parser


def main() -> None:
    """Read the command line, train both agents, and fail if hindsight made no difference."""
    parser = make_parser()
    options = parser.parse_args()
    bits, rounds = options.bits, options.steps // NUM_ENVS
    if options.quick:
        bits, rounds = QUICK_BITS, QUICK_ROUNDS
    if rounds < EVALUATIONS or bits < 1:
        parser.error(f"there must be at least {EVALUATIONS * NUM_ENVS} steps and one bit")
    rounds -= rounds % EVALUATIONS  # as many as are made
    success = {}
    for name, ratio in (("with hindsight", 0.8), ("without", 0.0)):
        view = fbuf.Hindsight(
            reward_fn, strategy="future", ratio=ratio, achieved="next_observation"
        )
        started = time.perf_counter()
        key = jax.random.key(options.seed)
        one_round = jax.jit(partial(train_round, view=view), donate_argnums=0)
        fbuf.check_in_place(one_round, jax.eval_shape(partial(start, bits=bits), key), None)
        program = train.lower(key, bits, rounds, view).compile()
        compiled = time.perf_counter()
        buffer, success[name] = jax.block_until_ready(program(key))
        done = time.perf_counter()
        fbuf.raise_on_fault(buffer)
        print(
            f"{name:<19} {success[name][-1]:6.1%} of the goals reached; compiled in "
            f"{compiled - started:.0f} s, trained in {done - compiled:.0f} s",
            flush=True,
        )
    print("on the way          " + "  ".join(success))
    for at in range(EVALUATIONS):
        step = (at + 1) * (rounds // EVALUATIONS) * NUM_ENVS
        shares = (curve[at] for curve in success.values())
        print(f"{step:>12,} steps  " + "  ".join(f"{share:14.1%}" for share in shares))
    plot(success, bits, rounds, options.plot)
    if float(success["with hindsight"][-1]) < SOLVED:
        sys.exit(f"failed: with hindsight fewer than {SOLVED:.0%} of the goals are reached")
    if float(success["without"][-1]) > LOST:
        sys.exit(f"failed: without hindsight more than {LOST:.0%} of the goals are reached")


if __name__ == "__main__":
    main()
