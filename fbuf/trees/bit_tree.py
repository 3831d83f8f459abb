"""A tree over bits, one a slot: find the r-th set bit, and count the set bits before a slot.

The bits lie at the bottom, 32 slots to a word. The node above a row of `FANOUT` words counts the
set ones of its 512 bits. The nodes again form rows of `FANOUT`, up to a single row. They take 0.134
bytes a slot, a thirtieth of an int32. The top row is never full, so that every level has a node
past its last one.

Bits and counts are integers, exact at any size. Setting a bit adds the bit to its word, and 1 to
every node above the word; clearing a bit subtracts both. One scatter serves all levels. One rank
suffices for the whole way down.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf._pytree import pytree
from fbuf.trees.levels import FANOUT, rows_for
from fbuf.xla.filled import zeros
from fbuf.xla.loop import (
    Numbers,
    blank,
    by_entries,
    entry,
    fetched,
    gathered,
    is_large,
    with_entry,
    with_entry_at,
    zero_after,
)
from fbuf.xla.platform import by_platform
from fbuf.xla.rows import read_rows
from fbuf.xla.varying import varying

_BITS = 32
_SHIFT = FANOUT.bit_length() - 1
_WORD_SHIFT = _BITS.bit_length() - 1


class Level(NamedTuple):
    """The start of a level in the array, and its number of nodes, in whole rows."""

    start: int
    size: int


Row = list[jax.Array]
"""The `FANOUT` nodes of a row, each `[B]` or a scalar."""


@pytree
class BitTree:
    """The bits and the counts of all levels in one array, so that one scatter writes them.

    Attributes:
        nodes: int32; the words of bits, then the levels of counts from the bottom up, each
            padded to whole rows.
        capacity: The number of slots; static.
    """

    nodes: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})


def empty(capacity: int) -> BitTree:
    """Return a tree with no bit set."""
    top = _levels(capacity)[-1]
    return BitTree(zeros(top.start + top.size, np.int32), capacity)


def read(tree: BitTree, slots: jax.Array) -> jax.Array:
    """Return whether the bits of slots are set, each slot in range: bool `[B]`."""
    words = read_rows(tree.nodes, slots >> _WORD_SHIFT)
    return _bit(words, slots) == 1


def change(tree: BitTree, slots: jax.Array, by: jax.Array) -> BitTree:
    """Set and clear bits.

    Args:
        tree: The tree.
        slots: int32 `[B]`, each in range.
        by: int32 `[B]`; 1 sets a bit that is not set, -1 clears one that is set, 0 changes nothing.
            A slot may repeat if its changes sum to -1, 0 or 1.
    """
    where, what = [slots >> _WORD_SHIFT], [by << (slots & (_BITS - 1))]
    for number, level in enumerate(_levels(tree.capacity)[1:], start=1):
        where.append((slots >> (_WORD_SHIFT + number * _SHIFT)) + level.start)
        what.append(by)
    nodes = tree.nodes.at[jnp.concatenate(where)].add(
        jnp.concatenate(what), mode="promise_in_bounds"
    )
    return dataclasses.replace(tree, nodes=nodes)


@functools.partial(jax.jit, inline=True)  # traced once where several branches use it
def select(tree: BitTree, ranks: jax.Array) -> jax.Array:
    """Find the slots whose set bits have given ranks, counted from slot 0 upwards.

    Args:
        tree: The tree.
        ranks: int32 `[B]`, from 0; a rank without a bit gets a meaningless slot in range.

    Returns:
        int32 `[B]` slots. O(B log N).
    """
    return _select(tree, ranks, None)


def select_first(tree: BitTree, ranks: jax.Array, count: jax.Array) -> jax.Array:
    """Find slots as `select` does, for the first `count` ranks.

    Other results are in range, and meaningless. On CPU, outside of `vmap`, it takes O(count log N)
    time.
    """
    return jnp.clip(_select(tree, ranks, count), 0, tree.capacity - 1)


def select_unless(tree: BitTree, slots: jax.Array, ranks: jax.Array) -> jax.Array:
    """Return each slot whose bit is set, and otherwise the slot of its rank.

    Args:
        tree: The tree.
        slots: int32 `[B]`, each in range.
        ranks: int32 `[B]`, as for `select`.

    Returns:
        int32 `[B]` slots. O(B log N); on CPU only slots with unset bits walk down the tree.
    """
    few = functools.partial(_select_few, None)
    return by_platform(tree, slots, ranks, cpu=few, default=_select_all)


def _select_all(tree: BitTree, slots: jax.Array, ranks: jax.Array) -> jax.Array:
    return jnp.where(read(tree, slots), slots, select(tree, ranks))


@jax.custom_batching.custom_vmap
def _select_few(
    first: jax.Array | None, tree: BitTree, slots: jax.Array, ranks: jax.Array
) -> jax.Array:
    """Find slots as `_select_all` does, but look up a rank only if the bit is not set.

    The nodes may be those of several trees, one behind the other. Then `first`, int32 `[B]`, is the
    node with which the tree of each slot begins.
    """
    words = _behind(first, slots >> _WORD_SHIFT)

    def look(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        count, where, *wanted = carry
        slot = entry(slots, i)
        word = entry(tree.nodes, entry(words, i))
        # Each entry is listed as wanted. If it is not, the next one overwrites it.
        looked_up = zip(wanted, given, strict=True)
        wanted = [with_entry(old, count, entry(new, i)) for old, new in looked_up]
        return count + 1 - _bit(word, slot), with_entry(where, count, i), *wanted

    given = (ranks,) if first is None else (ranks, first)
    slots = _fetched(tree.nodes, words, slots)
    zero = zero_after(slots)
    # The lists begin as existing arrays: places without a write are never read.
    count, where, *wanted = lax.fori_loop(zero, slots.shape[0], look, (zero, slots, *given))
    found = _select(tree, wanted[0], count, *wanted[1:])

    def put(i: jax.Array, slots: jax.Array) -> jax.Array:
        return with_entry(slots, entry(where, i), entry(found, i))

    return lax.fori_loop(zero_after(found), count, put, slots)


@_select_few.def_vmap
def _(size: int, batched: list[Any], *given: Any) -> tuple[jax.Array, bool]:
    # The trees become one: XLA makes no kernel of a loop with its own end for each buffer.
    first, tree, *batch = given
    shape = size, batch[0].shape[-1]
    every = [jnp.broadcast_to(leaf, shape) for leaf in batch]
    own = varying(lax.broadcasted_iota(jnp.int32, shape, 0), every[0])
    own = own * tree.nodes.shape[-1] if batched[1].nodes else jnp.zeros_like(own)
    if first is not None:
        own = own + jnp.broadcast_to(first, shape)
    trees = BitTree(tree.nodes.reshape(-1), tree.capacity)
    found = _select_few(own.reshape(-1), trees, *(leaf.reshape(-1) for leaf in every))
    return found.reshape(shape), True


def _select(
    tree: BitTree, ranks: jax.Array, count: jax.Array | None, first: jax.Array | None = None
) -> jax.Array:
    """Find slots as `select` does; on CPU, results behind the first `count` mean nothing.

    See `_select_few` for `first`.
    """

    def row_of(found: jax.Array, rank: jax.Array) -> jax.Array:
        return found

    def into_counts(row: Row, number: jax.Array, found: jax.Array, rank: jax.Array) -> Numbers:
        child, before, _ = _enter(row, row, rank)
        return number * FANOUT + child, rank - before

    def into_words(row: Row, number: jax.Array, found: jax.Array, rank: jax.Array) -> Numbers:
        child, before, word = _enter([_ones(word) for word in row], row, rank)
        slot = (number * FANOUT + child) * _BITS + _select_bit(word, rank - before)
        return (jnp.minimum(slot, capacity - 1),)

    capacity = tree.capacity  # the forms outlive the trace of the tree
    found = jnp.zeros_like(ranks)  # the top is row 0
    words, *counts = _levels(capacity)
    over = functools.partial(_each_level, tree.nodes, count=count, first=first)
    carry = over(counts[::-1], row_of, into_counts, (found, ranks))
    return over([words], row_of, into_words, carry)[0]


def rank(tree: BitTree, slots: jax.Array) -> jax.Array:
    """Count the set bits before slots, each slot from 0 to the capacity: int32 `[B]`."""
    # A node past the last row of a level is the first child of its row, so no child precedes it.
    slots = varying(jnp.minimum(slots, tree.capacity), tree.nodes)

    def row_of(node: jax.Array, *_: jax.Array) -> jax.Array:
        return node >> _SHIFT

    def among_words(row: Row, number: jax.Array, node: jax.Array, below: jax.Array) -> Numbers:
        child = node & (FANOUT - 1)
        masks = [
            jnp.where(at < child, -1, jnp.where(at == child, below, 0)) for at in range(FANOUT)
        ]
        before = _sum([_ones(word & mask) for word, mask in zip(row, masks, strict=True)])
        return node >> _SHIFT, before

    def among_counts(row: Row, number: jax.Array, node: jax.Array, total: jax.Array) -> Numbers:
        child = node & (FANOUT - 1)
        before = _sum([jnp.where(at < child, count, 0) for at, count in enumerate(row)])
        return node >> _SHIFT, total + before

    words, *counts = _levels(tree.capacity)
    below = (jnp.ones_like(slots) << (slots & (_BITS - 1))) - 1  # the bits before the slot's
    carry = (slots >> _WORD_SHIFT, below)
    carry = _each_level(tree.nodes, [words], row_of, among_words, carry)
    return _each_level(tree.nodes, counts, row_of, among_counts, carry)[1]


def _each_level(
    nodes: jax.Array,
    levels: Sequence[Level],
    row_of: Callable[..., jax.Array],
    step: Callable[..., Numbers],
    carry: Numbers,
    count: jax.Array | None = None,
    first: jax.Array | None = None,
) -> Numbers:
    """Loop over levels, and on each level over a batch.

    Args:
        nodes: The nodes of the tree.
        levels: The levels of the loop.
        row_of: Returns the row of a level that an entry of the batch needs, from the numbers
            carried for the entry. For a row past the last one of a level, the last one is read.
        step: Returns the new carry from the nodes of the row, its number, and the old carry. With
            several levels, the carry keeps its length.
        carry: int32 `[B]` each.
        count: The number of entries of the batch to visit on CPU; None is all.
        first: int32 `[B]`; where the tree of each entry begins among the nodes. None is 0.
    """

    def loops(nodes: jax.Array, count: Any, first: Any, *carry: jax.Array) -> Numbers:
        # Each large level has its own loop; small levels share one.
        key: Callable[[Level], int] = lambda level: level.start if _is_large(level) else -1
        for _, group in itertools.groupby(levels, key):
            carry = _loop_over(nodes, list(group), row_of, step, carry, count, first)
        return carry

    def gather(nodes: jax.Array, count: Any, first: Any, *carry: jax.Array) -> Numbers:
        for level in levels:
            number = jnp.minimum(row_of(*carry), level.size // FANOUT - 1)
            at = _behind(first, level.start + number * FANOUT)
            row = [gathered(nodes, at + child) for child in range(FANOUT)]
            carry = step(row, number, *carry)
        return carry

    return by_platform(nodes, count, first, *carry, cpu=loops, default=gather)


def _loop_over(
    nodes: jax.Array,
    levels: Sequence[Level],
    row_of: Callable[..., jax.Array],
    step: Callable[..., Numbers],
    carry: Numbers,
    count: jax.Array | None,
    first: jax.Array | None,
) -> Numbers:
    """Loop over one level or some small ones, on CPU.

    XLA makes one kernel of the loop over a batch if the loop reads one level alone. Also, the loop
    must not overwrite the numbers that it reads.
    """

    def over_batch(
        start: jax.Array | int, size: jax.Array | int, carry: Numbers, zero: jax.Array
    ) -> Numbers:
        def one(
            nodes: jax.Array, buffer: Numbers, start: jax.Array, size: jax.Array, *mine: jax.Array
        ) -> Numbers:
            if first is not None:
                start = mine[-1] + start
                mine = mine[:-1]
            number = jnp.minimum(row_of(*mine), (size >> _SHIFT) - 1)
            at, sizes = (*buffer, start + number * FANOUT), (*(1,) * len(buffer), FANOUT)
            row = lax.dynamic_slice(nodes, at, sizes, allow_negative_indices=False).reshape(-1)
            return step([row[child] for child in range(FANOUT)], number, *mine)

        def turn(made: Numbers, sources: Numbers, place: Numbers, *given: jax.Array) -> Numbers:
            *mine, start, size = given
            new = one(sources[0], place[:-1], start, size, *mine)
            pairs = zip(made, new, strict=True)
            return tuple(with_entry_at(old, place, number) for old, number in pairs)

        shared = jnp.int32(start), jnp.int32(size)
        mine = carry if first is None else (*carry, first)
        found = jax.eval_shape(one, nodes, (), *shared, *[zero] * len(mine))
        made = tuple(blank(zero, carry[0].shape, leaf.dtype) for leaf in found)
        return by_entries(turn, made, (nodes,), mine, shared, count)

    if len(levels) == 1:
        (level,) = levels
        if _is_large(level):
            rows = jnp.minimum(row_of(*carry), level.size // FANOUT - 1)
            at = _behind(first, level.start + rows * FANOUT)
            carry = (_fetched(nodes, at, carry[0]), *carry[1:])
        return over_batch(level.start, level.size, carry, zero_after(carry[0]))
    starts = jnp.array([level.start for level in levels], jnp.int32)
    sizes = jnp.array([level.size for level in levels], jnp.int32)

    def over_level(number: jax.Array, carry: Numbers) -> Numbers:
        zero = varying(jnp.int32(0), carry[0])
        return over_batch(starts[number], sizes[number], carry, zero)

    return lax.fori_loop(zero_after(carry[0]), len(levels), over_level, carry)


def _behind(first: jax.Array | None, nodes: jax.Array) -> jax.Array:
    """Return the numbers of nodes in trees that begin at node `first`, or at 0."""
    return nodes if first is None else first + nodes


def _fetched(nodes: jax.Array, at: jax.Array, batch: jax.Array) -> jax.Array:
    """Return `batch`, known only once the rows of these nodes are in the cache."""
    return fetched(nodes.reshape(-1, FANOUT), at >> _SHIFT, batch)


def _is_large(level: Level) -> bool:
    return is_large(level.size, jnp.dtype(jnp.int32))


def _levels(capacity: int) -> list[Level]:
    """Return the levels from the bottom up: the words, and the counts above, in whole rows."""
    nodes = -(-capacity // _BITS)
    levels = [Level(0, rows_for(nodes) * FANOUT)]
    while nodes >= FANOUT:
        nodes = rows_for(nodes)
        below = levels[-1]
        levels.append(Level(below.start + below.size, rows_for(nodes + 1) * FANOUT))
    return levels


def _enter(counts: Row, row: Row, rank: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the number of the child that holds a rank, the count before it, and the child."""
    child, before, passed_count = jnp.zeros_like(rank), jnp.zeros_like(rank), jnp.zeros_like(rank)
    entered = row[0]
    for count, following in zip(counts[:-1], row[1:], strict=True):
        # With `lax`: JAX takes twice the time to trace operators and `jnp`.
        passed_count = lax.add(passed_count, count)
        passed = lax.le(passed_count, rank)
        child = lax.add(child, lax.convert_element_type(passed, jnp.int32))
        before = lax.select(passed, passed_count, before)
        entered = lax.select(passed, following, entered)
    return child, before, entered


def _select_bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """Return the place of the set bit of a rank in a word, by halves; 31 without such a bit."""
    bit = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        low = _ones(lax.shift_right_logical(word, bit) & ((1 << width) - 1))
        beyond = low <= rank
        rank = rank - jnp.where(beyond, low, 0)
        bit = bit + jnp.where(beyond, width, 0)
    return bit


def _ones(word: jax.Array) -> jax.Array:
    return lax.population_count(word)


def _sum(counts: Row) -> jax.Array:
    return functools.reduce(operator.add, counts)


def _bit(word: jax.Array, slot: jax.Array) -> jax.Array:
    return lax.shift_right_logical(word, slot & (_BITS - 1)) & 1
