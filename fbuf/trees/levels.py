"""Read and write the levels of a K-ary tree, in a form for CPU and one for GPU.

A level is an array `[rows, FANOUT]` of nodes, or `[rows, FANOUT, aggregates]` where a node keeps
several aggregates. Row `r` is summed up by node `r % FANOUT` of row `r // FANOUT` one level up.

On CPU one `fori_loop` writes a level, and carries that level alone. XLA runs it in place, as one
kernel. The vectorised form costs several times as much. A loop that carries two levels copies both
at every turn (`benchmarks/evidence/tree_shapes.py`). On a GPU each turn of a loop is a kernel, but
the vectorised form is one kernel a level. Both forms give the same bits: `fbuf.xla.platform` picks
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.duplicates import last_of_each
from fbuf.xla.loop import Numbers, by_entries, by_halves, gathered, with_entry_at
from fbuf.xla.platform import by_platform

FANOUT = 16
"""Children of a node: on CPU one cache line of float32 (`benchmarks/evidence/tree_shapes.py`)."""

Reduce = Callable[[jax.Array, bool], jax.Array]
"""A function that computes nodes from their rows; with True, rows have one axis more."""


def rows_for(nodes: int) -> int:
    """Count the rows of `FANOUT` nodes that this many nodes fill."""
    return -(-nodes // FANOUT)


def row_and_child(node: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the row of a node, and the number of the node in the row.

    It uses shift and mask: `//` and `%` also handle negative numbers, and double the time of a
    write.
    """
    return node >> (FANOUT.bit_length() - 1), node & (FANOUT - 1)


def set_leaves(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
    """Write single leaves; the last of several writes to a slot wins.

    Args:
        leaves: `[rows, FANOUT]`.
        slots: int32 `[B]`, each in range.
        values: `[B]`, of the leaves' dtype.
    """

    def loop(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
        def turn(
            carry: Numbers, _: Any, place: Numbers, slot: jax.Array, value: jax.Array
        ) -> Numbers:
            return (with_entry_at(carry[0], (*place[:-1], *row_and_child(slot)), value),)

        return by_entries(turn, (leaves,), (), (slots, values))[0]

    def scatter(leaves: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
        # Write one of several duplicates only: the order of a scatter is not defined.
        row, child = row_and_child(jnp.where(last_of_each(slots), slots, leaves.size))
        return leaves.at[row, child].set(values, mode="drop", unique_indices=True)

    return by_platform(leaves, slots, values, cpu=loop, default=scatter)


def read_leaves(leaves: jax.Array, slots: jax.Array) -> jax.Array:
    """Read single leaves `[rows, FANOUT]` at int32 `[B]` slots, each in range: `[B]`."""
    # The leaves have one axis inside the loop alone: XLA copies a reshaped operand of a loop.
    return by_halves(lambda leaves, slots: gathered(leaves.reshape(-1), slots), leaves, slots)


def refresh(
    parent: jax.Array,
    children: jax.Array,
    below: jax.Array,
    depth: int,
    reduce: Reduce,
) -> jax.Array:
    """Recompute the nodes above some rows from these rows.

    The loop finds the rows from nodes under them. On CPU each array of rows computed beforehand
    would be one more task for XLA's thread pool.

    Args:
        parent: The level to bring up to date.
        children: The level below, with one node above each row.
        below: int32 `[B]`; nodes `depth` levels under the rows. Duplicates are harmless; a number
            past the end means the last row.
        depth: 0 if `below` has the rows themselves, 1 for their children, and so forth; static.
        reduce: Computes a node from its row.
    """
    count = children.shape[0]
    several = children.ndim > 2
    shift = depth * (FANOUT.bit_length() - 1)

    def row_of(below: jax.Array) -> jax.Array:
        return jnp.minimum(below >> shift, count - 1)

    if below.shape[0] >= count:  # the whole level: take all rows, in order
        spare = parent.shape[0] * FANOUT - count
        nodes = reduce(children, several)
        return jnp.pad(nodes, [(0, spare), *[(0, 0)] * (nodes.ndim - 1)]).reshape(parent.shape)

    def loop(parent: jax.Array, children: jax.Array, below: jax.Array) -> jax.Array:
        def turn(carry: Numbers, sources: Numbers, place: Numbers, below: jax.Array) -> Numbers:
            row, buffer = row_of(below), place[:-1]
            node = reduce(read_row(sources[0], row, buffer), several)
            return (_update(carry[0], node, (*buffer, *row_and_child(row))),)

        return by_entries(turn, (parent,), (children,), (below,))[0]

    def scatter(parent: jax.Array, children: jax.Array, below: jax.Array) -> jax.Array:
        rows = row_of(below)
        nodes = reduce(children.at[rows].get(mode="promise_in_bounds"), several)
        return parent.at[row_and_child(rows)].set(nodes, mode="promise_in_bounds")

    return by_platform(parent, children, below, cpu=loop, default=scatter)


def read_row(level: jax.Array, row: jax.Array, buffer: Numbers = ()) -> jax.Array:
    """Read one row of a level, `[FANOUT]` or `[FANOUT, aggregates]`; for use inside a loop.

    With the levels of several buffers, `buffer` selects one; see `by_entries`.
    """
    at, row_shape = (*buffer, row), level.shape[len(buffer) + 1 :]
    sizes = (*(1,) * len(at), *row_shape)
    found = lax.dynamic_slice(level, _start(level, *at), sizes, allow_negative_indices=False)
    return lax.reshape(found, row_shape)


def children_of(level: jax.Array, rows: jax.Array) -> list[jax.Array]:
    """Return the first aggregate of the children of rows: `[B]` for each of the `FANOUT`."""
    # One gather a child: other threads would make an array of whole rows. By rows and columns, as
    # places on a single axis take a seventh longer.
    first = (0,) * (level.ndim - 2)
    return [gathered(level, rows, (child, *first)) for child in range(FANOUT)]


def first_of(level: jax.Array) -> jax.Array:
    """Return the first aggregate of each node: `[rows, FANOUT]`."""
    return level if level.ndim == 2 else level[..., 0]


def _update(level: jax.Array, new: jax.Array, at: Numbers) -> jax.Array:
    start, new = _start(level, *at), lax.expand_dims(new, range(len(at)))
    return lax.dynamic_update_slice(level, new, start, allow_negative_indices=False)


def _start(level: jax.Array, *at: jax.Array) -> list[jax.Array]:
    rest = [jnp.int32(0)] * (level.ndim - len(at))  # with x64 on, 0 would be int64
    return [*at, *rest]


def most_rows(nodes: int) -> int:
    """Return the largest number of rows that `nodes` consecutive nodes can touch.

    The nodes can begin and end inside a row, and wrap around an end inside a row.
    """
    return (nodes - 1) // FANOUT + 3
