"""Learning at every k-th step, in six ways: what each costs.

    python -m benchmarks.evidence.learn_every_k            some minutes on 2 cores
    python -m benchmarks.evidence.learn_every_k --quick    one process, fewer rounds

It needs JAX alone.

Every program is one `lax.scan` whose carry, the buffer and a network, is donated. Each step adds 16
rows. At every k-th step a batch of 256 is drawn by priority, the network learns from it, and the
priorities of the batch are updated. The network has two hidden layers of 128. The programs take
turns, round by round; figures are microseconds a step, medians over processes of medians over
rounds.

Memory is the temporary memory of the compiled program, by XLA's own account. "Two under `vmap`" are
two buffers, each with a step counter of its own, and so with a condition of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from benchmarks import harness, report
from benchmarks.harness import Box, Measured, Record, Task

ADDED, BATCH, WIDTH, OBSERVATION = 16, 256, 128, 20
ITEM = {"observation": jax.ShapeDtypeStruct((OBSERVATION,), "float32"), "reward": 0.0}
CAPACITIES, EVERY = (10_000, 1_000_000), (4, 32)

Carry = tuple[fbuf.State, list[jax.Array], jax.Array]
Step = Callable[[Carry, jax.Array, int], Carry]


# --- an agent, as small as can be -----------------------------------------------------------------


def network(key: jax.Array) -> list[jax.Array]:
    """The weights of three layers."""
    sizes = (OBSERVATION, WIDTH, WIDTH, 1)
    keys = jax.random.split(key, 3)
    return [
        jax.random.normal(k, (a, b)) * a**-0.5
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def learn(params: list[jax.Array], batch: fbuf.Sample) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent, and the TD errors."""

    def loss(params: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        x = batch.data["observation"]
        for weights in params[:-1]:
            x = jax.nn.relu(x @ weights)
        error = batch.data["reward"] - (x @ params[-1])[:, 0]
        return jnp.mean(batch.weight * error**2), jnp.abs(error)

    gradient, error = jax.grad(loss, has_aux=True)(params)
    return [p - 1e-3 * g for p, g in zip(params, gradient, strict=True)], error


def act(key: jax.Array) -> Any:
    """Made-up rows."""
    observation = jax.random.uniform(key, (ADDED, OBSERVATION))
    return {"observation": observation, "reward": observation[:, 0]}


# --- the ways -------------------------------------------------------------------------------------


def every_step(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Learn at every step; k plays no part."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + 1


def two_loops(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Add k times in a loop of its own, then learn once."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)

    def add(state: fbuf.State, key: jax.Array) -> tuple[fbuf.State, None]:
        return fbuf.add(state, act(key)), None

    state, _ = jax.lax.scan(add, state, jax.random.split(act_key, k))
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + k


def gradient_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Draw and update at every step, and put only the gradient into the branch."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    due = number % k == 0
    params, error = jax.lax.cond(due, learn, lambda p, _: (p, jnp.zeros(BATCH)), params, batch)
    return fbuf.update_priority(state, batch.ids, error, mask=due), params, number + 1


def draw_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Draw in the branch, too: the buffer goes in, and does not come out."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))

    def draw(state: fbuf.State, params: Any) -> Any:
        batch = fbuf.sample(state, sample_key, BATCH)
        return *learn(params, batch), batch.ids

    def nothing(state: fbuf.State, params: Any) -> Any:
        no_row = jnp.full(BATCH, -1, jnp.int32)
        return params, jnp.zeros(BATCH), fbuf.Ids(no_row, no_row)

    params, error, ids = jax.lax.cond(number % k == 0, draw, nothing, state, params)
    return fbuf.update_priority(state, ids, error), params, number + 1


def thrown_away(carry: Carry, key: jax.Array, k: int) -> Carry:
    """No branch: learn at every step, and throw away what is not due."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    due = number % k == 0
    new, error = learn(params, batch)
    params = jax.tree.map(lambda a, b: jnp.where(due, a, b), new, params)
    return fbuf.update_priority(state, batch.ids, error, mask=due), params, number + 1


def all_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Everything but adding in the branch, the update of priorities too."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))

    def due(state: fbuf.State, params: Any) -> tuple[fbuf.State, Any]:
        batch = fbuf.sample(state, sample_key, BATCH)
        params, error = learn(params, batch)
        return fbuf.update_priority(state, batch.ids, error), params

    state, params = jax.lax.cond(
        number % k == 0, due, lambda state, params: (state, params), state, params
    )
    return state, params, number + 1


def add_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Adding in a branch: only its memory is looked at."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    rows = act(act_key)
    state = jax.lax.cond(
        number % k != 0, lambda state: fbuf.add(state, rows), lambda state: state, state
    )
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + 1


WAYS: dict[str, Step] = {
    "two loops: add k times, then learn": two_loops,
    "drawing and gradient in `cond`": draw_in_cond,
    "gradient in `cond`": gradient_in_cond,
    "no branch: learn, and throw away": thrown_away,
    "all but adding in `cond`": all_in_cond,
    "learn at every step, for comparison": every_step,
}
MEMORY: dict[str, Step] = {
    **{name: step for name, step in WAYS.items() if "`cond`" in name},
    "adding in `cond`": add_in_cond,
}


# --- measuring ------------------------------------------------------------------------------------


def start(capacity: int) -> Carry:
    """An empty buffer, and a new network."""
    state = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
    return state, network(jax.random.key(2)), jnp.int32(0)


def program(step: Step, capacity: int, k: int, steps: int) -> harness.Run:
    """Return a run of so many steps, on a full buffer."""
    state, *rest = start(capacity)
    observation = jax.random.uniform(jax.random.key(0), (capacity, OBSERVATION))
    state = fbuf.add(state, {"observation": observation, "reward": observation[:, 0]})
    keys = jax.random.split(jax.random.key(1), steps // k if step is two_loops else steps)
    run, _ = harness.in_scan(lambda carry, key: step(carry, key, k), Box(state), rest, keys)
    return lambda: run() and steps  # a turn of the two loops is k steps


def temporary(step: Step, capacity: int, two: bool) -> int:
    """Temporary bytes of the compiled program, of one buffer or of two under `vmap`."""
    keys = jax.random.split(jax.random.key(1), 16)
    carry = start(capacity)
    if two:
        carry = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), carry)

    def body(carry: Any, key: jax.Array) -> Any:
        if two:
            return jax.vmap(lambda one: step(one, key, EVERY[0]))(carry)
        return step(carry, key, EVERY[0])

    return harness.in_scan(body, Box(carry[0]), carry[1:], keys)[1]


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    processes = 1 if quick else 3
    times: list[Task] = [
        {
            "label": f"{capacity:,} rows, k = {k}, process {process}",
            "what": "time",
            "capacity": capacity,
            "k": k,
            "rounds": 3 if quick else 9,
            "steps": 64 if quick else 256,
        }
        for process in range(processes)
        for capacity in CAPACITIES
        for k in EVERY
    ]
    return [*times, {"label": "memory", "what": "memory"}]


def measure(task: Task) -> Measured:
    """Do one task."""
    if task["what"] == "memory":
        return Measured(
            [
                {"way": name, "two": two, "bytes": temporary(step, CAPACITIES[-1], two)}
                for name, step in MEMORY.items()
                for two in (False, True)
            ]
        )
    capacity, k = task["capacity"], task["k"]
    programs = {name: program(step, capacity, k, task["steps"]) for name, step in WAYS.items()}
    taken = harness.alternate(programs, task["rounds"], 30)
    return Measured(
        [
            {"way": name, "capacity": capacity, "k": k, "us": harness.median(times)}
            for name, times in taken.items()
        ]
    )


def tables(records: list[Record]) -> list[str]:
    """Time, and memory."""
    time, memory = report.Find(records), report.Find(records, "bytes")
    places = [(capacity, k) for capacity in CAPACITIES for k in EVERY]
    lines = report.table(
        ["microseconds a step", *(f"{report.rows_text(n)} rows, k = {k}" for n, k in places)],
        [
            [name, *(report.number(time(way=name, capacity=n, k=k)) for n, k in places)]
            for name in WAYS
        ],
    )
    sizes = {name: [memory(way=name, two=two) for two in (False, True)] for name in MEMORY}
    title = f"Temporary memory, in MiB, of a buffer of {CAPACITIES[-1]:,} rows"
    return lines + report.section(
        title,
        ["", "one buffer", "two under `vmap`"],
        [
            [name, *(report.number(None if size is None else size / 2**20) for size in found)]
            for name, found in sizes.items()
        ],
    )


if __name__ == "__main__":
    report.script(
        title="Learning at every k-th step",
        packages=("fbuf", "jax", "jaxlib"),
        keys=("way", "capacity", "k", "two"),
        figures=("us", "bytes"),
    )
