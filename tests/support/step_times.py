"""Time a prioritised step inside `lax.scan` at two capacities, and print both in microseconds.

    python tests/support/step_times.py

Some versions of JAX copy whole arrays where no program shows it: then a step's time grows with the
capacity. It needs fbuf alone.
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

import fbuf

CAPACITIES = (10_000, 1_000_000)
STEPS = 50
ROUNDS = 9
ITEM = {"observation": jnp.zeros(17), "reward": jnp.zeros(())}


def step(state, key):
    """Add 16 rows, draw 256, update their priorities."""
    rows = jax.tree.map(lambda leaf: jnp.ones((16, *leaf.shape), leaf.dtype), ITEM)
    state = fbuf.add(state, rows)
    batch = fbuf.sample(state, key, 256)
    error = jnp.abs(batch.data["observation"]).mean(axis=1) + batch.weight
    return fbuf.update_priority(state, batch.ids, error), error.sum()


def main() -> None:
    run = jax.jit(
        lambda state, key: jax.lax.scan(step, state, jax.random.split(key, STEPS)),
        donate_argnums=0,
    )
    sampler = fbuf.Prioritized()
    states = [fbuf.init(ITEM, capacity, sampler=sampler) for capacity in CAPACITIES]
    seconds: list[list[float]] = [[], []]
    for number in range(ROUNDS + 2):
        for which, state in enumerate(states):
            begun = time.perf_counter()
            states[which], _ = jax.block_until_ready(run(state, jax.random.key(number)))
            seconds[which].append(time.perf_counter() - begun)
    # The first call compiles, the second one takes the memory.
    print(*(round(statistics.median(of[2:]) / STEPS * 1e6, 1) for of in seconds))


if __name__ == "__main__":
    main()
