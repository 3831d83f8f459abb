"""A K-ary sum tree: draw a slot with probability proportional to its value.

The values lie at the bottom, `FANOUT` to a row. Every row has one node above it that holds the
row's sum, those nodes are laid in rows of `FANOUT` again, and so on, until at most `TOP` nodes are
left. Each level is one array. With 16 children to a row and 100,000 slots:

    top          25 nodes                  which are the sums of
    inner[1]     25 rows of 16 nodes       which are the sums of
    inner[0]    391 rows of 16 nodes       which are the sums of
    leaves    6,250 rows of 16 values

To draw is to walk down: pick a node of the top in proportion to its sum, then a child of the row
under it, then a child of the row under that. To write is to walk up: set the leaves, then compute
every node above them anew from its row. Nodes are never adjusted by a difference, so rounding
does not build up: after any number of writes a node is the sum of its row as it stands.

Two more things make a draw exact:

- Each level is given a uniform number of its own. A single float32 has 2**24 values: beyond
  10 million slots many could never be drawn.
- A row is entered at `u * total`, where total is the last of the row's own running sums, and the
  child taken is the first whose running sum lies above. As u < 1 there always is one, and its own
  value is above 0, whatever was rounded on the way.

Beside the sum a node can keep other things of the slots under it, such as the largest value: see
`Aggregate`. Everything here takes O(B log N) time and O(B) memory.

The array is Schaul et al.'s sum tree (Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952);
the wide nodes follow Zhang et al. (Parallel Actors and Learners, 2021, arXiv:2110.01101).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._ring import Span
from fbuf.trees import _levels
from fbuf.trees._levels import FANOUT, rows_for

TOP = 256
"""How many nodes may stand side by side at the top."""


class Aggregate(enum.Enum):
    """What a node keeps of the values under it. For all of them 0 stands for "nothing there"."""

    SUM = "sum"
    LARGEST = "largest"
    LARGEST_INVERSE = "largest inverse"
    """1 / the smallest value above 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SumTree:
    """The levels of the tree.

    Attributes:
        leaves: `[rows, 1, FANOUT]`; the value of slot `s` is at `[s // FANOUT, 0, s % FANOUT]`.
        inner: `[rows, aggregates, FANOUT]` each, from the bottom up.
        top: `[aggregates, nodes]`.
        capacity: How many slots there are; static.
        keeps: The aggregates of a node, the sum first; static.
    """

    leaves: jax.Array
    inner: tuple[jax.Array, ...]
    top: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})
    keeps: tuple[Aggregate, ...] = dataclasses.field(metadata={"static": True})


def empty(
    capacity: int,
    keeps: tuple[Aggregate, ...] = (Aggregate.SUM,),
    leaf: Any = jnp.float32,
    node: Any = jnp.float32,
) -> SumTree:
    """A tree with every value 0; `leaf` and `node` are the dtypes of values and of sums."""
    rows = rows_for(capacity)
    leaves = jnp.zeros((rows, 1, FANOUT), leaf)
    inner: list[jax.Array] = []
    while rows > TOP:
        rows = rows_for(rows)
        inner.append(jnp.zeros((rows, len(keeps), FANOUT), node))
    return SumTree(leaves, tuple(inner), jnp.zeros((len(keeps), rows), node), capacity, keeps)


def total(tree: SumTree) -> jax.Array:
    """The sum of all values. Scalar."""
    return running_sums(tree.top[0])[-1]


def aggregate(tree: SumTree, which: Aggregate) -> jax.Array:
    """The largest value, or the largest inverse, of all slots. Scalar."""
    return tree.top[tree.keeps.index(which)].max()


