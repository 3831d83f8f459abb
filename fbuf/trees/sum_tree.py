"""A K-ary sum tree: draw a slot with probability proportional to its value.

The values lie at the bottom, `FANOUT` to a row. Every row has one node above it that holds the
row's sum, those nodes are laid in rows of `FANOUT` again, and so on, until at most `TOP` nodes are
left. Each level is one array. With 16 children to a row and 100,000 slots:

    nodes[1]     25 nodes in rows of 16: the sums of
    nodes[0]    391 rows of 16 nodes: the sums of
    leaves    6,250 rows of 16 values

To draw is to walk down: pick a node of the top in proportion to its sum, then a child of the row
under it, and so on. To write is to walk up: set the leaves, then compute
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
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fbuf.storage.ring import Span
from fbuf.trees import levels
from fbuf.trees.levels import FANOUT, first_of, row_and_child, rows_for
from fbuf.xla.loop import by_halves, fetched, gathered
from fbuf.xla.rows import read_rows
from fbuf.xla.tie import tie

TOP = 512
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
    """The levels of the tree, from the bottom up.

    Attributes:
        leaves: `[rows, FANOUT]`; the value of slot `s` is at `[s // FANOUT, s % FANOUT]`.
            There is one leaf more than slots, always 0: what is to be left out is written there.
        nodes: `[rows, FANOUT]` each, or `[rows, FANOUT, aggregates]` if a node keeps more than the
            sum; the last is the top, of at most `TOP` nodes. Not with an axis of length 1: with
            several shards on a device XLA on CPU would copy the array at every step.
        capacity: How many slots there are; static.
        keeps: The aggregates of a node, the sum first; static.
        inactive: Whether values may have a minus sign: they are then kept, and of them only
            LARGEST takes note; nothing is drawn there; static.
    """

    leaves: jax.Array
    nodes: tuple[jax.Array, ...]
    capacity: int = dataclasses.field(metadata={"static": True})
    keeps: tuple[Aggregate, ...] = dataclasses.field(metadata={"static": True})
    inactive: bool = dataclasses.field(metadata={"static": True})


def empty(
    capacity: int, keeps: tuple[Aggregate, ...] = (Aggregate.SUM,), inactive: bool = False
) -> SumTree:
    """A tree with every value 0; -0 if values may be inactive."""
    rows = rows_for(capacity + 1)
    leaves = jnp.full((rows, FANOUT), -0.0 if inactive else 0.0, jnp.float32)
    nodes: list[jax.Array] = []
    while not nodes or rows > TOP // FANOUT:
        rows = rows_for(rows)
        kept = (len(keeps),) if len(keeps) > 1 else ()
        nodes.append(jnp.zeros((rows, FANOUT, *kept), jnp.float32))
    return SumTree(leaves, tuple(nodes), capacity, keeps, inactive)


def of(values: jax.Array) -> SumTree:
    """A tree of float32 `[N]` values, each at least 0. O(N)."""
    tree = empty(values.shape[0])
    spare = tree.leaves.size - values.shape[0]
    made = [jnp.pad(values, (0, spare)).reshape(tree.leaves.shape)]
    everything = jnp.arange(tree.leaves.shape[0], dtype=jnp.int32)
    for parent in tree.nodes:
        made.append(levels.refresh(parent, made[-1], everything, 0, _reduction(tree)))
    return dataclasses.replace(tree, leaves=made[0], nodes=tuple(made[1:]))


def total(tree: SumTree) -> jax.Array:
    """The sum of all values. Scalar."""
    return _row_ends(first_of(tree.nodes[-1]))[-1]


def aggregate(tree: SumTree, which: Aggregate) -> jax.Array:
    """The largest value, or the largest inverse, of all slots. Scalar."""
    top = tree.nodes[-1]
    return (top if top.ndim == 2 else top[..., tree.keeps.index(which)]).max()


def values(tree: SumTree, slots: jax.Array) -> jax.Array:
    """The values of slots, each of which must be in range: float32 `[B]`."""
    return levels.read_leaves(tree.leaves, slots)


def write(
    tree: SumTree, slots: jax.Array, new: jax.Array, activated: jax.Array | None = None
) -> SumTree:
    """Set the values of scattered slots, and every node above them.

    Args:
        tree: The tree.
        slots: int32 `[B]` in `[0, capacity]`; those equal to the capacity are left out, and of
            duplicates the last one wins.
        new: float32 `[B]`; finite, and at least 0 unless values may be inactive.
        activated: int32 `[W]` in `[0, capacity]`; slots whose values then lose their minus sign, if
            they have one. None is none.
    """
    slots = _after_last_write(tree, slots)
    leaves = levels.set_leaves(tree.leaves, slots, jnp.where(slots < tree.capacity, new, 0))
    touched = slots
    if activated is not None:
        leaves = _activated(leaves, activated)
        touched = jnp.concatenate([slots, activated])
    made = [leaves]
    for depth, parent in enumerate(tree.nodes, start=1):
        made.append(levels.refresh(parent, made[-1], touched, depth, _reduction(tree)))
    return dataclasses.replace(tree, leaves=made[0], nodes=tuple(made[1:]))


def write_span(
    tree: SumTree, span: Span, new: jax.Array, activated: jax.Array | None = None
) -> SumTree:
    """Set the values of consecutive slots: as `write`, but each row above them once.

    Args:
        tree: The tree.
        span: The slots, as the ring gave them out.
        new: `[B]`; the value of each of `span.slots`.
        activated: As for `write`.
    """
    slots = _after_last_write(tree, span.slots)
    new = jnp.where(slots < tree.capacity, new, 0)
    leaves = tree.leaves.at[row_and_child(slots)].set(new, mode="promise_in_bounds")
    if activated is not None:
        leaves = _activated(leaves, activated)
    first, most = span.first, span.most
    made = [leaves]
    for parent in tree.nodes:
        count = made[-1].shape[0]
        first = row_and_child(first)[0]
        most = min(count, levels.most_rows(most))
        rows = (first + jnp.arange(most, dtype=jnp.int32)) % count
        if activated is not None:
            activated = jnp.minimum(row_and_child(activated)[0], count - 1)
            rows = jnp.concatenate([rows, activated])
        made.append(levels.refresh(parent, made[-1], rows, 0, _reduction(tree)))
    return dataclasses.replace(tree, leaves=made[0], nodes=tuple(made[1:]))


def draw(tree: SumTree, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw slots independently, each with probability value / total; never one of value 0.

    Args:
        tree: The tree. If its total is 0 the slots are in range and mean nothing.
        uniforms: float32 `[picks(tree), B]` in `[0, 1)`; a number a level for every draw.

    Returns:
        The slots, int32 `[B]`, and their values.
    """
    found = first_above(first_of(tree.nodes[-1]), uniforms[0] * total(tree))
    for level, u in zip(below_top(tree), uniforms[1:], strict=True):
        signed = tree.inactive and level is tree.leaves
        found = _pick(level, jnp.minimum(found, level.shape[0] - 1), u, signed)
    slots = jnp.minimum(found, tree.capacity - 1)
    return slots, values(tree, slots)


