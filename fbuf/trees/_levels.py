"""Reading and writing the levels of a K-ary tree: one meaning, two forms.

A level is an array whose first axis is its rows and whose last axis is the `FANOUT` children of
each row; row `r` of a level is summed up by child `r % FANOUT` of row `r // FANOUT` one level up.

On CPU a level is written by one `fori_loop` that carries that level alone: XLA runs it in place
and as one kernel, while the vectorised form costs several times as much, and a loop that carries
two levels copies both at every turn (`benchmarks/tree_shapes.py` measures it). On a GPU a loop is
a kernel a turn, and the vectorised gather and scatter is one kernel a level. Both give the same
bits: `lax.platform_dependent` picks one at lowering.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

FANOUT = 16
"""Children of a node: on CPU one cache line of float32; see `benchmarks/tree_shapes.py`."""

Reduce = Callable[[jax.Array], jax.Array]
"""What nodes keep of their rows: `[..., aggregates, FANOUT]` to `[aggregates, ...]`."""


def rows_for(nodes: int) -> int:
    """How many rows of `FANOUT` children hold this many nodes."""
    return -(-nodes // FANOUT)


def set_cells(level: jax.Array, cells: jax.Array, values: jax.Array) -> jax.Array:
    """Write single cells of the bottom level; the last of several writes to a cell wins.

    Args:
        level: `[rows, 1, FANOUT]`.
        cells: int32 `[B]`; row-major positions; those outside the level are left out.
        values: `[B]`, of the level's dtype.
    """

    def loop(level: jax.Array, cells: jax.Array, values: jax.Array) -> jax.Array:
        def body(i: jax.Array, level: jax.Array) -> jax.Array:
            cell = jnp.clip(cells[i], 0, level.size - 1)
            row, child = cell // FANOUT, cell % FANOUT
            old = lax.dynamic_slice(level, (row, 0, child), (1, 1, 1))
            new = jnp.where(cell == cells[i], values[i], old)
            return lax.dynamic_update_slice(level, new, (row, 0, child))

        return lax.fori_loop(0, cells.shape[0], body, level)

    def scatter(level: jax.Array, cells: jax.Array, values: jax.Array) -> jax.Array:
        # Of duplicates only one may be written: the order of a scatter is not defined.
        cells = jnp.where((cells >= 0) & last_of_each(cells), cells, level.size)
        return level.at[cells // FANOUT, 0, cells % FANOUT].set(values, mode="drop")

    return lax.platform_dependent(level, cells, values, cpu=loop, default=scatter)


def refresh(parent: jax.Array, children: jax.Array, rows: jax.Array, reduce: Reduce) -> jax.Array:
    """Recompute the nodes above some rows from those rows.

    Args:
        parent: `[parents, aggregates, FANOUT]`; the level to bring up to date.
        children: `[rows, aggregates, FANOUT]`; the level below, with one node above each row.
        rows: int32 `[B]`; rows of `children`, each in range; duplicates are harmless.
        reduce: What a node keeps of its row.
    """

    def loop(parent: jax.Array, children: jax.Array, rows: jax.Array) -> jax.Array:
        def body(i: jax.Array, parent: jax.Array) -> jax.Array:
            row = lax.dynamic_index_in_dim(children, rows[i], keepdims=False)
            node = reduce(row).reshape(1, -1, 1)
            return lax.dynamic_update_slice(parent, node, (rows[i] // FANOUT, 0, rows[i] % FANOUT))

        return lax.fori_loop(0, rows.shape[0], body, parent)

    def scatter(parent: jax.Array, children: jax.Array, rows: jax.Array) -> jax.Array:
        nodes = reduce(children.at[rows].get(mode="promise_in_bounds"))
        return parent.at[rows // FANOUT, :, rows % FANOUT].set(nodes.T, mode="promise_in_bounds")

    return lax.platform_dependent(parent, children, rows, cpu=loop, default=scatter)


def blank_beyond(level: jax.Array, rows: jax.Array, nodes: jax.Array, needed: jax.Array) -> jax.Array:
    """Zero what some rows still hold of before the last clear: their nodes from `nodes` on.

    Args:
        level: `[rows, aggregates, FANOUT]`.
        rows: int32 `[G]`; distinct rows.
        nodes: int32 scalar; how many nodes of this level stand for written slots.
        needed: bool scalar; False once every slot has been written, and then nothing is done.
    """

    def kept(row: jax.Array, index: jax.Array) -> jax.Array:
        child = index * FANOUT + jnp.arange(FANOUT, dtype=jnp.int32)
        return jnp.where(child < nodes, row, jnp.zeros_like(row))

    def loop(level: jax.Array, rows: jax.Array) -> jax.Array:
        def body(i: jax.Array, level: jax.Array) -> jax.Array:
            row = lax.dynamic_index_in_dim(level, rows[i], keepdims=False)
            return lax.dynamic_update_index_in_dim(level, kept(row, rows[i]), rows[i], 0)

        return lax.fori_loop(0, jnp.where(needed, rows.shape[0], 0), body, level)

    def scatter(level: jax.Array, rows: jax.Array) -> jax.Array:
        old = level.at[rows].get(mode="promise_in_bounds")
        index = rows.reshape(rows.shape + (1,) * (old.ndim - 1))
        new = kept(old, index)
        return level.at[rows].set(new, mode="promise_in_bounds", unique_indices=True)

    return lax.platform_dependent(level, rows, cpu=loop, default=scatter)


def most_rows(nodes: int) -> int:
    """The most rows that so many consecutive nodes can lie in.

    They can begin and end inside a row, and go around an end that is inside a row.
    """
    return (nodes - 1) // FANOUT + 3


def last_of_each(values: jax.Array) -> jax.Array:
    """True for exactly one entry of each distinct value: its last. bool `[B]`.

    O(B**2) in two kernels for small B; a stable sort for large B.
    """
    batch = values.shape[0]
    position = jnp.arange(batch, dtype=jnp.int32)
    if batch <= 1024:
        later = (values[:, None] == values[None, :]) & (position[:, None] < position[None, :])
        return ~later.any(axis=1)
    ordered, order = lax.sort((values, position), num_keys=1, is_stable=True)
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    return jnp.zeros(batch, bool).at[order].set(last, unique_indices=True)
