"""A tree over marks, a bit a slot: the r-th marked slot, and how many come before one.

The bits lie at the bottom, 32 slots to a word. Every row of `FANOUT` words has one node above it
that says how many of its 512 slots are marked, those nodes lie in rows of `FANOUT` again, and so
on, until a single row is left: 0.134 bytes a slot, a thirtieth of an int32. That row is never
full, so that there is a node past the last one of every level.

Marks and counts are integers, exact at any size. So to mark a slot adds its bit to a word and 1 to
every node above it, to unmark it takes them away, and one scatter does it for all levels. One rank
suffices for the whole way down.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf import _rows
from fbuf._order import after
from fbuf.trees._levels import FANOUT, rows_for

_BITS = 32
_SHIFT = FANOUT.bit_length() - 1
_WORD_SHIFT = _BITS.bit_length() - 1

_CACHED = 2**18
"""Nodes of a level that can be taken to lie in a core's own cache."""


class Level(NamedTuple):
    """Where in the array a level begins, and how many nodes it has; whole rows of them."""

    start: int
    size: int


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
    top = _levels(capacity)[-1]
    return MarkTree(jnp.zeros(top.start + top.size, jnp.int32), capacity)


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
    for number, level in enumerate(_levels(tree.capacity)[1:], start=1):
        where.append((slots >> (_WORD_SHIFT + number * _SHIFT)) + level.start)
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

    def into_counts(row: Row, number: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
        child, before, _ = _enter(row, row, rank)
        return number * FANOUT + child, rank - before

    def into_words(row: Row, number: jax.Array, rank: jax.Array) -> tuple[jax.Array]:
        child, before, word = _enter([_ones(word) for word in row], row, rank)
        slot = (number * FANOUT + child) * _BITS + _select_bit(word, rank - before)
        return (jnp.minimum(slot, tree.capacity - 1),)

    # The top is row 0. XLA must not know: it would take the row out of the loop, number by number.
    found = jnp.minimum(ranks, 0)
    words, *counts = _levels(tree.capacity)
    for level in reversed(counts):
        found, ranks = _each_row(tree.nodes, level, into_counts, found, ranks)
    return _each_row(tree.nodes, words, into_words, found, ranks)[0]


def rank(tree: MarkTree, slots: jax.Array) -> jax.Array:
    """How many marked slots lie before these, each from 0 to the capacity: int32 `[B]`."""
    slots = jnp.minimum(slots, tree.capacity)
    below = (jnp.ones_like(slots) << (slots & (_BITS - 1))) - 1  # the bits before that of the slot

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

    words, *counts = _levels(tree.capacity)
    nodes = slots >> _WORD_SHIFT
    rows = nodes >> _SHIFT
    (before,) = _each_row(tree.nodes, words, among_words, rows, nodes, below)
    # What lies past the last row of a level is counted by the level above.
    total = jnp.where(rows < words.size // FANOUT, before, 0)
    for level in counts:
        nodes, rows = rows, rows >> _SHIFT
        (before,) = _each_row(tree.nodes, level, among_counts, rows, nodes)
        total += jnp.where(rows < level.size // FANOUT, before, 0)
    return total


def _each_row(
    nodes: jax.Array,
    level: Level,
    step: Callable[..., tuple[jax.Array, ...]],
    rows: jax.Array,
    *given: jax.Array,
) -> tuple[jax.Array, ...]:
    """A step for each of a batch of rows of a level; for the last row where it has none of them.

    On CPU it is a loop: XLA makes one kernel of it as long as it looks at one level alone.
    """
    last = level.size // FANOUT - 1

    def loop(nodes: jax.Array, rows: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
        def body(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            number = jnp.minimum(rows[i], last)
            at = (level.start + number * FANOUT,)
            row = lax.dynamic_slice(nodes, at, (FANOUT,), allow_negative_indices=False)
            made = step([row[child] for child in range(FANOUT)], number, *(x[i] for x in given))
            return tuple(old.at[i].set(new) for old, new in zip(found, made, strict=True))

        if level.size > _CACHED:
            rows = _fetched(nodes, level.start + jnp.minimum(rows, last) * FANOUT, rows)
        empty = [jnp.zeros_like(rows) for _ in jax.eval_shape(step, [rows] * FANOUT, rows, *given)]
        return lax.fori_loop(0, rows.shape[0], body, tuple(empty))

    def gather(nodes: jax.Array, rows: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
        number = jnp.minimum(rows, last)
        at = (level.start + number * FANOUT)[:, None] + jnp.arange(FANOUT, dtype=jnp.int32)
        row = nodes.at[at].get(mode="promise_in_bounds")
        return step([row[:, child] for child in range(FANOUT)], number, *given)

    return lax.platform_dependent(nodes, rows, *given, cpu=loop, default=gather)


def _fetched(nodes: jax.Array, at: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows' numbers, once their nodes are in the cache; see `fbuf.trees._levels.fetched`."""

    def body(i: jax.Array, seen: jax.Array) -> jax.Array:
        return jnp.maximum(seen, lax.dynamic_index_in_dim(nodes, at[i], keepdims=False) & 1)

    seen = lax.fori_loop(0, at.shape[0], body, jnp.int32(0))
    return after(rows, seen < 0)


def _levels(capacity: int) -> list[Level]:
    """The levels from the bottom up: the words, and the counts above them, in whole rows."""
    nodes = -(-capacity // _BITS)
    levels = [Level(0, rows_for(nodes) * FANOUT)]
    while nodes >= FANOUT:
        nodes = rows_for(nodes)
        below = levels[-1]
        levels.append(Level(below.start + below.size, rows_for(nodes + 1) * FANOUT))
    return levels


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
