"""Time adds, a draw and an update inside `lax.scan` at two capacities; print microseconds.

    python tests/support/step_times.py

Some versions of JAX copy whole arrays where no program shows it: then the time of an operation
grows with the capacity. Each line has the name of an operation, and its time at each of
`CAPACITIES`. It needs fbuf alone.
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

import fbuf

CAPACITIES = (10_000, 10_000_000)
BATCH = 256
STEPS = 50
ROUNDS = 9
LONG = 30
"""Seconds after which one round is enough: each of the steps copies."""
ITEM = {"observation": jnp.zeros(4), "reward": jnp.zeros(())}
WIDENED = {"observation": jnp.zeros(40, jnp.bfloat16)}
"""An array of numbers that XLA on CPU computes as float32, and would convert as a whole."""


def add(state, key):
    """Add 16 rows."""
    rows = jax.tree.map(lambda leaf: jnp.ones((16, *leaf.shape), leaf.dtype), state.storage.item)
    return fbuf.add(state, rows), None


def draw(state, key):
    """Draw a batch, and use all of it."""
    return state, jax.tree.map(jnp.sum, fbuf.sample(state, key, BATCH))


def update(state, key):
    """Update the priorities of rows anywhere."""
    slots = jax.random.randint(key, (BATCH,), 0, state.capacity)
    return fbuf.update_priority(state, fbuf.ids_at(state, slots), jnp.ones(BATCH)), None


def full(capacity):
    """Return a full buffer, added to in parts."""
    state = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
    part = min(capacity, 1_000_000)
    rows = jax.tree.map(lambda leaf: jnp.ones((part, *leaf.shape), leaf.dtype), ITEM)
    for _ in range(capacity // part):
        state = fbuf.add(state, rows)
    return state


def widened(capacity):
    """Return an empty buffer of bfloat16."""
    return fbuf.init(WIDENED, capacity)


OPERATIONS = {
    "add": (add, full),
    "draw": (draw, full),
    "update": (update, full),
    "add of bfloat16": (add, widened),
}
"""The operations by name, and the buffer for each; the next one goes on with a buffer alike."""


def main() -> None:
    """Take turns, and print the medians."""
    states, made_by = [], None
    for name, (operation, make) in OPERATIONS.items():
        if make is not made_by:
            states.clear()  # of which the largest take much memory
            states, made_by = [make(capacity) for capacity in CAPACITIES], make
        run = jax.jit(
            lambda state, key, operation=operation: jax.lax.scan(
                operation, state, jax.random.split(key, STEPS)
            ),
            donate_argnums=0,
        )
        seconds: list[list[float]] = [[] for _ in states]
        for number in range(ROUNDS + 2):
            if number > 2 and sum(map(sum, seconds)) > LONG:
                break
            for which, state in enumerate(states):
                begun = time.perf_counter()
                states[which], _ = jax.block_until_ready(run(state, jax.random.key(number)))
                seconds[which].append(time.perf_counter() - begun)
        # The first call compiles, the second one takes the memory.
        medians = [statistics.median(of[2:]) / STEPS * 1e6 for of in seconds]
        print(name, *(round(median, 1) for median in medians), flush=True)


if __name__ == "__main__":
    main()
