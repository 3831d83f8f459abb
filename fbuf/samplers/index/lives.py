"""Which starts may still be drawn, with their draw counts and policy versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.samplers.index import start_index, starts, versions
from fbuf.samplers.index.start_index import Change, StartIndex
from fbuf.samplers.index.versions import Versions
from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.xla.filled import zeros
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import tie


@pytree
class Lives:
    """The rows that may still be drawn.

    Attributes:
        live: The starts that have not been retired.
        uses: int32 `[N]`; how often each row was drawn; None if nothing is counted.
        versions: The versions of the rows; None without a field for it.
        lanes: The number of lanes of the buffer; static.
    """

    live: StartIndex
    uses: jax.Array | None
    versions: Versions | None
    lanes: int = dataclasses.field(metadata={"static": True})


def empty(ring: Ring, has_uses: bool, has_versions: bool) -> Lives:
    """Return the lives of no rows."""
    return Lives(
        live=StartIndex(bit_tree.empty(ring.capacity), zeros((), np.int32)),
        uses=zeros(ring.capacity, np.int32) if has_uses else None,
        versions=versions.empty(ring) if has_versions else None,
        lanes=ring.lanes,
    )


def add(
    lives: Lives, ring: Ring, span: Span, window: Window, of_new: jax.Array | None
) -> tuple[Lives, Change]:
    """Begin the lives of the new rows; `of_new` is their versions."""
    live, change = start_index.add(lives.live, ring, span, window)
    uses, of_rows = lives.uses, lives.versions
    # The bits of live rows depend on all earlier reads of uses and versions.
    slots = tie(span.slots, change.evicted)
    if uses is not None:
        uses = write_rows(uses, slots, jnp.zeros_like(slots))
    if of_rows is not None and of_new is not None:
        of_rows = versions.write(of_rows, slots, of_new)
    return dataclasses.replace(lives, live=live, uses=uses, versions=of_rows), change


def remove(lives: Lives, ring: Ring, slots: jax.Array, window: Window) -> Lives:
    """End the lives of all windows with these rows."""
    live, _ = start_index.remove(lives.live, ring, slots, window)
    return dataclasses.replace(lives, live=live)


def retire(lives: Lives, ring: Ring, slots: jax.Array) -> tuple[Lives, jax.Array]:
    """End the lives of starts whose rows stay.

    Args:
        lives: The lives.
        ring: The ring.
        slots: int32 `[B]`, `capacity` for none; none twice, and some may be retired already.

    Returns:
        The lives, and the slots of those that were live until now, `capacity` for others.
    """
    gone = (slots < ring.capacity) & bit_tree.read(lives.live.tree, ring.clamp(slots))
    slots = tie(jnp.where(gone, slots, ring.capacity), gone)
    return dataclasses.replace(lives, live=start_index.retire(lives.live, ring, slots)), slots


def may_be_drawn(lives: Lives, slots: jax.Array) -> jax.Array:
    """Return whether starts are live and new enough: bool `[B]`."""
    live = bit_tree.read(lives.live.tree, slots)
    return live if lives.versions is None else live & versions.may_be_drawn(lives.versions, slots)


def stale(lives: Lives, ring: Ring, slots: jax.Array) -> jax.Array:
    """Return the slots whose version is too low, `capacity` for others."""
    assert lives.versions is not None
    is_stale = ~versions.may_be_drawn(lives.versions, ring.clamp(slots))
    return jnp.where(is_stale, slots, ring.capacity)


def used(lives: Lives, slots: jax.Array, drawn: jax.Array) -> Lives:
    """Count draws: bool `[B]` whether each was one."""
    assert lives.uses is not None
    uses = lives.uses.at[slots].add(drawn.astype(jnp.int32), mode="promise_in_bounds")
    return dataclasses.replace(lives, uses=uses)


def taken_over(lives: Lives, slots: jax.Array, old: Lives, old_slots: jax.Array) -> Lives:
    """Return the lives with the uses of rows that came from another buffer."""
    if lives.uses is None or old.uses is None:
        return lives
    uses = write_rows(lives.uses, slots, read_rows(old.uses, old_slots))
    return dataclasses.replace(lives, uses=uses)


def with_lowest(lives: Lives, old: Lives) -> Lives:
    """Return the lives with the lowest version of another buffer, unless theirs is higher."""
    assert lives.versions is not None
    assert old.versions is not None
    return dataclasses.replace(lives, versions=versions.raised(lives.versions, old.versions.lowest))


def moved_starts(
    ring: Ring, slots: jax.Array, window: Window, old: Lives, old_slots: jax.Array
) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
    """Yield moved starts: their slots, whether each is there, and their slots in the other buffer.

    A start is live once the last row of its window has come, so the starts of earlier rows are
    looked at, too.
    """
    for earlier, start, there in starts.of_moved_rows(ring, slots, window):
        yield start, there, (old_slots - earlier * old.lanes) % old.live.tree.capacity


def is_retired(lives: Lives, slots: jax.Array) -> jax.Array:
    """Return whether slots in range are no live starts: bool `[B]`."""
    return ~bit_tree.read(lives.live.tree, slots)
