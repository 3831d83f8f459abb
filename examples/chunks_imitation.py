"""Imitation of an expert who pauses: single actions get stuck or rush on, action chunks do not.

    python examples/chunks_imitation.py --help

A point in the plane has to press a button and go on to a goal. It comes from the left, must stay
on the button for 8 steps, and leaves to the right; there are 60 steps in all. A policy sees the
place and the goal. The expert, who is watched 100 times, counts 10 steps on the button. Nothing
that a policy sees tells these steps apart: the same observation leads ten times to "stay", and then
to "go". A policy that predicts one action learns the mean of both, and creeps off too soon.

A policy that predicts the next k actions, and carries them out before it looks again, has most of
the pause in one prediction. ACT and diffusion policies predict chunks for this reason, too. Short
chunks are worse than single actions: they look again within the pause, and go further before they
do. The other cure is to see the steps before, which tell how long the point has stood still: here
it is even better. One view makes both:
`fbuf.Window({"action": range(k)})`, and `fbuf.Window({"observation": range(-11, 1)})`. No offset
reaches another demonstration, and the loss leaves out what lies behind the last step.

The policies learn from the same buffer and the same number of rows, five seeds each.

Needs optax and matplotlib.

References:
    Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware,
    arXiv:2304.13705.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import optax

import fbuf

STEPS = 60
DEMONSTRATIONS = 100
SPEED = 0.1  # of the largest action, a step
SHAKE = 0.01  # of each step of the point, the standard deviation
CLUMSY = 0.1  # of each action of the expert, likewise
HOLD, PRESSED = 10, 8  # steps: how long the expert holds the button, and how long it must be held
REACH = 0.12  # the radius of the button, and of the goal

BATCH_SIZE = 128
HIDDEN = 128
LEARNING_RATE = 1e-3  # falls to 0 over the run
UPDATES, QUICK_UPDATES = 3_000, 1_000
SEEDS, QUICK_SEEDS = 5, 2
EPISODES = 200  # of each seed, to judge a policy

CHUNKS, QUICK_CHUNKS = (1, 2, 4, 8, 16, 24), (1, 16)
HISTORY = 12  # observations, of a policy that predicts single actions
BEST = 16
GAIN = 0.2  # by so much chunks of 16 must succeed more often than single actions

Layers = list[tuple[jax.Array, jax.Array]]


class World(NamedTuple):
    """Points; leaves `[n, ...]`."""

    place: jax.Array
    goal: jax.Array
    held: jax.Array  # steps on the button, one after another
    pressed: jax.Array  # it was held for long enough


def new_world(key: jax.Array, count: int) -> World:
    """Points on the left, and goals on the right."""
    x, y, goal = jax.random.uniform(key, (3, count), minval=-1, maxval=1)
    place = jnp.stack([-0.8 + 0.2 * x, 0.5 * y], axis=1)
    goal = jnp.stack([jnp.full(count, 0.8), 0.5 * goal], axis=1)
    return World(place, goal, jnp.zeros(count, jnp.int32), jnp.zeros(count, bool))


def observe(world: World) -> jax.Array:
    return jnp.concatenate([world.place, world.goal], axis=1)


def move(world: World, action: jax.Array, key: jax.Array) -> World:
    """The points after a step."""
    length = jnp.linalg.norm(action, axis=1, keepdims=True)
    action = action / jnp.maximum(length, 1)
    shake = SHAKE * jax.random.normal(key, action.shape)
    place = world.place + SPEED * action + shake
    held = jnp.where(jnp.linalg.norm(place, axis=1) < REACH, world.held + 1, 0)
    return World(place, world.goal, held, world.pressed | (held >= PRESSED))


def solved(world: World) -> jax.Array:
    """Whether a point has pressed the button and reached its goal."""
    return world.pressed & (jnp.linalg.norm(world.place - world.goal, axis=1) < REACH)


@jax.jit
def watch(key: jax.Array) -> tuple[fbuf.State, jax.Array]:
    """The demonstrations in a buffer, and the share of them that succeed."""
    world_key, key = jax.random.split(key)

    def step(carry: tuple[World, jax.Array], key: jax.Array) -> tuple[tuple, tuple]:
        world, count = carry  # how long each has held the button
        act_key, move_key = jax.random.split(key)
        count = count + (world.held > 0)
        target = jnp.where((count > HOLD)[:, None], world.goal, 0.0)
        action = (target - world.place) / SPEED
        action = action / jnp.maximum(jnp.linalg.norm(action, axis=1, keepdims=True), 1)
        action = action + CLUMSY * jax.random.normal(act_key, action.shape)
        return (move(world, action, move_key), count), (observe(world), action)

    world = new_world(world_key, DEMONSTRATIONS)
    carry = world, jnp.zeros(DEMONSTRATIONS, jnp.int32)
    (world, _), steps = jax.lax.scan(step, carry, jax.random.split(key, STEPS))
    observation, action = (jnp.swapaxes(leaf, 0, 1).reshape(-1, leaf.shape[-1]) for leaf in steps)
    item = {"observation": jnp.zeros(4), "action": jnp.zeros(2)}
    buffer = fbuf.init(item, DEMONSTRATIONS * STEPS)
    ends = jnp.arange(DEMONSTRATIONS * STEPS) % STEPS == STEPS - 1
    rows = {"observation": observation, "action": action}
    return fbuf.add(buffer, rows, truncated=ends), solved(world).mean()


# ---- policies --------------------------------------------------------------------------------


def initial_layers(key: jax.Array, inputs: int, outputs: int) -> Layers:
    sizes = (inputs, HIDDEN, HIDDEN, outputs)
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b)) for k, a, b in pairs]


def predict(layers: Layers, seen: jax.Array, chunk: int) -> jax.Array:
    """The next actions, `[n, chunk, 2]`, from observations `[n, seen, 4]`."""
    x = seen.reshape(len(seen), -1)
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return (x @ weight + bias).reshape(len(seen), chunk, 2)


def play(layers: Layers, key: jax.Array, chunk: int, seen: int) -> jax.Array:
    """The share of episodes that succeed; each prediction is carried out before the next one."""
    world_key, key = jax.random.split(key)
    world = new_world(world_key, EPISODES)
    past = jnp.repeat(observe(world)[:, None], seen, axis=1)

    def step(carry: tuple, now: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        world, past, plan = carry
        key, number = now
        past = jnp.concatenate([past[:, 1:], observe(world)[:, None]], axis=1)
        plan = jnp.where(number % chunk == 0, predict(layers, past, chunk), plan)
        world = move(world, plan[:, number % chunk], key)
        return (world, past, plan), None

    carry = world, past, jnp.zeros((EPISODES, chunk, 2))
    steps = jax.random.split(key, STEPS), jnp.arange(STEPS)
    (world, _, _), _ = jax.lax.scan(step, carry, steps)
    return solved(world).mean()


@partial(jax.jit, static_argnames=("chunk", "seen", "updates"))
def learn(buffer: fbuf.State, keys: jax.Array, chunk: int, seen: int, updates: int) -> jax.Array:
    """Train a policy for each key, from one buffer; returns the success of each."""
    view = fbuf.Window({"action": range(chunk), "observation": range(1 - seen, 1)})
    adam = optax.adam(optax.linear_schedule(LEARNING_RATE, 0.0, updates))

    def loss(layers: Layers, key: jax.Array) -> jax.Array:
        batch = fbuf.sample(buffer, key, BATCH_SIZE, view=view)
        item, valid = batch.data.item, batch.data.valid["action"]
        error = predict(layers, item["observation"], chunk) - item["action"]
        return jnp.mean(jnp.square(error), where=valid[..., None])

    def update(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        layers, moments = carry
        change, moments = adam.update(jax.grad(loss)(layers, key), moments)
        return (optax.apply_updates(layers, change), moments), None

    def one(key: jax.Array) -> jax.Array:
        start_key, play_key, key = jax.random.split(key, 3)
        layers = initial_layers(start_key, 4 * seen, 2 * chunk)
        carry = layers, adam.init(layers)
        (layers, _), _ = jax.lax.scan(update, carry, jax.random.split(key, updates))
        return play(layers, play_key, chunk, seen)

    return jax.vmap(one)(keys)


# ---- the run ---------------------------------------------------------------------------------


def plot(found: dict[int, jax.Array], history: jax.Array, path: pathlib.Path) -> None:
    """Save the success of every policy over the length of its chunks."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    label = f"single actions from {HISTORY} observations"
    axes.axhline(100 * history.mean(), color="tab:orange", linestyle="--", label=label)
    means = [100 * float(share.mean()) for share in found.values()]
    axes.plot(list(found), means, color="tab:blue", linewidth=2, label="chunks, mean")
    for chunk, shares in found.items():
        axes.plot([chunk] * len(shares), 100 * shares, "o", color="tab:blue", alpha=0.5)
    axes.set(
        xscale="log",
        xlabel="actions in a chunk",
        ylabel=f"success in {EPISODES} episodes, in %",
        ylim=(0, 105),
        title=f"Press, hold, go on: {DEMONSTRATIONS} demonstrations",
    )
    axes.set_xticks(list(found), [str(chunk) for chunk in found])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"picture               {path}")


