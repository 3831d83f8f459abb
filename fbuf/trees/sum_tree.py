"""A K-ary sum tree: draw a slot with probability proportional to its value.

The values lie at the bottom, `FANOUT` to a row. The node above a row holds the sum of the row. The
nodes lie in rows of `FANOUT` again, up to a level of at most `TOP` nodes. Each level is one array.
With 16 children to a row and 100,000 slots:

    nodes[1]     25 nodes in rows of 16: the sums of
    nodes[0]    391 rows of 16 nodes: the sums of
    leaves    6,250 rows of 16 values

A draw walks down. It picks a node of the top in proportion to its sum. Then it picks a child of the
row under the node, down to a leaf. A write walks up. It sets the leaves, and computes every node
above them anew from its row. No node is adjusted by a difference, so rounding does not build up.
After any number of writes a node is the sum of its row.

Two more things make a draw exact:

- Each level has a uniform number of its own. A single float32 has 2**24 values: beyond 10 million
  slots many could never be drawn.
- In a row, the target is `u * total`, where the total is the last running sum of the row. The draw
  takes the first child whose running sum lies above the target. As u < 1, such a child always
  exists, and its value is above 0 despite all rounding.

Beside the sum a node can keep other aggregates of its slots, such as the largest value: see
`Aggregate`. Every function here takes O(B log N) time and O(B) memory.

The array is Schaul et al.'s sum tree (Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952);
the wide nodes follow Zhang et al. (Parallel Actors and Learners, 2021, arXiv:2110.01101).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.storage.ring import Span
from fbuf.trees import levels
from fbuf.trees.levels import FANOUT, first_of, row_and_child, rows_for
from fbuf.trees.running_sums import (
    choose_child,
    first_above,
    first_in_row,
    row_ends,
    running_sums,
    sums_of_row,
)
from fbuf.xla.filled import filled, zeros
from fbuf.xla.loop import by_halves, fetched
from fbuf.xla.rows import read_rows
from fbuf.xla.tie import tie

TOP = 512
"""The most nodes of the top level."""


class Aggregate(enum.Enum):
    """The aggregates of the values under a node. In each, 0 means no value."""

    SUM = "sum"
    LARGEST = "largest"
    LARGEST_INVERSE = "largest inverse"
    """1 / the smallest value above 0."""


@pytree
class SumTree:
    """The levels of the tree, from the bottom up.

    Attributes:
        leaves: `[rows, FANOUT]`; the value of slot `s` is at `[s // FANOUT, s % FANOUT]`.
            One spare leaf behind the slots is always 0: entries to leave out are written there.
        nodes: `[rows, FANOUT]` each, or `[rows, FANOUT, aggregates]` if a node keeps more than the
            sum. The last level is the top, of at most `TOP` nodes. There is no axis of length 1:
            with several shards on a device, XLA on CPU would copy the array at every step.
        capacity: The number of slots; static.
        keeps: The aggregates of a node, the sum first; static.
        inactive: Whether values may have a minus sign. Such a value is stored, but it is never
            drawn, and no aggregate counts it; static.
    """

    leaves: jax.Array
    nodes: tuple[jax.Array, ...]
    capacity: int = dataclasses.field(metadata={"static": True})
    keeps: tuple[Aggregate, ...] = dataclasses.field(metadata={"static": True})
    inactive: bool = dataclasses.field(metadata={"static": True})

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Restore a pickle; version 0.2 had another name for one field."""
        self.__dict__.update({"inactive" if n == "dormant" else n: v for n, v in fields.items()})


def empty(
    capacity: int, keeps: tuple[Aggregate, ...] = (Aggregate.SUM,), inactive: bool = False
) -> SumTree:
    """Return a tree with every value 0; -0 if values may be inactive."""
    rows = rows_for(capacity + 1)
    leaves = filled((rows, FANOUT), -0.0 if inactive else 0.0, np.float32)
    nodes: list[jax.Array] = []
    while not nodes or rows > TOP // FANOUT:
        rows = rows_for(rows)
        kept = (len(keeps),) if len(keeps) > 1 else ()
        nodes.append(zeros((rows, FANOUT, *kept), np.float32))
    return SumTree(leaves, tuple(nodes), capacity, keeps, inactive)