def values(tree: SumTree, slots: jax.Array) -> jax.Array:
    """The values of slots, each of which must be in range. Shaped like `slots`."""
    return tree.leaves.at[slots // FANOUT, 0, slots % FANOUT].get(mode="promise_in_bounds")


def write(tree: SumTree, slots: jax.Array, new: jax.Array, stored: jax.Array) -> SumTree:
    """Set the values of scattered slots, and every node above them.

    Args:
        tree: The tree.
        slots: int32 `[B]`; those out of range are left out, and of duplicates the last one wins.
        new: `[B]`; finite, at least 0, of the leaves' dtype.
        stored: int32 scalar; slots `[0, stored)` have been written since the last `cleared`.
    """
    reduce = functools.partial(_reduce, keeps=tree.keeps, dtype=tree.top.dtype)
    inside = (slots >= 0) & (slots < tree.capacity)
    leaves = _levels.set_cells(tree.leaves, jnp.where(inside, slots, tree.leaves.size), new)
    rows = jnp.where(inside, slots, 0) // FANOUT
    levels = [leaves]
    for parent in tree.inner:
        levels.append(_levels.refresh(parent, levels[-1], rows, reduce))
        rows = rows // FANOUT
    return _capped(tree, levels, stored)


def write_span(tree: SumTree, span: Span, new: jax.Array, stored: jax.Array) -> SumTree:
    """Set the values of consecutive slots: as `write`, but each row above them once.

    Rows it enters for the first time since the last `cleared` are rid of what they held before.

    Args:
        tree: The tree.
        span: The slots, as the ring gave them out.
        new: `[B]`; the value of each of `span.slots`.
        stored: int32 scalar; slots `[0, stored)` have been written, these ones included.
    """
    reduce = functools.partial(_reduce, keeps=tree.keeps, dtype=tree.top.dtype)
    inside = span.slots < tree.capacity
    cells = jnp.where(inside, span.slots, tree.leaves.size)
    level = tree.leaves.at[cells // FANOUT, 0, cells % FANOUT].set(
        new, mode="drop", unique_indices=True
    )
    levels: list[jax.Array] = []
    first, most, nodes = span.first, span.most, stored
    filling = stored < tree.capacity
    for parent in (*tree.inner, None):
        first, most = first // FANOUT, min(level.shape[0], _levels.most_rows(most))
        rows = (first + jnp.arange(most, dtype=jnp.int32)) % level.shape[0]
        levels.append(_levels.blank_beyond(level, rows, nodes, filling))
        if parent is not None:
            level = _levels.refresh(parent, levels[-1], rows, reduce)
            nodes = _rows_of(nodes)
    return _capped(tree, levels, stored)


def cleared(tree: SumTree) -> SumTree:
    """The tree with every value 0. O(1): below the top, `write_span` clears what it enters."""
    return dataclasses.replace(tree, top=jnp.zeros_like(tree.top))


def draw(tree: SumTree, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw slots independently, each with probability value / total; never one of value 0.

    Args:
        tree: The tree. If its total is 0 the result is in range and means nothing.
        uniforms: float32 `[picks(tree), B]` in `[0, 1)`; a number a level for every draw.

    Returns:
        int32 `[B]` slots and their values.
    """
    sums = running_sums(tree.top[0])
    nodes = first_above(sums, uniforms[0] * sums[-1])
    value = jnp.zeros_like(uniforms[0])
    for level, below, u in zip(*downwards(tree), uniforms[1:], strict=True):
        nodes, value = _pick(level, nodes, u)
        nodes = jnp.minimum(nodes, below - 1)
    return nodes, value


def draw_stratified(
    tree: SumTree, positions: jax.Array, uniforms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw the slots found at given positions along all values laid end to end.

    A position chooses a node and, by what is left of it, a place inside that node. Its 24 bits are
    used up on the way down, so at each level a uniform number fills in those below the last one:
    the draw stays in its stratum, and every slot can still be reached.

    Args:
        tree: The tree, as for `draw`.
        positions: float32 `[B]` in `[0, 1)`; fractions of the total.
        uniforms: float32 `[picks(tree), B]` in `[0, 1)`.

    Returns:
        int32 `[B]` slots and their values.
    """
    sums = running_sums(tree.top[0])
    whole = sums[-1]
    target = _filled_in(positions, jnp.float32(2.0**-24), uniforms[0]) * whole
    nodes = first_above(sums, target)
    before = jnp.where(nodes > 0, sums[nodes - 1], 0.0)
    size = tree.top[0][nodes]
    for level, below, u in zip(*downwards(tree), uniforms[1:], strict=True):
        left = (target - before) / size
        grain = whole * 2.0**-24 / size  # what one bit of the target is worth in this node
        row = _sums_of(level.at[nodes].get(mode="promise_in_bounds"))
        sums = _running(row)
        whole = sums[-1]
        target = _filled_in(left, grain, u) * whole
        child = _count_below(sums, target)
        before = _select(child - 1, sums)
        size = _select(child, row)
        nodes = jnp.minimum(nodes * FANOUT + child, below - 1)
    return nodes, size


def picks(tree: SumTree) -> int:
    """How many choices lead from the top to a slot."""
    return len(tree.inner) + 2


def running_sums(nodes: jax.Array) -> jax.Array:
    """The running sums of `[n]` nodes, in one fixed order of additions on every platform."""
    count = nodes.shape[0]
    rows = jnp.pad(nodes, (0, -count % FANOUT)).reshape(-1, FANOUT)
    inside = jnp.stack(_running(list(rows.T)), axis=1)
    before = jnp.stack([jnp.zeros((), nodes.dtype), *_running(list(inside[:-1, -1]))])
    return (before[:, None] + inside).reshape(-1)[:count]


def first_above(sums: jax.Array, targets: jax.Array) -> jax.Array:
    """For each target the first of `[n]` running sums that lies above it, by bisection. int32."""
    last = sums.shape[0] - 1
    found = jnp.zeros(targets.shape, jnp.int32)
    for bit in reversed(range(last.bit_length())):
        ahead = found + (1 << bit)
        skip = (ahead <= last) & (sums[jnp.minimum(ahead, last + 1) - 1] <= targets)
        found = jnp.where(skip, ahead, found)
    return found


def downwards(tree: SumTree) -> tuple[list[jax.Array], list[int]]:
    """The levels below the top, and how many nodes (or slots) each has."""
    levels = [*reversed(tree.inner), tree.leaves]
    return levels, [*(level.shape[0] for level in levels[1:]), tree.capacity]


def _pick(
    level: jax.Array, rows: jax.Array, uniforms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Pick a child of each row in proportion to its sum: `[B]` nodes below, and their sums."""

    def choose(row: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        children = _sums_of(row)
        sums = _running(children)
        child = _count_below(sums, u * sums[-1])
        return child, _select(child, children)

    def loop(
        level: jax.Array, rows: jax.Array, uniforms: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            row = lax.dynamic_index_in_dim(level, rows[i], keepdims=False)
            child, _ = choose(row, uniforms[i])
            value = lax.dynamic_slice(level, (rows[i], 0, child), (1, 1, 1)).reshape(())
            return (
                lax.dynamic_update_index_in_dim(found[0], rows[i] * FANOUT + child, i, 0),
                lax.dynamic_update_index_in_dim(found[1], value, i, 0),
            )

        return lax.fori_loop(
            0, rows.shape[0], body, (jnp.zeros_like(rows), jnp.zeros_like(uniforms))
        )

    def gather(
        level: jax.Array, rows: jax.Array, uniforms: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        child, value = choose(level.at[rows].get(mode="promise_in_bounds"), uniforms)
        return rows * FANOUT + child, value

    return lax.platform_dependent(level, rows, uniforms, cpu=loop, default=gather)


def _sums_of(row: jax.Array) -> list[jax.Array]:
    """The sums of a row's children: `[..., aggregates, FANOUT]` to `FANOUT` arrays `[...]`."""
    return [row[..., 0, child] for child in range(FANOUT)]


def _running(terms: list[jax.Array]) -> list[jax.Array]:
    return list(itertools.accumulate(terms))


def _count_below(sums: list[jax.Array], target: jax.Array) -> jax.Array:
    """The first child whose running sum lies above the target; the last one if none does."""
    found = jnp.zeros(target.shape, jnp.int32)
    for running in sums[:-1]:
        found += running <= target
    return found


def _select(child: jax.Array, choices: list[jax.Array]) -> jax.Array:
    """`choices[child]`, and 0 for child -1."""
    return sum(
        (jnp.where(child == i, choice, 0) for i, choice in enumerate(choices)), jnp.zeros(())
    )


def _filled_in(position: jax.Array, grain: jax.Array, u: jax.Array) -> jax.Array:
    """A position known to the multiple of `grain`, made uniform inside its last bit."""
    fine = grain < 1
    filled = jnp.where(fine, jnp.clip(position, 0, 1), 0) + jnp.where(fine, grain, 1) * u
    # Multiples of the grain are not aligned with the node, so the last one sticks out of it by as
    # much as is missing at its start.
    return jnp.clip(jnp.where(filled >= 1, filled - 1, filled), 0, 1 - 2.0**-24)


def _reduce(row: jax.Array, keeps: tuple[Aggregate, ...], dtype: Any) -> jax.Array:
    """What nodes keep of their rows: `[..., 1 or aggregates, FANOUT]` to `[aggregates, ...]`."""
    values = row.shape[-2] == 1
    kept: list[jax.Array] = []
    for at, which in enumerate(keeps):
        part = (row[..., 0, :] if values else row[..., at, :]).astype(dtype)
        if values and which is Aggregate.LARGEST_INVERSE:
            part = jnp.where(part > 0, 1 / part, 0)
        kept.append(_halved(part, operator.add if which is Aggregate.SUM else _larger))
    return jnp.stack(kept)


def _halved(row: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """Combine `[..., FANOUT]` by halves: short chains, and the same order everywhere."""
    while row.shape[-1] > 1:
        half = row.shape[-1] // 2
        row = combine(row[..., :half], row[..., half:])
    return row[..., 0]


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a > b, a, b)  # no NaN to care for, and half the work of jnp.maximum


def _capped(tree: SumTree, levels: list[jax.Array], stored: jax.Array) -> SumTree:
    """The tree of these levels, with the top computed from the last of them."""
    nodes = stored
    for _ in levels:
        nodes = _rows_of(nodes)
    top = _reduce(levels[-1], tree.keeps, tree.top.dtype)
    top = jnp.where(jnp.arange(top.shape[-1]) < nodes, top, 0)
    return dataclasses.replace(tree, leaves=levels[0], inner=tuple(levels[1:]), top=top)


def _rows_of(nodes: jax.Array) -> jax.Array:
    return (nodes + FANOUT - 1) // FANOUT
