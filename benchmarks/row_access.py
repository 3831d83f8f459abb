"""Reading and writing B rows of a store on CPU: all at once, or row by row.

    python benchmarks/row_access.py            about 4 minutes on 2 cores
    python benchmarks/row_access.py --quick    about 1 minute: one process

It is the evidence for the rule in `fbuf/_rows.py`. XLA hands a gather from a large array to its
thread pool, whatever the gather's size, and that costs more than a few small rows do; a loop over
the rows stays in the thread it is in. Every variant is compiled inside `lax.scan` with the store
in the donated carry, at random slots made beforehand; what is read is added to an accumulator of
the batch's shape, so that it is really read. "fbuf" is what `fbuf/_rows.py` does now.

Figures are medians over processes of medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax import lax

from fbuf import _rows

BATCHES = {32: 1000, 256: 500, 4096: 50}
"""Batch sizes, and how many steps a scan has."""
LEAVES: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "uint8": ((), jnp.uint8, 10**6),
    "float32": ((), jnp.float32, 10**6),
    "float32[6]": ((6,), jnp.float32, 10**6),
    "float32[17]": ((17,), jnp.float32, 10**6),
    "float32[64]": ((64,), jnp.float32, 10**6),
    "uint8[84, 84, 4]": ((84, 84, 4), jnp.uint8, 20_000),
}
"""Leaves: the shape of a row, its dtype, and how many rows there are."""


def read_gather(leaf: jax.Array, slots: jax.Array) -> jax.Array:
    return leaf.at[slots].get(mode="promise_in_bounds")


def read_loop(leaf: jax.Array, slots: jax.Array) -> jax.Array:
    rest = (0,) * (leaf.ndim - 1)

    def body(i: jax.Array, rows: jax.Array) -> jax.Array:
        row = lax.dynamic_slice(
            leaf, (slots[i], *rest), (1, *leaf.shape[1:]), allow_negative_indices=False
        )
        return lax.dynamic_update_slice(rows, row, (i, *rest), allow_negative_indices=False)

    start = jnp.zeros((len(slots), *leaf.shape[1:]), leaf.dtype)
    return lax.fori_loop(0, len(slots), body, start)


def write_scatter(leaf: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    return leaf.at[slots].set(rows, mode="drop", unique_indices=True)


def write_loop(leaf: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    rest = (0,) * (leaf.ndim - 1)

    def body(i: jax.Array, leaf: jax.Array) -> jax.Array:
        at = (slots[i], *rest)
        row = lax.dynamic_slice_in_dim(rows, i, 1, allow_negative_indices=False)
        return lax.dynamic_update_slice(leaf, row, at, allow_negative_indices=False)

    return lax.fori_loop(0, len(slots), body, leaf)


READS = {"all at once": read_gather, "row by row": read_loop, "fbuf": _rows.read}
WRITES = {"all at once": write_scatter, "row by row": write_loop, "fbuf": _rows.write}


def program(what: str, function: Callable[..., Any], leaf: str, batch: int) -> timing.Run:
    """A scan of one variant."""
    shape, dtype, count = LEAVES[leaf]
    steps = BATCHES[batch] // (10 if count < 10**6 else 1)
    rng = np.random.default_rng(0)
    slots = np.stack([rng.choice(count, batch, replace=False) for _ in range(steps)])
    inputs = jnp.asarray(slots.astype(np.int32))

    def step(carry: Any, slots: jax.Array) -> Any:
        store, rows = carry
        if what == "read":
            return store, rows + function(store, slots)
        # The rows change from step to step, as new ones would.
        rows = rows + jnp.ones((), rows.dtype)
        return function(store, slots, rows), rows

    carry: Any = (jnp.ones((count, *shape), dtype), jnp.zeros((batch, *shape), dtype))
    compiled, _ = timing.scanned(step, carry, inputs)

    def run() -> int:
        nonlocal carry
        carry = jax.block_until_ready(compiled(carry, inputs))
        return steps

    return run


def measure() -> list[timing.Record]:
    records = []
    for what, functions in (("read", READS), ("write", WRITES)):
        for leaf, (shape, dtype, _) in LEAVES.items():
            for batch in BATCHES:
                made = {k: program(what, f, leaf, batch) for k, f in functions.items()}
                for name, rounds in timing.alternate(made, 7, 0.5).items():
                    records.append(
                        {
                            "what": what,
                            "leaf": leaf,
                            "row_bytes": math.prod(shape) * jnp.dtype(dtype).itemsize,
                            "batch": batch,
                            "way": name,
                            "us": timing.median(rounds),
                        }
                    )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one process")
    parser.add_argument("--results", type=pathlib.Path, default=timing.RESULTS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        options.out.write_text(json.dumps({"records": measure()}))
        return

    records: list[timing.Record] = []
    for _ in range(1 if options.quick else 3):
        records += timing.in_own_process(__file__, {})["records"]
    records = timing.merged(records, ("what", "leaf", "batch", "way"), "us")
    figures = {(r["what"], r["leaf"], r["batch"], r["way"]): r["us"] for r in records}
    rows = []
    for what, leaf, batch in dict.fromkeys(key[:3] for key in figures):
        times = [figures[what, leaf, batch, way] for way in READS]
        faster = "all at once" if times[0] < times[1] else "row by row"
        size = next(r["row_bytes"] for r in records if r["leaf"] == leaf)
        times_text = [f"{us:,.1f}" for us in times]
        rows.append([what, leaf, f"{size:,}", f"{batch:,}", *times_text, faster])
    about = timing.about("fbuf", "jax", "jaxlib")
    head = ["what", "leaf", "bytes a row", "batch", *(f"{way}, us" for way in READS), "faster"]
    lines = [
        "# Reading and writing rows",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        *timing.render(head, rows),
        "",
        *__doc__.split("\n\n", 2)[2].strip().splitlines(),
    ]
    timing.write_report("row_access", options.results, about, records, lines)


if __name__ == "__main__":
    main()
