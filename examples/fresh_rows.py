"""Fresh rows first: how long a new row waits for its first batch, and when that matters.

    python examples/fresh_rows.py --help

The first part draws batches of a full buffer, and notes for each row in which batch it is for the
first time. With two draws for each new row, a uniform sampler never draws one row in seven: it is
overwritten before. `fbuf.FreshFirst` has every row in the batch that follows it.

The second part is the grid world of combined experience replay. An agent of tabular Q-learning
learns from ten rows a step, of a buffer that keeps all steps. It learns two tasks:

- Each step costs 1. No value is that bad before it was learned, so the agent tries what it has not
  learned about. A step that waits in the buffer is tried again and again.
- The goal is worth 1, and a step costs nothing. The agent walks at random until it finds the goal.
  Then one row more or less in a batch hardly matters.

In the first task fresh rows save most of the steps. In the second one they save nothing.

All of a training is one `lax.scan` under one `jax.jit`.

Needs matplotlib.

References:
    Zhang and Sutton, A Deeper Look at Experience Replay, arXiv:1712.01275.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

import fbuf
from fbuf.samplers import Sampler

SAMPLERS = {
    "uniform": fbuf.Uniform(),
    "prioritised": fbuf.Prioritized(beta=0.4),
    "25% from the newest 1,024": fbuf.Mixture(
        uniform=0.75, prioritized=0.0, recent=0.25, recent_rows=1024
    ),
    "fresh first": fbuf.FreshFirst(),
}
UNIFORM, FRESH = "uniform", "fresh first"
COLOURS = ("tab:grey", "tab:green", "tab:orange", "tab:blue")

# The first part: how long rows wait.
ROWS, DRAWS = 64, 128  # of a step
STORED, QUICK_STORED = 2**16, 2**13

# The second part: a grid world.
SIDE = 20
GOAL = SIDE * SIDE - 1  # an episode begins in the opposite corner, at 0
SHORTEST = 2 * (SIDE - 1)  # steps from there to the goal
LONGEST = 5_000  # steps, after which an episode is cut off
CAPACITY = 1_000_000
BATCH_SIZE = 10
LEARNING_RATE = 0.1
EPSILON = 0.1
STRETCHES = 20  # points of a learning curve
STEPS, QUICK_STEPS = 60_000, 12_000
SEEDS, QUICK_SEEDS = 5, 2
GAIN, QUICK_GAIN = 5, 3  # fresh rows must lead to so many times the goals in the first task


class Task(NamedTuple):
    """The rewards of a task."""

    of_step: float
    of_goal: float
    discount: float


TASKS = {"each step costs 1": Task(-1.0, -1.0, 1.0), "the goal is worth 1": Task(0.0, 1.0, 0.97)}


class Agent(NamedTuple):
    """Everything there is: the carry of the scan."""

    values: jax.Array  # [places, 4]
    buffer: fbuf.State
    place: jax.Array
    step: jax.Array  # of the episode
    key: jax.Array


def draw(
    buffer: fbuf.State, key: jax.Array, batch_size: int
) -> tuple[fbuf.State, fbuf.Sample[dict[str, jax.Array]]]:
    """Draw a batch; a buffer that remembers its draws is changed by that."""
    if buffer.sampler.notes_draws:
        return fbuf.draw(buffer, key, batch_size)
    return buffer, fbuf.sample(buffer, key, batch_size)


@partial(jax.jit, static_argnames=("sampler", "stored"))
def waiting(key: jax.Array, sampler: Sampler, stored: int) -> tuple[fbuf.State, jax.Array]:
    """Return the buffer, and for each row the number of the batch that has it for the first time.

    The batch that follows the row is number 1; rows that no batch ever had are -1. The rows are
    those of the second lap of three: int32 `[stored]`.
    """
    total = 3 * stored
    error_key, key = jax.random.split(key)
    errors = jnp.abs(jax.random.normal(error_key, (total,)))  # made up: each use halves one
    never = jnp.iinfo(jnp.int32).max

    def step(carry: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        buffer, errors, first = carry
        number, key = now
        new = number * ROWS + jnp.arange(ROWS, dtype=jnp.int32)
        buffer, batch = draw(fbuf.add(buffer, {"row": new}), key, DRAWS)
        rows = batch.data["row"]
        first = first.at[rows].min(number + 1)
        errors = errors.at[rows].multiply(0.5)
        if sampler.keeps_priorities:
            buffer = fbuf.update_priority(buffer, batch.ids, errors[rows])
        return (buffer, errors, first), None

    buffer = fbuf.init({"row": jnp.int32(0)}, stored, sampler=sampler)
    numbers = jnp.arange(total // ROWS, dtype=jnp.int32)
    carry = (buffer, errors, jnp.full(total, never))
    steps = (numbers, jax.random.split(key, len(numbers)))
    buffer, _, first = jax.lax.scan(step, carry, steps)[0]
    lap = jnp.arange(stored, 2 * stored, dtype=jnp.int32)
    return buffer, jnp.where(first[lap] == never, -1, first[lap] - lap // ROWS)


def move(place: jax.Array, action: jax.Array) -> jax.Array:
    """Return the place behind a step up, down, left or right; a wall is no way."""
    y, x = place // SIDE, place % SIDE
    down, right = jnp.array([-1, 1, 0, 0])[action], jnp.array([0, 0, -1, 1])[action]
    y, x = jnp.clip(y + down, 0, SIDE - 1), jnp.clip(x + right, 0, SIDE - 1)
    return (y * SIDE + x).astype(jnp.int32)


def train_step(agent: Agent, _: None, task: Task) -> tuple[Agent, jax.Array]:
    """One step in the grid, and one of learning; returns whether the goal was reached."""
    key, best_key, action_key, explore_key, draw_key = jax.random.split(agent.key, 5)
    values, place = agent.values, agent.place
    is_best = values[place] == values[place].max()
    best = jax.random.categorical(best_key, jnp.where(is_best, 0.0, -jnp.inf))
    explored = jax.random.randint(action_key, (), 0, 4)
    action = jnp.where(jax.random.uniform(explore_key) < EPSILON, explored, best)
    there = move(place, action)
    reached, length = there == GOAL, agent.step + 1
    ended = reached | (length == LONGEST)
    row = {"place": place, "action": action.astype(jnp.int32), "there": there}
    buffer = fbuf.add(agent.buffer, row, terminated=reached, truncated=ended & ~reached)

    buffer, batch = draw(buffer, draw_key, BATCH_SIZE)
    then = batch.data["there"]
    reward = jnp.where(batch.terminated, task.of_goal, task.of_step)
    later = jnp.where(batch.terminated, 0, values[then].max(axis=-1))
    at = batch.data["place"], batch.data["action"]
    error = reward + task.discount * later - values[at]
    values = values.at[at].add(LEARNING_RATE * batch.weight * error)
    if buffer.sampler.keeps_priorities:
        buffer = fbuf.update_priority(buffer, batch.ids, jnp.abs(error))
    place = jnp.where(ended, 0, there)
    return Agent(values, buffer, place, jnp.where(ended, 0, length), key), reached


@partial(jax.jit, static_argnames=("sampler", "steps"))
def train(key: jax.Array, task: Task, sampler: Sampler, steps: int) -> tuple[fbuf.State, jax.Array]:
    """Train an agent; returns its buffer, and how often it reached the goal: `[STRETCHES]`."""
    item = dict.fromkeys(("place", "action", "there"), jnp.int32(0))
    buffer = fbuf.init(item, CAPACITY, sampler=sampler)
    agent = Agent(jnp.zeros((SIDE * SIDE, 4)), buffer, jnp.int32(0), jnp.int32(0), key)
    agent, reached = jax.lax.scan(partial(train_step, task=task), agent, None, length=steps)
    return agent.buffer, reached.reshape(STRETCHES, -1).sum(axis=1)


def measure_waits(key: jax.Array, stored: int) -> dict[str, np.ndarray]:
    """Measure how long rows wait with every sampler, and print it."""
    print(f"{'the batch that has a row first':<38}{'half':>8}{'9 of 10':>9}{'never':>8}")
    waits = {}
    for name, sampler in SAMPLERS.items():
        buffer, found = waiting(key, sampler, stored)
        fbuf.raise_on_fault(buffer)
        waits[name] = np.asarray(found)
        order = np.sort(np.where(waits[name] < 0, np.inf, waits[name]))
        half, most = (order[int(share * stored)] for share in (0.5, 0.9))
        late = f"{most:,.0f}" if np.isfinite(most) else "never"
        print(f"  {name:<36}{half:>8,.0f}{late:>9}{np.mean(waits[name] < 0):>8.1%}", flush=True)
    return waits


def learn(key: jax.Array, seeds: int, steps: int) -> dict[str, dict[str, np.ndarray]]:
    """Train all agents on every task, and print how often each reached the goal."""
    found: dict[str, dict[str, np.ndarray]] = {title: {} for title in TASKS}
    for title, task in TASKS.items():
        print(f"goals in {steps:,} steps: {title}; at most {steps // SHORTEST:,}")
        for name, sampler in SAMPLERS.items():
            curves = []
            for one in jax.random.split(key, seeds):
                buffer, reached = train(one, task, sampler, steps)
                fbuf.raise_on_fault(buffer)
                curves.append(np.asarray(reached))
            found[title][name] = np.stack(curves)
            goals = found[title][name].sum(axis=1)
            print(f"  {name:<36}{goals.mean():>8,.0f}   ({goals.min():,} to {goals.max():,})")
    return found


def plot(
    waits: dict[str, np.ndarray],
    found: dict[str, dict[str, np.ndarray]],
    steps: int,
    path: pathlib.Path,
) -> None:
    """Save the curves of waiting and of learning."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4))
    for (name, wait), colour in zip(waits.items(), COLOURS, strict=True):
        life = len(wait) // ROWS
        counted = np.bincount(wait[wait > 0], minlength=life + 1)[1:] / len(wait)
        label = f"{name} (never: {np.mean(wait < 0):.0%})"
        axes[0].step(
            np.arange(1, life + 1), 100 * counted.cumsum(), where="post", color=colour,
            linewidth=2, label=label,
        )  # fmt: skip
    axes[0].set(
        xscale="log",
        xlim=(0.9, life),
        ylim=(0, 104),
        xlabel="batches since the row was added",
        ylabel="rows that were drawn, in %",
        title=f"Rows wait: {ROWS} new, {DRAWS} draws a batch",
    )
    done = (np.arange(STRETCHES) + 1) * (steps // STRETCHES) / 1000
    for ax, (title, curves) in zip(axes[1:], found.items(), strict=True):
        for curve, colour in zip(curves.values(), COLOURS, strict=True):
            rate = 1000 * curve / (steps // STRETCHES)
            ax.fill_between(done, rate.min(axis=0), rate.max(axis=0), color=colour, alpha=0.2)
            ax.plot(done, rate.mean(axis=0), color=colour, linewidth=2)
        ax.axhline(1000 / SHORTEST, color="grey", linewidth=0.8, linestyle="--")
        ax.set(
            xlabel="environment steps (thousands)",
            ylabel="goals in 1,000 steps",
            xlim=(0, None),
            ylim=(0, 28),
            title=f"Q-learning: {title}",
        )
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=150)
    print(f"all curves  {path}")


def main() -> None:
    """Read the command line, measure, train, and fail if fresh rows made no difference."""
    parser = argparse.ArgumentParser(
        description="How long a new row waits for its first batch with four samplers, and how fast "
        "tabular Q-learning learns with them. Exits with an error if fbuf.FreshFirst leaves a row "
        "out of the batch that follows it, or does not help where each step costs 1.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="agents for each sampler and task")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of each agent")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a shorter run: {QUICK_SEEDS} seeds of {QUICK_STEPS} steps, and a smaller buffer",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/fresh_rows.png",
        help="where the picture of all curves goes",
    )
    options = parser.parse_args()
    stored, seeds, steps, gain = STORED, options.seeds, options.steps, GAIN
    if options.quick:
        stored, seeds, steps, gain = QUICK_STORED, QUICK_SEEDS, QUICK_STEPS, QUICK_GAIN
    if steps < STRETCHES or seeds < 1:
        parser.error(f"there must be at least {STRETCHES} steps and one seed")
    steps -= steps % STRETCHES  # as many as are made
    started = time.perf_counter()
    wait_key, learn_key = jax.random.split(jax.random.key(options.seed))
    waits = measure_waits(wait_key, stored)
    found = learn(learn_key, seeds, steps)
    print(f"{time.perf_counter() - started:.0f} s in all")
    plot(waits, found, steps, options.plot)
    if (waits[FRESH] != 1).any():
        sys.exit("failed: FreshFirst left a row out of the batch that follows it")
    missed = np.mean(waits[UNIFORM] < 0)
    if abs(missed - math.exp(-DRAWS / ROWS)) > 0.02:
        sys.exit(f"failed: uniform draws left out {missed:.1%}, which cannot be")
    goals = {name: curve.sum() for name, curve in next(iter(found.values())).items()}
    if goals[FRESH] < gain * max(goals[UNIFORM], 1):
        sys.exit(
            f"failed: fresh rows led to {goals[FRESH]} goals, uniform ones to {goals[UNIFORM]}"
        )


if __name__ == "__main__":
    main()
