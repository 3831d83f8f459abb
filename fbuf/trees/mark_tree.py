"""A tree over marks, a bit a slot: the r-th marked slot, and how many come before one.

The bits lie at the bottom, 32 slots to a word. Every row of `FANOUT` words has one node above it
that says how many of its 512 slots are marked, those nodes lie in rows of `FANOUT` again, and so
on, until at most `TOP` nodes are left: 0.134 bytes a slot, a thirtieth of an int32.

Marks and counts are integers, exact at any size. So to mark a slot adds its bit to a word and 1 to
every node above it, to unmark it takes them away, and one scatter does it for all levels. One rank
suffices for the whole way down.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbuf import _rows
from fbuf._order import after
from fbuf.trees._levels import FANOUT, rows_for
from fbuf.trees.sum_tree import TOP, first_above, running_sums

_BITS = 32
_SHIFT = FANOUT.bit_length() - 1
_WORD_SHIFT = _BITS.bit_length() - 1

_CACHED = 2**18
"""Nodes of a level that can be taken to lie in a core's own cache."""

Row = list[jax.Array]
"""The `FANOUT` nodes of a row; all of one shape: that of a batch, or of a scalar."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarkTree:
    """The marks and the counts of all levels in one array, so that one scatter writes them.

    Attributes:
        nodes: int32; the words of the marks, then the levels of counts from the bottom up, each
            padded to whole rows.
        capacity: How many slots there are; static.
    """

    nodes: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})


def empty(capacity: int) -> MarkTree:
    """A tree without marks."""
    return MarkTree(jnp.zeros(sum(_sizes(capacity)), jnp.int32), capacity)


def cleared(tree: MarkTree) -> MarkTree:
    """The tree without its marks. O(capacity / 60) words."""
    return dataclasses.replace(tree, nodes=jnp.zeros_like(tree.nodes))


def read(tree: MarkTree, slots: jax.Array) -> jax.Array:
    """Which of these slots are marked, each in range: bool `[B]`."""
    words = _rows.read(tree.nodes, slots >> _WORD_SHIFT)
    # The barrier has them read once, as in `fbuf._ring.append`.
    return lax.optimization_barrier(_bit(words, slots) == 1)


def change(tree: MarkTree, slots: jax.Array, by: jax.Array) -> MarkTree:
    """Mark and unmark slots.

    Args:
        tree: The tree.
        slots: int32 `[B]`, each in range.
        by: int32 `[B]`; 1 to mark, -1 to unmark, 0 to leave. What they come to for a slot that
            comes more than once must lead from what it is to a mark or to none.
    """
    where, what = [slots >> _WORD_SHIFT], [by << (slots & (_BITS - 1))]
    start, shift = 0, _WORD_SHIFT
    sizes = _sizes(tree.capacity)
    for below in sizes[:-1]:
        start, shift = start + below, shift + _SHIFT
        where.append((slots >> shift) + start)
        what.append(by)
    nodes = tree.nodes.at[jnp.concatenate(where)].add(
        jnp.concatenate(what), mode="promise_in_bounds"
    )
    return dataclasses.replace(tree, nodes=nodes)


def select(tree: MarkTree, ranks: jax.Array) -> jax.Array:
    """Find the marked slots of given ranks, counted from slot 0 upwards.

    Args:
        tree: The tree.
        ranks: int32 `[B]`, from 0 upwards; of a rank that no mark has the result is in range, and
            meaningless.

    Returns:
        int32 `[B]` slots. O(B log N).
    """
    starts, sizes = _starts(tree.capacity), _sizes(tree.capacity)
    sums = _top_sums(tree)
    found = first_above(sums, ranks)
    ranks = ranks - jnp.where(found > 0, sums[found - 1], 0)
    if len(sizes) == 1:  # so few slots that the words are the top
        slots = found * _BITS + _select_bit(tree.nodes[found], ranks)
        return jnp.minimum(slots, tree.capacity - 1)

    def into_counts(row: Row, found: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, before, _ = _enter(row, row, rank)
        return found * FANOUT + child, rank - before

    def into_words(row: Row, found: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, before, word = _enter([_ones(word) for word in row], row, rank)
        slot = (found * FANOUT + child) * _BITS + _select_bit(word, rank - before)
        return jnp.minimum(slot, tree.capacity - 1), rank

    for start, size in zip(starts[-2::-1], sizes[-2::-1], strict=True):
        found = jnp.minimum(found, size // FANOUT - 1)
        step = into_counts if start else into_words
        found, ranks = _each_row(tree.nodes, start, size, step, found, ranks)
    return found


def rank(tree: MarkTree, slots: jax.Array) -> jax.Array:
    """How many marked slots lie before these, each from 0 to the capacity: int32 `[B]`."""
    starts, sizes = _starts(tree.capacity), _sizes(tree.capacity)
    sums = _top_sums(tree)
    slots = jnp.minimum(slots, tree.capacity)
    below = (jnp.ones_like(slots) << (slots & (_BITS - 1))) - 1  # the bits before that of the slot
    nodes = slots >> _WORD_SHIFT
    total = jnp.zeros_like(slots)
    if len(sizes) == 1:
        word = tree.nodes[jnp.minimum(nodes, sizes[0] - 1)]
        total += jnp.where(nodes < sizes[0], _ones(word & below), 0)

    def among_words(
        row: Row, number: jax.Array, node: jax.Array, below: jax.Array
    ) -> tuple[jax.Array]:
        child = node & (FANOUT - 1)
        masks = [
            jnp.where(at < child, -1, jnp.where(at == child, below, 0)) for at in range(FANOUT)
        ]
        return (_sum([_ones(word & mask) for word, mask in zip(row, masks, strict=True)]),)

    def among_counts(row: Row, number: jax.Array, node: jax.Array) -> tuple[jax.Array]:
        child = node & (FANOUT - 1)
        return (_sum([jnp.where(at < child, count, 0) for at, count in enumerate(row)]),)

    for start, size in zip(starts[:-1], sizes[:-1], strict=True):
        rows = nodes >> _SHIFT
        # What lies past the last row of a level is counted by the level above.
        inside = jnp.minimum(rows, size // FANOUT - 1)
        if start:
            (before,) = _each_row(tree.nodes, start, size, among_counts, inside, nodes)
        else:
            (before,) = _each_row(tree.nodes, start, size, among_words, inside, nodes, below)
        total += jnp.where(rows == inside, before, 0)
        nodes = rows
    return total + jnp.where(nodes > 0, sums[jnp.minimum(nodes, sums.shape[0]) - 1], 0)


def _each_row(
    nodes: jax.Array,
    start: int,
    size: int,
    step: Callable[..., tuple[jax.Array, ...]],
    rows: jax.Array,
    *given: jax.Array,
) -> tuple[jax.Array, ...]:
    """A step for each of a batch of rows of a level of `size` nodes, which begins at `start`.

    On CPU it is a loop: XLA makes one kernel of it as long as it looks at one level alone.
    """

    def loop(nodes: jax.Array, rows: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
        def body(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            at = rows[i] * FANOUT + start
            row = lax.dynamic_slice(nodes, (at,), (FANOUT,), allow_negative_indices=False)
            made = step([row[child] for child in range(FANOUT)], rows[i], *(x[i] for x in given))
            return tuple(old.at[i].set(new) for old, new in zip(found, made, strict=True))

        if size > _CACHED:
            rows = _fetched(nodes, rows * FANOUT + start, rows)
        empty = [jnp.zeros_like(rows) for _ in jax.eval_shape(step, [rows] * FANOUT, rows, *given)]
        return lax.fori_loop(0, rows.shape[0], body, tuple(empty))

    def gather(nodes: jax.Array, rows: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
        at = (rows * FANOUT + start)[:, None] + jnp.arange(FANOUT, dtype=jnp.int32)
        row = nodes.at[at].get(mode="promise_in_bounds")
        return step([row[:, child] for child in range(FANOUT)], rows, *given)

    return lax.platform_dependent(nodes, rows, *given, cpu=loop, default=gather)


def _fetched(nodes: jax.Array, at: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows' numbers, once their nodes are in the cache; see `fbuf.trees._levels.fetched`."""

    def body(i: jax.Array, seen: jax.Array) -> jax.Array:
        return jnp.maximum(seen, lax.dynamic_index_in_dim(nodes, at[i], keepdims=False) & 1)

    seen = lax.fori_loop(0, at.shape[0], body, jnp.int32(0))
    return after(rows, seen < 0)


