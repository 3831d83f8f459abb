"""Four seeds by `vmap`, beside four times one.

    python -m benchmarks.evidence.seeds            about 6 minutes on 2 cores
    python -m benchmarks.evidence.seeds --quick    a few seconds

It needs JAX alone.

A step in `lax.scan` adds 16 rows of 16 environments, and draws a batch of 256. It draws rows, or
windows of 4 steps, or rows by priority, and then updates their priorities. Episodes have 8 steps or
no end. With ends, three of eight rows begin no window. "Under cond" draws at one step of four, in a
branch of `lax.cond`. The buffers are full. One seed and four take turns, round by round. With "one
core" the process may use one core, so XLA has no second thread.

Figures are medians over processes of medians over rounds.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from benchmarks import harness, report
from benchmarks.harness import Box, Measured, Record, Task
from benchmarks.report import Find

SEEDS, ADDED, BATCH, LENGTH = 4, 16, 256, 4
SIZES, CORES = (10_000, 1_000_000), (None, 1)
ITEM = {
    "observation": jax.ShapeDtypeStruct((20,), "float32"),
    "action": jax.ShapeDtypeStruct((), "int32"),
    "reward": jax.ShapeDtypeStruct((), "float32"),
}
ROWS, WINDOWS, SHORT, PRIORITIES = "rows", "windows", "windows, short episodes", "priorities"
SAMPLERS: dict[str, fbuf.samplers.Sampler] = {
    ROWS: fbuf.Uniform(),
    WINDOWS: fbuf.Uniform(window=LENGTH),
    SHORT: fbuf.Uniform(window=LENGTH),
    PRIORITIES: fbuf.Prioritized(),
}
EPISODE = 8
FORMS = EVERY_STEP, UNDER_COND = "every step", "under cond"
TURNS, MOST = 500, 1.2

Carry = tuple[fbuf.State[Any], jax.Array]


def rows_of(number: jax.Array) -> Any:
    """Return the rows of a step."""
    reward = (jnp.arange(ADDED, dtype=jnp.float32) * 7 + number) % 5
    return {
        "observation": jnp.broadcast_to(reward[:, None], (ADDED, 20)),
        "action": jnp.zeros(ADDED, jnp.int32),
        "reward": reward,
    }


def learn(name: str, carry: Carry, key: jax.Array) -> Carry:
    """Draw a batch, look at all of it, and update priorities."""
    state, seen = carry
    in_windows = name in (WINDOWS, SHORT)
    view = fbuf.Sequence(LENGTH) if in_windows else fbuf.Item()
    batch = fbuf.sample(state, key, BATCH, view=view)
    data: Any = batch.data.item if in_windows else batch.data
    if name == PRIORITIES:
        state = fbuf.update_priority(state, batch.ids, data["reward"] + 0.1)
    return state, seen + data["observation"].sum() + data["reward"].sum() + batch.weight.sum()


def added(name: str, state: fbuf.State[Any], number: jax.Array) -> fbuf.State[Any]:
    """Add the rows of a step; the environments do not end together."""
    ends = (jnp.arange(ADDED) + number) % EPISODE == 0 if name == SHORT else None
    return fbuf.add(state, rows_of(number), terminated=ends)


def program(name: str, form: str) -> Any:
    """Return many steps, as a function of the carry and a key."""

    def step(carry: Carry, given: Any) -> tuple[Carry, None]:
        number, key = given
        carry = added(name, carry[0], number), carry[1]
        if form == EVERY_STEP:
            return learn(name, carry, key), None
        # A condition on the size would be one of each seed: the states come from outside.
        due = number % 4 == 0
        return jax.lax.cond(due, lambda: learn(name, carry, key), lambda: carry), None

    def run(carry: Carry, key: jax.Array) -> Carry:
        numbers = jnp.arange(TURNS)
        return jax.lax.scan(step, carry, (numbers, jax.random.split(key, TURNS)))[0]

    return run


def full(name: str, n: int, _: jax.Array) -> Carry:
    """Return a full buffer, and a sum."""
    state = fbuf.init(ITEM, n, num_envs=ADDED, sampler=SAMPLERS[name])
    fill = lambda number, state: added(name, state, number)
    return jax.lax.fori_loop(0, n // ADDED + 3, fill, state), jnp.float32(0)


def run_of(name: str, form: str, n: int, seeds: int) -> harness.Run:
    """Return a timed call of the program for one seed, or for several."""
    make, run = lambda seed: full(name, n, seed), program(name, form)
    keys: Any = jax.random.key(1)
    if seeds > 1:
        make, run, keys = jax.vmap(make), jax.vmap(run), jax.random.split(keys, seeds)
    box = Box(jax.jit(make)(jnp.arange(seeds) if seeds > 1 else jnp.int32(0)))
    compiled = jax.jit(run, donate_argnums=0).lower(box.state, keys).compile()

    def call() -> int:
        box.state = jax.block_until_ready(compiled(box.state, keys))
        return TURNS

    return call


def measure(task: Task) -> Measured:
    """Time one seed and several in turn."""
    found = Measured()
    for form in FORMS:
        runs = {seeds: run_of(task["name"], form, task["n"], seeds) for seeds in (1, SEEDS)}
        rounds = 3 if task["quick"] else 25
        for seeds, taken in harness.alternate(runs, rounds, 5.0).items():
            found.records.append(
                {
                    "sampler": task["name"],
                    "n": task["n"],
                    "cores": task.get("cores"),
                    "form": form,
                    "seeds": seeds,
                    "us": harness.median(taken),
                }
            )
    return found


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process: two for each sampler, size and number of cores."""
    return [
        {"label": f"{name}, N = {n:,}, {cores}", "name": name, "n": n, "quick": quick, **cores}
        for name in SAMPLERS
        for n in SIZES[: 1 if quick else None]
        for cores in ({}, {"cores": 1})
        for _ in range(1 if quick else 2)
    ]


def tables(records: list[Record]) -> list[str]:
    """Return the table, and the bars."""
    us, rows, bars = Find(records), list[list[str]](), list[str]()
    named = {None: "all cores", 1: "one core"}
    for name in SAMPLERS:
        for n in sorted({record["n"] for record in records}):
            for form in FORMS:
                shown = [name, f"{n:,}", form]
                for cores in CORES:
                    of = {"sampler": name, "n": n, "cores": cores, "form": form}
                    one, several = us(seeds=1, **of) or math.nan, us(seeds=SEEDS, **of) or math.nan
                    ratio = several / one / SEEDS
                    shown += [report.number(one), report.number(several), f"{ratio:.2f}"]
                    text = f"{name}, N = {n:,}, {form}, {named[cores]}: {ratio:.2f}"
                    bars.append(report.bar(f"{text}, at most {MOST} wanted", ratio <= MOST, ""))
                rows.append(shown)
    head = ["draws of", "N", "form"]
    for cores in CORES:
        of = named[cores]
        head += [f"one seed, us a step, {of}", f"four seeds, {of}", "four over four times one"]
    return [*report.section("Four seeds", head, rows), "", "## Bars", "", *bars]


if __name__ == "__main__":
    report.script(
        title="Four seeds by vmap, beside four times one",
        packages=("fbuf", "jax", "jaxlib"),
        keys=("sampler", "n", "cores", "form", "seeds"),
    )