def of(values: jax.Array) -> SumTree:
    """Return a tree of float32 `[N]` values, each at least 0. O(N)."""
    tree = empty(values.shape[0])
    spare = tree.leaves.size - values.shape[0]
    leaves = jnp.pad(values, (0, spare)).reshape(tree.leaves.shape)
    return renewed(dataclasses.replace(tree, leaves=leaves))


def renewed(tree: SumTree) -> SumTree:
    """Return the tree with every node computed anew from the leaves. O(N)."""
    everything = jnp.arange(tree.leaves.shape[0], dtype=jnp.int32)
    return _climbed(tree, tree.leaves, itertools.repeat((everything, 0)))


def total(tree: SumTree) -> jax.Array:
    """Return the sum of all values. Scalar."""
    return row_ends(first_of(tree.nodes[-1]))[-1]


def aggregate(tree: SumTree, which: Aggregate) -> jax.Array:
    """Return the largest value, or the largest inverse, of all slots. Scalar."""
    top = tree.nodes[-1]
    return (top if top.ndim == 2 else top[..., tree.keeps.index(which)]).max()


def values(tree: SumTree, slots: jax.Array) -> jax.Array:
    """Return the values of slots, each of which must be in range: float32 `[B]`."""
    return levels.read_leaves(tree.leaves, slots)


def write(
    tree: SumTree, slots: jax.Array, new: jax.Array, activated: jax.Array | None = None
) -> SumTree:
    """Set the values of scattered slots, and every node above them.

    Args:
        tree: The tree.
        slots: int32 `[B]` in `[0, capacity]`; a slot of the capacity is left out. The last of
            several values for a slot wins.
        new: float32 `[B]`; finite, and at least 0 unless values may be inactive.
        activated: int32 `[W]` in `[0, capacity]`; slots whose values then lose their minus sign, if
            they have one. None is no slot.
    """
    slots = _fetched_above(tree, _after_last_write(tree, slots))
    leaves = levels.set_leaves(tree.leaves, slots, jnp.where(slots < tree.capacity, new, 0))
    touched = slots
    if activated is not None:
        leaves = _activated(leaves, activated)
        touched = jnp.concatenate([slots, activated])
    return _climbed(tree, leaves, ((touched, depth) for depth in itertools.count(1)))


def write_span(
    tree: SumTree, span: Span, new: jax.Array, activated: jax.Array | None = None
) -> SumTree:
    """Set the values of consecutive slots: as `write`, but each row above them once.

    Args:
        tree: The tree.
        span: The slots, from `fbuf.storage.append`.
        new: `[B]`; the value of each of `span.slots`.
        activated: As for `write`.
    """
    slots = _after_last_write(tree, span.slots)
    new = jnp.where(slots < tree.capacity, new, 0)
    leaves = tree.leaves.at[row_and_child(slots)].set(new, mode="promise_in_bounds")
    if activated is not None:
        leaves = _activated(leaves, activated)
    return _climbed(tree, leaves, _rows_above(tree, span, activated))


def _rows_above(
    tree: SumTree, span: Span, activated: jax.Array | None
) -> Iterator[tuple[jax.Array, int]]:
    """Yield `below` and `depth` of `levels.refresh` for each level above a span and some slots."""
    first, most, rows, depth = span.first, span.most, span.slots, 0
    for level in (tree.leaves, *tree.nodes):
        first = row_and_child(first)[0]
        if activated is not None:
            activated = row_and_child(activated)[0]
        count, before = level.shape[0], most
        most = min(count, levels.most_rows(most))
        depth += 1
        # Use the span's rows if they are fewer than on the level below; otherwise keep those.
        if level is tree.leaves or most < before:
            rows, depth = first + jnp.arange(most, dtype=jnp.int32), 0
            rows = jnp.where(rows < count, rows, rows - count)
            if activated is not None:
                rows = jnp.concatenate([rows, activated])
        yield rows, depth