def _sizes(capacity: int) -> list[int]:
    """How many nodes each level has, the words first, in whole rows."""
    nodes = -(-capacity // _BITS)
    sizes = [rows_for(nodes) * FANOUT]
    while nodes > TOP:
        nodes = rows_for(nodes)
        sizes.append(rows_for(nodes) * FANOUT)
    return sizes


def _starts(capacity: int) -> list[int]:
    """Where each level begins."""
    sizes = _sizes(capacity)
    return [sum(sizes[:level]) for level in range(len(sizes))]


def _top_sums(tree: MarkTree) -> jax.Array:
    """The running sums of the top."""
    top = tree.nodes[_starts(tree.capacity)[-1] :].reshape(-1, FANOUT)
    return running_sums(top if len(_sizes(tree.capacity)) > 1 else _ones(top))


def _enter(counts: Row, row: Row, rank: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The child that holds a rank, the count of those before it, and the child itself."""
    child, before, passed_count = jnp.zeros_like(rank), jnp.zeros_like(rank), jnp.zeros_like(rank)
    entered = row[0]
    for count, following in zip(counts[:-1], row[1:], strict=True):
        passed_count += count
        passed = passed_count <= rank
        child += passed.astype(jnp.int32)
        before = jnp.where(passed, passed_count, before)
        entered = jnp.where(passed, following, entered)
    return child, before, entered


def _select_bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """The place of the set bit of this rank in a word, by halves; 31 if it has fewer."""
    place = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        low = _ones(lax.shift_right_logical(word, place) & ((1 << width) - 1))
        beyond = low <= rank
        rank = rank - jnp.where(beyond, low, 0)
        place = place + jnp.where(beyond, width, 0)
    return place


def _ones(word: jax.Array) -> jax.Array:
    return lax.population_count(word)


def _sum(counts: Row) -> jax.Array:
    return functools.reduce(operator.add, counts)


def _bit(word: jax.Array, slot: jax.Array) -> jax.Array:
    return lax.shift_right_logical(word, slot & (_BITS - 1)) & 1