class Points(NamedTuple):
    """Places along all values laid end to end; float32 `[B]` each.

    Attributes:
        fraction: In `[0, 1)`; of the total.
        grain: What the last bit of the fraction is worth: 2**-24, or more if some are used up.
    """

    fraction: jax.Array
    grain: jax.Array


def draw_stratified(
    tree: SumTree, points: Points, uniforms: jax.Array
) -> tuple[jax.Array, jax.Array, Points]:
    """Draw the slots found at given positions along all values laid end to end.

    A position chooses a node and, by what is left of it, a place inside that node. Its 24 bits are
    used up on the way down, so at each level a uniform number fills in those below the last one:
    the draw stays in its stratum, and every slot can still be reached.

    Args:
        tree: The tree, as for `draw`.
        points: Where.
        uniforms: float32 `[picks(tree), B]` in `[0, 1)`.

    Returns:
        The slots, int32 `[B]`; their values; and the positions inside these.
    """
    top = first_of(tree.nodes[-1])
    sums = running_sums(top)
    whole = sums[-1]
    target = _filled_in(points.fraction, points.grain, uniforms[0]) * whole
    found = first_above(top, target)
    before = jnp.where(found > 0, sums[found - 1], 0)
    value = top[row_and_child(found)]

    def inside() -> Points:
        # What the last bit of the target is worth in this node.
        # With nothing to draw from the value is 0.
        of = jnp.where(value > 0, value, 1)
        return Points((target - before) / of, whole * 2.0**-24 / of)

    for level, u in zip(below_top(tree), uniforms[1:], strict=True):
        found = jnp.minimum(found, level.shape[0] - 1)
        left, grain = inside()
        signed = tree.inactive and level is tree.leaves
        row = first_of(read_rows(level, found))
        children = _drawable([row[:, child] for child in range(FANOUT)], signed)
        running = _running(children)
        whole = running[-1]
        target = _filled_in(left, grain, u) * whole
        child = _first_above(running, target)
        before, value = _choose(child - 1, running), _choose(child, children)
        found = found * FANOUT + child
    return jnp.minimum(found, tree.capacity - 1), value, inside()


