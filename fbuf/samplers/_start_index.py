"""The starts there are: an index kept as rows are written and removed, to draw one by its rank."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf import _order, _ring
from fbuf._ring import Ring, Span
from fbuf.samplers import _bits, _starts
from fbuf.samplers._starts import Window
from fbuf.trees import mark_tree
from fbuf.trees._levels import last_of_each
from fbuf.trees.mark_tree import MarkTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StartIndex:
    """Which slots are starts, and how many there are.

    `total` is None where every row is a start, for then the ring knows.
    """

    tree: MarkTree
    total: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Change:
    """What an add has changed about the starts; all `[B]`, one for each row written.

    Attributes:
        evicted: bool; a start was overwritten by the row.
        starts: int32; the start of the window that ends with the row, in range.
        there: bool; that is a start from now on.
    """

    evicted: jax.Array
    starts: jax.Array
    there: jax.Array


def empty(ring: Ring, window: Window) -> StartIndex:
    """No start."""
    return StartIndex(mark_tree.empty(ring.capacity), None if window.every_row else jnp.int32(0))


def add(index: StartIndex, ring: Ring, span: Span, window: Window) -> tuple[StartIndex, Change]:
    """Mark the starts there are now, and unmark those that made way."""
    written = jnp.minimum(span.slots, ring.capacity - 1)
    evicted = mark_tree.read(index.tree, written) & (span.slots < ring.capacity)
    gone = evicted.astype(jnp.int32)
    if index.total is None:
        tree = mark_tree.change(index.tree, written, span.drawable.astype(jnp.int32) - gone)
        return StartIndex(tree, None), Change(evicted, written, span.drawable)
    starts, there = _starts.completed(ring, span, window)
    # The total is known once all that was asked of the marks before this has been read.
    written = _order.after(written, index.total < 0)
    new = there.astype(jnp.int32)
    tree = mark_tree.change(
        index.tree, jnp.concatenate([written, starts]), jnp.concatenate([-gone, new])
    )
    # A mark from before the last clear is not counted any more.
    change = _sum(new) - _sum(jnp.where(span.was_stored, gone, 0))
    return StartIndex(tree, index.total + change), Change(evicted, starts, there)


def remove(
    index: StartIndex, ring: Ring, slots: jax.Array, window: Window
) -> tuple[StartIndex, jax.Array]:
    """Unmark the starts of all windows with these rows.

    Returns:
        The index, and the starts that are none any more, none twice, `capacity` for none.
    """
    starts = slots
    if window.length > 1:
        starts = _starts.containing(ring, slots, window)
        starts = jnp.where(last_of_each(starts), starts, ring.capacity)
    inside = jnp.minimum(starts, ring.capacity - 1)
    # Marks behind the newest row are from before the last clear, and count for nothing.
    lost = mark_tree.read(index.tree, inside) & _ring.holds(ring, starts)
    change = -lost.astype(jnp.int32)
    tree = mark_tree.change(index.tree, inside, change)
    total = None if index.total is None else index.total + _sum(change)
    return StartIndex(tree, total), jnp.where(lost, starts, ring.capacity)


def clear(index: StartIndex, ring: Ring) -> StartIndex:
    """No start.

    With one head what is marked still lies behind the newest row, out of reach of any rank, and is
    left as it is. With several there is no such order, and all of it is unmarked.
    """
    if ring.heads > 1:
        return emptied(index)
    return index if index.total is None else dataclasses.replace(index, total=index.total & 0)


def emptied(index: StartIndex) -> StartIndex:
    """No start, and no mark either."""
    total = None if index.total is None else index.total & 0
    return StartIndex(mark_tree.cleared(index.tree), total)


def total(index: StartIndex, ring: Ring) -> jax.Array:
    """How many starts there are. int32 scalar."""
    return _ring.count(ring) - ring.removed if index.total is None else index.total


def draw(
    index: StartIndex, ring: Ring, key: jax.Array, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draw starts, each alike.

    A slot is drawn first, and if that is no start, one by its rank: either way each is as likely as
    any other. Most slots are starts as a rule, and so most draws end with the first look, at a
    single word; down the tree it is one a level. Where all slots are starts, the rank is the slot.

    Returns:
        int32 `[B]` slots, in range even where there is no start, and whether there is one.
    """
    count = total(index, ring)
    if _all_at_first(index, ring):
        ranks = _bits.ranks(key, batch_size, count)
        return select(index, ring, ranks), ranks < count
    key = _order.key_after(key, count < 0)
    bits = jax.random.bits(key, (2, 2, batch_size), jnp.uint32)
    ranks = _bits.below(bits[1], count)
    slots = _bits.below(bits[0], _ring.filled(ring))
    return mark_tree.select_unless(index.tree, slots, ranks), ranks < count


def select(index: StartIndex, ring: Ring, ranks: jax.Array) -> jax.Array:
    """The starts of given ranks: int32 `[B]` slots, in range even where there is none."""
    if not _all_at_first(index, ring):
        return mark_tree.select(index.tree, ranks)

    def unless_all(tree: MarkTree, removed: jax.Array, ranks: jax.Array) -> jax.Array:
        return lax.cond(removed == 0, lambda: ranks, lambda: mark_tree.select(tree, ranks))

    def always(tree: MarkTree, removed: jax.Array, ranks: jax.Array) -> jax.Array:
        return mark_tree.select(tree, ranks)

    # On a GPU a branch waits for the host, which takes longer than to look a rank up.
    return lax.platform_dependent(index.tree, ring.removed, ranks, cpu=unless_all, default=always)


def _all_at_first(index: StartIndex, ring: Ring) -> bool:
    """Whether all slots there are are starts, unless rows have been removed."""
    return index.total is None and ring.heads == 1


def _sum(counts: jax.Array) -> jax.Array:
    return jnp.sum(counts, dtype=jnp.int32)  # with 64-bit types on, it would be int64
