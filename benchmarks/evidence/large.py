"""Large batches and many environments: thousands of simulated robots, and a learner beside them.

    python -m benchmarks.evidence.large            about 3 minutes on 2 cores, and 3 GB of memory
    python -m benchmarks.evidence.large --quick    about a minute

It needs fbuf, JAX and flashbax.

4,096 environments add a row each, and 32,768 rows are drawn, of 97 bytes. If prioritised, these get
new priorities. All steps run in one `lax.scan` whose carry, the buffer, is donated. All leaves of a
batch are added to accumulators in the carry.

"Plain arrays" is the least that such a step has to do, at random slots made beforehand. It writes
4,096 rows side by side into an array for each field, and reads 32,768 rows of each. It has no
flags, ids or weights, and draws nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import compare, harness, peers, report
from benchmarks.evidence.exchange_rounds import Table
from benchmarks.harness import Box, Measured, Record, Task
from benchmarks.report import Find

ADDED, BATCH, STEPS = 4096, 32_768, 20
SIZES = (2**18, 2**20, 2**22)
NAMES = FBUF, PLAIN, FLASHBAX = "fbuf", "plain arrays", "flashbax"


def of_library(peer: Any, box: Box) -> harness.Run:
    """A step of a library."""
    keys = jax.random.split(jax.random.key(2), STEPS)
    targets = jax.random.uniform(jax.random.key(3), (STEPS, BATCH))
    rows = jax.tree.map(jnp.asarray, peers.random_rows(peer.item, ADDED, seed=4))

    def step(carry: Any, given: Any) -> Any:
        (state, rows, used), (key, target) = carry, given
        state, drawn = peer.sample(peer.add(state, rows), key)
        used = harness.use(used, peer.data(drawn))
        if peer.prioritized:
            priority = jnp.abs(peer.reward(drawn) - target)
            state = peer.update(state, peer.ids(drawn), priority)
        return state, rows, used

    shapes = jax.eval_shape(lambda: peer.data(peer.sample(box.state, keys[0])[1]))
    return harness.in_scan(step, box, (rows, harness.zeros_like(shapes)), (keys, targets))[0]


def of_plain_arrays(capacity: int) -> harness.Run:
    """The same bytes, of an array for each field."""
    make = lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype)
    box = Box(jax.tree.map(make, peers.ROW))
    rows = jax.tree.map(jnp.asarray, peers.random_rows(peers.ROW, ADDED, seed=4))
    begin = jnp.arange(STEPS, dtype=jnp.int32) * ADDED % capacity
    slots = jax.random.randint(jax.random.key(2), (STEPS, BATCH), 0, capacity)

    def step(carry: Any, given: Any) -> Any:
        (arrays, rows, used), (first, slots) = carry, given
        write = lambda array, new: lax.dynamic_update_slice_in_dim(array, new, first, 0)
        arrays = jax.tree.map(write, arrays, rows)
        drawn = jax.tree.map(lambda array: array.at[slots].get(mode="clip"), arrays)
        return arrays, rows, harness.use(used, drawn)

    batch = lambda leaf: jnp.zeros((BATCH, *leaf.shape), leaf.dtype)
    return harness.in_scan(step, box, (rows, jax.tree.map(batch, peers.ROW)), (begin, slots))[0]


def measure(task: Task) -> Measured:
    """Time all at one size, one kind of buffer after the other."""
    found = Measured()
    for prioritized in (False, True):
        runs = {PLAIN: of_plain_arrays(task["n"])}
        for name, cls in ((FBUF, peers.Fbuf), (FLASHBAX, peers.Flashbax)):
            peer = cls(peers.ROW, task["n"], BATCH, prioritized)
            runs[name] = of_library(peer, Box(peers.filled(peer, task["n"] // 8)))
        for name, rounds in harness.alternate(runs, 3 if task["quick"] else 7, 3.0).items():
            found.records.append(
                {
                    "n": task["n"], "prioritized": prioritized, "peer": name,
                    "us": harness.median(rounds), "rounds": rounds,
                }
            )  # fmt: skip
    return found


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    return [
        {"label": f"N = {n:,}", "n": n, "quick": quick}
        for _ in range(1 if quick else 3)
        for n in SIZES[: 1 if quick else None]
    ]


def step_table(records: list[Record]) -> Table:
    """The time of a step, by the kind of buffer and its rows."""
    us, rows = Find(records), []
    for prioritized, kind in compare.KINDS.items():
        for n in SIZES:
            times = [us(n=n, prioritized=prioritized, peer=name) for name in NAMES]
            if times[0] is not None:
                rows.append([kind, f"{n:,}", *(report.beside(time, times[0]) for time in times)])
    return ["buffer", "N", *NAMES], rows


def tables(records: list[Record]) -> list[str]:
    """The table, as lines of Markdown."""
    title = f"A step of {ADDED:,} rows and a batch of {BATCH:,}: microseconds (and times fbuf's)"
    return report.section(title, *step_table(records))


if __name__ == "__main__":
    report.script(
        title="Large batches",
        packages=("fbuf", "jax", "jaxlib", "flashbax", "numpy"),
        keys=("n", "prioritized", "peer"),
    )