def main() -> None:
    """Read the command line, learn, and fail if chunks are not better than single actions."""
    parser = argparse.ArgumentParser(
        description="Imitation of an expert who pauses, by single actions, by action chunks, and "
        "from a history. Prints how often each succeeds. Exits with an error if chunks of "
        f"{BEST} actions are not at least {100 * GAIN:.0f} points better than single actions.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of each policy")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_UPDATES} updates, {QUICK_SEEDS} seeds, and chunks of "
        f"{' and '.join(map(str, QUICK_CHUNKS))} alone",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/chunks_imitation.png",
        help="where the picture goes",
    )
    options = parser.parse_args()
    if options.updates < 1:
        parser.error("there must be at least one update")
    updates, seeds, chunks = options.updates, SEEDS, CHUNKS
    if options.quick:
        updates, seeds, chunks = QUICK_UPDATES, QUICK_SEEDS, QUICK_CHUNKS
    started = time.perf_counter()
    watch_key, learn_key = jax.random.split(jax.random.key(options.seed))
    buffer, expert = watch(watch_key)
    fbuf.raise_on_fault(buffer)
    keys = jax.random.split(learn_key, seeds)
    print(f"the expert succeeds in {expert:.0%} of {DEMONSTRATIONS} episodes")
    print(f"a policy, in % of {EPISODES} episodes: the mean, and each seed")

    def trained(name: str, chunk: int, seen: int) -> jax.Array:
        found = learn(buffer, keys, chunk, seen, updates)
        each = " ".join(f"{100 * share:3.0f}" for share in found)
        print(f"  {name:<28}{100 * found.mean():4.0f}   {each}", flush=True)
        return found

    found = {chunk: trained(f"chunks of {chunk}", chunk, 1) for chunk in chunks}
    history = trained(f"chunks of 1, {HISTORY} observations", 1, HISTORY)
    print(f"seconds               {time.perf_counter() - started:.0f}")
    plot(found, history, options.plot)
    gain = float(found[BEST].mean() - found[1].mean())
    if gain < GAIN:
        sys.exit(f"failed: chunks of {BEST} are better by {100 * gain:.0f} points alone")


if __name__ == "__main__":
    main()
