"""Reading and writing the levels of a K-ary tree: one meaning, two forms.

A level is an array `[rows, FANOUT, aggregates]`: its nodes, `FANOUT` of them side by side in a row.
Row `r` is summed up by node `r % FANOUT` of row `r // FANOUT` one level up.

On CPU a level is written by one `fori_loop` that carries that level alone: XLA runs it in place
and as one kernel, while the vectorised form costs several times as much, and a loop that carries
two levels copies both at every turn (`benchmarks/ablations/tree_shapes.py`). On a GPU a loop is a
kernel a turn, and the vectorised gather and scatter is one kernel a level. Both give the same
bits: `lax.platform_dependent` picks one at lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.duplicates import last_of_each
from fbuf.xla.loop import by_halves, gathered, zero_after

FANOUT = 16
"""Children of a node: on CPU one cache line of float32 (`benchmarks/ablations/tree_shapes.py`)."""

Reduce = Callable[[jax.Array], jax.Array]
"""What nodes keep of their rows: `[..., FANOUT, aggregates]` to `[..., aggregates]`."""


def rows_for(nodes: int) -> int:
    """How many rows of `FANOUT` nodes this many nodes fill."""
    return -(-nodes // FANOUT)


def row_and_child(node: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The row a node is in, and which child of it it is.

    By shift and mask: `//` and `%` of signed integers also look after negative ones, which here
    costs as much as the rest of a write.
    """
    return node >> (FANOUT.bit_length() - 1), node & (FANOUT - 1)


def set_leaves(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
    """Write single leaves; the last of several writes to a slot wins.

    Args:
        leaves: `[rows, FANOUT, 1]`.
        slots: int32 `[B]`, each in range.
        values: `[B]`, of the leaves' dtype.
    """

    def loop(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
        def body(i: jax.Array, leaves: jax.Array) -> jax.Array:
            return _update(leaves, values[i].reshape(1, 1, 1), (*row_and_child(slots[i]), 0))

        return lax.fori_loop(zero_after(slots), slots.shape[0], body, leaves)

    def scatter(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
        # Of duplicates only one may be written: the order of a scatter is not defined.
        row, child = row_and_child(jnp.where(last_of_each(slots), slots, leaves.size))
        return leaves.at[row, child, 0].set(values, mode="drop", unique_indices=True)

    return lax.platform_dependent(leaves, slots, values, cpu=loop, default=scatter)


def read_leaves(leaves: jax.Array, slots: jax.Array) -> jax.Array:
    """Single leaves `[rows, FANOUT, 1]`, at int32 `[B]` slots, each in range: `[B]`."""
    return by_halves(lambda slots: gathered(leaves.reshape(-1), slots), slots)


def refresh(
    parent: jax.Array,
    children: jax.Array,
    below: jax.Array,
    depth: int,
    reduce: Reduce,
) -> jax.Array:
    """Recompute the nodes above some rows from those rows.

    The rows are given by what lies under them, and found inside the loop: on CPU each array of
    rows computed beforehand would be one more task for XLA's thread pool to pass around.

    Args:
        parent: `[parents, FANOUT, aggregates]`; the level to bring up to date.
        children: `[rows, FANOUT, aggregates]`; the level below, with one node above each row.
        below: int32 `[B]`; of the rows to take: nodes that are `depth` levels under them.
            Duplicates are harmless; what lies past the end stands for the last row.
        depth: 0 if `below` are the rows themselves, 1 if their children, and so on; static.
        reduce: What a node keeps of its row.
    """
    count = children.shape[0]
    shift = depth * (FANOUT.bit_length() - 1)

    def row_of(below: jax.Array) -> jax.Array:
        return jnp.minimum(below >> shift, count - 1)

    if below.shape[0] >= count:  # as many as there are: take them all, in order
        spare = parent.shape[0] * FANOUT - count
        return jnp.pad(reduce(children), ((0, spare), (0, 0))).reshape(parent.shape)

    def loop(parent: jax.Array, children: jax.Array, below: jax.Array) -> jax.Array:
        def body(i: jax.Array, parent: jax.Array) -> jax.Array:
            row = row_of(below[i])
            node = reduce(read_row(children, row))
            return _update(parent, node[None, None], (*row_and_child(row), 0))

        return lax.fori_loop(zero_after(below), below.shape[0], body, parent)

    def scatter(parent: jax.Array, children: jax.Array, below: jax.Array) -> jax.Array:
        rows = row_of(below)
        nodes = reduce(children.at[rows].get(mode="promise_in_bounds"))
        return parent.at[row_and_child(rows)].set(nodes, mode="promise_in_bounds")

    return lax.platform_dependent(parent, children, below, cpu=loop, default=scatter)


def read_row(level: jax.Array, row: jax.Array) -> jax.Array:
    """One row of a level, `[FANOUT, aggregates]`; for use inside a loop."""
    return _slice(level, (row, 0, 0), (1, *level.shape[1:]))[0]


def _slice(level: jax.Array, at: tuple[Any, ...], sizes: tuple[int, ...]) -> jax.Array:
    at = tuple(jnp.asarray(index, jnp.int32) for index in at)  # with x64 on, 0 would be int64
    return lax.dynamic_slice(level, at, sizes, allow_negative_indices=False)


def _update(level: jax.Array, new: jax.Array, at: tuple[Any, ...]) -> jax.Array:
    at = tuple(jnp.asarray(index, jnp.int32) for index in at)
    return lax.dynamic_update_slice(level, new, at, allow_negative_indices=False)


def most_rows(nodes: int) -> int:
    """The most rows that so many consecutive nodes can lie in.

    They can begin and end inside a row, and go around an end that is inside a row.
    """
    return (nodes - 1) // FANOUT + 3