def picks(tree: SumTree) -> int:
    """How many choices lead from the top to a slot."""
    return len(tree.nodes) + 1


def below_top(tree: SumTree) -> list[jax.Array]:
    """The levels below the top, downwards."""
    return [*reversed(tree.nodes[:-1]), tree.leaves]


def first_above(nodes: jax.Array, targets: jax.Array) -> jax.Array:
    """For each target the first of the running sums of `[rows, FANOUT]` nodes that lies above it.

    First the row is found, by the running sums of the rows, and then the child.

    Args:
        nodes: float32; their running sums are those of `running_sums`.
        targets: float32 `[B]`, from 0 to below the sum of all nodes.

    Returns:
        int32 `[B]`; the number of a node. Its own value is above 0.
    """
    # Outside of the halves: a loop that is given the sums of all rows compiles slowly.
    row, before = jnp.zeros(targets.shape, jnp.int32), jnp.zeros_like(targets)
    for end in _row_ends(nodes)[:-1]:
        passed = end <= targets
        row += passed.astype(jnp.int32)
        before = jnp.where(passed, end, before)

    def choose(
        nodes: jax.Array, targets: jax.Array, row: jax.Array, before: jax.Array
    ) -> jax.Array:
        children = [gathered(nodes, row, (child,)) for child in range(FANOUT)]
        inside = [before + running for running in _running(children)]
        return row * FANOUT + _first_above(inside, targets)

    return by_halves(choose, nodes, targets, row, before)


def running_sums(nodes: jax.Array) -> jax.Array:
    """The running sums of `[rows, FANOUT]` nodes in row-major order, `[rows * FANOUT]`.

    The additions are written out, so that a node of value 0 adds nothing: the sum of a row is the
    last of its own running sums, and with it begin those of the next one.
    """
    ends = _row_ends(nodes)
    before = jnp.stack([jnp.zeros((), nodes.dtype), *ends[:-1]])
    inside = _running([nodes[:, child] for child in range(FANOUT)])
    return (before[:, None] + jnp.stack(inside, axis=1)).reshape(-1)


@functools.partial(jax.jit, inline=True)  # traced once for a draw
def _row_ends(nodes: jax.Array) -> list[jax.Array]:
    """The running sums of the rows of `[rows, FANOUT]` nodes, a scalar each."""
    sums = _running([nodes[:, child] for child in range(FANOUT)])[-1]
    return list(itertools.accumulate(sums[row] for row in range(nodes.shape[0])))


def _pick(level: jax.Array, rows: jax.Array, uniforms: jax.Array, signed: bool) -> jax.Array:
    """Pick a child of each row in proportion to its sum: `[B]` nodes of the level below."""

    def choose(level: jax.Array, rows: jax.Array, uniforms: jax.Array) -> jax.Array:
        # One gather a child: an array of whole rows would be made by other threads.
        first = (0,) * (level.ndim - 2)
        sums = [gathered(level, rows, (child, *first)) for child in range(FANOUT)]
        running = _running(_drawable(sums, signed))
        return rows * FANOUT + _first_above(running, uniforms * running[-1])

    return by_halves(choose, level, fetched(level, rows, rows), uniforms)