def _climbed(tree: SumTree, leaves: jax.Array, touched: Iterable[tuple[jax.Array, int]]) -> SumTree:
    """Return the tree with new leaves, and the nodes above computed anew.

    `touched` has `below` and `depth` of `levels.refresh` for each level.
    """
    made = [leaves]
    for parent, (below, depth) in zip(tree.nodes, touched, strict=False):
        made.append(levels.refresh(parent, made[-1], below, depth, _reduction(tree)))
    return dataclasses.replace(tree, leaves=made[0], nodes=tuple(made[1:]))


def draw(tree: SumTree, uniforms: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Draw slots independently, each with probability value / total; never a slot of value 0.

    Args:
        tree: The tree. If its total is 0 the slots are in range and mean nothing.
        uniforms: float32 `[B]` in `[0, 1)`, `picks(tree)` of them: a number a level for every draw.

    Returns:
        The slots, int32 `[B]`, and their values.
    """
    levels_below = below_top(tree)
    counts = [*(level.shape[0] for level in levels_below), tree.capacity]
    found = first_above(first_of(tree.nodes[-1]), uniforms[0] * total(tree))
    found = jnp.minimum(found, counts[0] - 1)
    for level, count, u in zip(levels_below, counts[1:], uniforms[1:], strict=True):
        found = _pick(level, found, u, count, tree.inactive and level is tree.leaves)
    return found, values(tree, found)


class Points(NamedTuple):
    """Points along all values laid end to end; float32 `[B]` each.

    Attributes:
        fraction: In `[0, 1)`; the fraction of the total.
        grain: The value of the fraction's last bit: 2**-24, or more after bits are used up.
    """

    fraction: jax.Array
    grain: jax.Array


def draw_stratified(
    tree: SumTree, points: Points, uniforms: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array, Points]:
    """Draw the slots at given points along all values laid end to end.

    A point chooses a node, and its remainder a place inside that node. The 24 bits of a point are
    used up on the way down. So at each level a uniform number fills in the bits below the last one.
    The draw stays in its stratum, and every slot can still be reached.

    Args:
        tree: The tree, as for `draw`.
        points: The points.
        uniforms: As for `draw`.

    Returns:
        The slots, int32 `[B]`; their values; and the points inside these values.
    """
    top = first_of(tree.nodes[-1])
    sums = running_sums(top)
    whole = sums[-1]
    target = _filled_in(points.fraction, points.grain, uniforms[0]) * whole
    nodes = first_above(top, target)
    before = jnp.where(nodes > 0, sums[nodes - 1], 0)
    value = top[row_and_child(nodes)]

    def inside() -> Points:
        # The grain is the value of the last bit of the target in this node.
        # With nothing to draw from the value is 0.
        of = jnp.where(value > 0, value, 1)
        return Points((target - before) / of, whole * 2.0**-24 / of)

    for level, u in zip(below_top(tree), uniforms[1:], strict=True):
        nodes = jnp.minimum(nodes, level.shape[0] - 1)
        left, grain = inside()
        signed = tree.inactive and level is tree.leaves
        row = first_of(read_rows(level, nodes))
        children = _drawable([row[:, child] for child in range(FANOUT)], signed)
        sums = sums_of_row(children)
        whole = sums[-1]
        target = _filled_in(left, grain, u) * whole
        child = first_in_row(sums, target)
        before, value = choose_child(child - 1, sums), choose_child(child, children)
        nodes = nodes * FANOUT + child
    return jnp.minimum(nodes, tree.capacity - 1), value, inside()


def picks(tree: SumTree) -> int:
    """Count the choices that lead from the top to a slot."""
    return len(tree.nodes) + 1


def below_top(tree: SumTree) -> list[jax.Array]:
    """Return the levels below the top, downwards."""
    return [*reversed(tree.nodes[:-1]), tree.leaves]


def _pick(
    level: jax.Array, rows: jax.Array, uniforms: jax.Array, count: int, signed: bool
) -> jax.Array:
    """Pick a child of each row in proportion to its sum: `[B]` of `count` below."""

    def choose(level: jax.Array, rows: jax.Array, uniforms: jax.Array) -> jax.Array:
        children = levels.children_of(level, rows)
        sums = sums_of_row(_drawable(children, signed))
        child = first_in_row(sums, uniforms * sums[-1])
        return jnp.minimum(rows * FANOUT + child, count - 1)

    return by_halves(choose, level, fetched(level, rows, rows), uniforms)


def _after_last_write(tree: SumTree, slots: jax.Array) -> jax.Array:
    """Return the slots, tied to the computation of the top, which reads every level."""
    return tie(slots, first_of(tree.nodes[-1])[0, 0])


def _fetched_above(tree: SumTree, slots: jax.Array) -> jax.Array:
    """Return the slots; on CPU, tied to reads that cache their rows of large levels."""
    row = slots
    for level in (tree.leaves, *tree.nodes):
        row = row_and_child(row)[0]
        slots = fetched(level, row, slots)
    return slots


def _activated(leaves: jax.Array, slots: jax.Array) -> jax.Array:
    """Return the leaves, with the minus signs of some slots removed. The spare leaf stays 0."""
    value = levels.read_leaves(leaves, slots)
    return leaves.at[row_and_child(slots)].set(jnp.abs(value), mode="promise_in_bounds")


def _drawable(sums: list[jax.Array], signed: bool) -> list[jax.Array]:
    """Return the sums of the children of a row, 0 in place of negative ones."""
    return [_larger(sum_, jnp.zeros_like(sum_)) for sum_ in sums] if signed else sums


def _filled_in(fraction: jax.Array, grain: jax.Array, u: jax.Array) -> jax.Array:
    """Return a fraction known to a multiple of `grain`, made uniform inside its last bit."""
    fine = grain < 1
    filled = jnp.where(fine, jnp.clip(fraction, 0, 1), 0) + jnp.where(fine, grain, 1) * u
    # The grains are not aligned with the node: the last grain extends past the node's end by as
    # much as the first lacks.
    return jnp.where(filled >= 1, filled - 1, filled)


def _reduction(tree: SumTree) -> levels.Reduce:
    return functools.partial(_reduce, keeps=tree.keeps, inactive=tree.inactive)


# Traced once for all levels.
@functools.partial(jax.jit, inline=True, static_argnames=("several", "keeps", "inactive"))
def _reduce(
    row: jax.Array, several: bool, keeps: tuple[Aggregate, ...], inactive: bool
) -> jax.Array:
    """Return the aggregates of rows: `[..., FANOUT]`, or with one axis more if `several`."""
    kept: list[jax.Array] = []
    for at, which in enumerate(keeps):
        part = row[..., at] if several else row
        if not several and inactive:
            part = _larger(part, jnp.zeros_like(part))
        if not several and which is Aggregate.LARGEST_INVERSE:
            part = jnp.where(part > 0, 1 / jnp.where(part > 0, part, 1), 0)
        kept.append(_halved(part, operator.add if which is Aggregate.SUM else _larger))
    return jnp.stack(kept, axis=-1) if len(kept) > 1 else kept[0]


def _halved(row: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """Combine `[..., FANOUT]` by halves: short chains, in the same order on every platform."""
    while row.shape[-1] > 1:
        half = row.shape[-1] // 2
        row = combine(row[..., :half], row[..., half:])
    return row[..., 0]


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a > b, a, b)  # unlike jnp.maximum, it needs no check for NaN
