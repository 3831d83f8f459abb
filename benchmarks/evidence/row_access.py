"""Reading and writing B rows of a store on CPU: how to touch an array, and how to lay out a row.

    python -m benchmarks.evidence.row_access            about 6 minutes on 2 cores
    python -m benchmarks.evidence.row_access --quick    about a minute: some rows, one process

It needs fbuf alone.

Every variant is compiled inside `lax.scan` with the store in the donated carry, at random slots
made beforehand. The rows are added to an accumulator of the batch's shape, so that they are really
read. "fbuf" is the present code of fbuf.

- One array, all rows at once or row by row: the evidence for the rule in `fbuf/xla/rows.py`. XLA
  hands a gather from a large array to its thread pool, whatever the gather's size. The pool costs
  more than a few short rows do. A loop over the rows stays in its thread. So does fbuf with short
  rows: it looks at them, and then gathers them by halves.
- A whole item, with an array for each field or with the fields of a row packed side by side into
  words. It is the evidence for the limits in `fbuf/storage/layout.py`, the most bytes of a packed
  field. Beside the observation named there is an action[6] and a reward, of float32, and a bool.
  "fbuf" packs fields up to these limits, and leaves wider ones alone.

Figures are medians over processes of medians over rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import harness, peers, report
from benchmarks.harness import Measured, Record, Task
from fbuf.storage import layout, store
from fbuf.xla.rows import read_rows, write_rows

BATCHES = {32: 1000, 256: 500, 2048: 100}
"""Batch sizes, and how many steps a scan has."""
STORE = 2**29
"""The most bytes of a store; it has a million rows, or fewer if they are that wide."""

Row = Any
"""One row: a `jax.ShapeDtypeStruct`, or a tree of them."""


def item(size: int, dtype: Any) -> Row:
    """Return the standard row with another observation."""
    return {**peers.ROW, "observation": jax.ShapeDtypeStruct((size,), dtype)}


ROWS: dict[str, dict[str, Row]] = {
    "one array": {
        "uint8": jax.ShapeDtypeStruct((), jnp.uint8),
        "float32": jax.ShapeDtypeStruct((), jnp.float32),
        "float32[6]": jax.ShapeDtypeStruct((6,), jnp.float32),
        "float32[17]": jax.ShapeDtypeStruct((17,), jnp.float32),
        "float32[64]": jax.ShapeDtypeStruct((64,), jnp.float32),
        "uint8[84, 84, 4]": jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8),
    },
    "an item": {
        "float32[8]": item(8, jnp.float32),
        "float32[17]": item(17, jnp.float32),
        "float32[64]": item(64, jnp.float32),
        "float32[128]": item(128, jnp.float32),
        "float32[376]": item(376, jnp.float32),
        "uint8[64]": item(64, jnp.uint8),
        "uint8[256]": item(256, jnp.uint8),
        "uint8[1024]": item(1024, jnp.uint8),
    },
}
"""The rows to store, by their kind; an item by its observation."""


# --- one array ------------------------------------------------------------------------------------


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


READS = {"all at once": read_gather, "row by row": read_loop, "fbuf": read_rows}
WRITES = {"all at once": write_scatter, "row by row": write_loop, "fbuf": write_rows}

# --- an item --------------------------------------------------------------------------------------

LAYOUTS = {
    "an array a field": (0, 0),
    "packed": (STORE, STORE),
    "fbuf": (layout.NARROW, layout._NARROW_SMALL),
}
"""The most bytes of a field that is packed, and of one whose numbers are smaller than a word."""

# --- measuring ------------------------------------------------------------------------------------


def program(
    what: str, function: Callable[..., Any], store: Any, count: int, row: Row, batch: int
) -> harness.Run:
    """A scan of one variant: of a store of so many rows."""
    steps = BATCHES[batch] // (10 if peers.row_bytes(row) > 10_000 else 1)
    rng = np.random.default_rng(0)
    slots = np.stack([rng.choice(count, batch, replace=False) for _ in range(steps)])
    inputs = jnp.asarray(slots.astype(np.int32))

    def step(carry: Any, slots: jax.Array) -> Any:
        store, rows = carry
        if what == "read":
            return store, jax.tree.map(jnp.add, rows, function(store, slots))
        # The rows change from step to step, as new ones would.
        rows = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), rows)
        return function(store, slots, rows), rows

    rows = jax.tree.map(lambda leaf: jnp.zeros((batch, *leaf.shape), leaf.dtype), row)
    return harness.in_scan(step, harness.Box(store), [rows], inputs)[0]


def programs(kind: str, what: str, row: Row, batch: int) -> dict[str, harness.Run]:
    """All ways to read or write a batch of such rows."""
    count = min(10**6, STORE // peers.row_bytes(row))
    found = {}
    if kind == "one array":
        for way, function in (READS if what == "read" else WRITES).items():
            array = jnp.ones((count, *row.shape), row.dtype)
            found[way] = program(what, function, array, count, row, batch)
    else:
        function = store.Storage.read if what == "read" else store.Storage.write
        for way, limits in LAYOUTS.items():
            # Looked at when a store is made, and when it is traced.
            layout.NARROW, layout._NARROW_SMALL = limits
            found[way] = program(what, function, store.empty(row, count), count, row, batch)
    return found


def measure(task: Task) -> Measured:
    """All ways to read and to write all rows."""
    found = Measured()
    for kind, rows in ROWS.items():
        for what in ("read", "write"):
            for name, row in list(rows.items())[:: 3 if task["quick"] else 1]:
                for batch in list(BATCHES)[: 2 if task["quick"] else None]:
                    made = programs(kind, what, row, batch)
                    rounds = 3 if task["quick"] else 7
                    for way, taken in harness.alternate(made, rounds, 0.5).items():
                        found.records.append(
                            {
                                "kind": kind,
                                "what": what,
                                "row": name,
                                "row_bytes": peers.row_bytes(row),
                                "batch": batch,
                                "way": way,
                                "us": harness.median(taken),
                            }
                        )
    return found


def tasks(quick: bool) -> list[Task]:
    """The same in several processes."""
    return [{"label": "all rows", "quick": quick}] * (1 if quick else 3)


def tables(records: list[Record]) -> list[str]:
    """The figures of both kinds."""
    lines: list[str] = []
    for kind in ROWS:
        found: dict[Any, dict[str, float]] = {}
        for r in records:
            if r["kind"] == kind:
                key = (r["what"], r["row"], r["row_bytes"], r["batch"])
                found.setdefault(key, {})[r["way"]] = r["us"]
        ways = list(next(iter(found.values())))
        rows = []
        for (what, name, size, batch), us in found.items():
            faster = min(ways[:2], key=us.__getitem__)
            times = [report.number(us[way]) for way in ways]
            rows.append([what, name, f"{size:,}", f"{batch:,}", *times, faster])
        named = "row" if kind == "one array" else "observation"
        head = ["what", named, "bytes a row", "batch", *(f"{way}, us" for way in ways), "faster"]
        lines += report.section(kind.capitalize(), head, rows)
    return lines


if __name__ == "__main__":
    report.script(
        title="Reading and writing rows",
        packages=("fbuf", "jax", "jaxlib"),
        keys=("kind", "what", "row", "batch", "way"),
    )