def _after_last_write(tree: SumTree, slots: jax.Array) -> jax.Array:
    """The slots, once the top has been computed, and so every level below it been read."""
    return tie(slots, first_of(tree.nodes[-1])[0, 0])


def _activated(leaves: jax.Array, slots: jax.Array) -> jax.Array:
    """The leaves, of which some lose their minus sign. The spare leaf is 0, and stays so."""
    value = levels.read_leaves(leaves, slots)
    return leaves.at[row_and_child(slots)].set(jnp.abs(value), mode="promise_in_bounds")


def _drawable(sums: list[jax.Array], signed: bool) -> list[jax.Array]:
    """The sums of a row's children, 0 for those with a minus sign."""
    return [_larger(sum_, jnp.zeros_like(sum_)) for sum_ in sums] if signed else sums


def _running(children: list[jax.Array]) -> list[jax.Array]:
    """The running sums of a row, by fours: a chain of 8 additions instead of 15."""
    fours = [list(itertools.accumulate(children[at : at + 4])) for at in range(0, FANOUT, 4)]
    ends = itertools.accumulate(four[-1] for four in fours)
    rest = [end + sum_ for end, four in zip(ends, fours[1:], strict=False) for sum_ in four]
    return [*fours[0], *rest]


def _first_above(running: list[jax.Array], target: jax.Array) -> jax.Array:
    """The first of a row's running sums that lies above the target; the last if none does."""
    found = jnp.zeros(target.shape, jnp.int32)
    for passed in running[:-1]:
        found += (passed <= target).astype(jnp.int32)
    return found


def _choose(child: jax.Array, choices: list[jax.Array]) -> jax.Array:
    """`choices[child]` for each child; 0 for child -1."""
    chosen = jnp.zeros_like(choices[0])
    for at, choice in enumerate(choices):
        chosen = jnp.where(child == at, choice, chosen)
    return chosen


def _filled_in(fraction: jax.Array, grain: jax.Array, u: jax.Array) -> jax.Array:
    """A position known to a multiple of `grain`, made uniform inside its last bit."""
    fine = grain < 1
    filled = jnp.where(fine, jnp.clip(fraction, 0, 1), 0) + jnp.where(fine, grain, 1) * u
    # The grains are not aligned with the node: the last one sticks out of it by as much as is
    # missing before the first.
    return jnp.where(filled >= 1, filled - 1, filled)


def _reduction(tree: SumTree) -> levels.Reduce:
    return functools.partial(_reduce, keeps=tree.keeps, inactive=tree.inactive)


# Traced once for the levels.
@functools.partial(jax.jit, inline=True, static_argnames=("several", "keeps", "inactive"))
def _reduce(
    row: jax.Array, several: bool, keeps: tuple[Aggregate, ...], inactive: bool
) -> jax.Array:
    """What nodes keep of their rows: `[..., FANOUT]`, or of `several` with one axis more."""
    kept: list[jax.Array] = []
    for at, which in enumerate(keeps):
        part = row[..., at] if several else row
        if not several and inactive:
            part = (
                jnp.abs(part) if which is Aggregate.LARGEST else _larger(part, jnp.zeros_like(part))
            )
        if not several and which is Aggregate.LARGEST_INVERSE:
            part = jnp.where(part > 0, 1 / jnp.where(part > 0, part, 1), 0)
        kept.append(_halved(part, operator.add if which is Aggregate.SUM else _larger))
    return jnp.stack(kept, axis=-1) if len(kept) > 1 else kept[0]


def _halved(row: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """Combine `[..., FANOUT]` by halves: short chains, and one order on every platform."""
    while row.shape[-1] > 1:
        half = row.shape[-1] // 2
        row = combine(row[..., :half], row[..., half:])
    return row[..., 0]


def _larger(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a > b, a, b)  # there is no NaN to look after, as jnp.maximum does
