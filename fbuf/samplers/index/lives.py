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
    """The drawable starts, their draw counts and their policy versions.

    Attributes:
        live: The starts that have not been retired.
        uses: int32 `[N]`; the number of draws of each row; None if draws are not counted.
        versions: The versions of the rows; None without a version field.
        lanes: The number of lanes of the buffer; static.
    """

    live: StartIndex
    uses: jax.Array | None
    versions: Versions | None
    lanes: int = dataclasses.field(metadata={"static": True})


def empty(ring: Ring, has_uses: bool, has_versions: bool) -> Lives:
    """Return an index without starts."""
    return Lives(
        live=StartIndex(bit_tree.empty(ring.capacity), zeros((), np.int32)),
        uses=zeros(ring.capacity, np.int32) if has_uses else None,
        versions=versions.empty(ring) if has_versions else None,
        lanes=ring.lanes,
    )


def add(
    lives: Lives, ring: Ring, span: Span, window: Window, of_new: jax.Array | None
) -> tuple[Lives, Change]:
    """Make the new starts drawable; `of_new` has the versions of the rows."""
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
    """Take out the starts of all windows with these rows."""
    live, _ = start_index.remove(lives.live, ring, slots, window)
    return dataclasses.replace(lives, live=live)


def retire(lives: Lives, ring: Ring, slots: jax.Array) -> tuple[Lives, jax.Array]:
    """Retire starts whose rows stay stored.

    Args:
        lives: The lives.
        ring: The ring.
        slots: int32 `[B]` distinct slots; `capacity` marks an unused entry. Some may be retired
            already.

    Returns:
        The index, and the newly retired slots, with `capacity` in place of all others.
    """
    gone = (slots < ring.capacity) & bit_tree.read(lives.live.tree, ring.clamp(slots))
    slots = tie(jnp.where(gone, slots, ring.capacity), gone)
    return dataclasses.replace(lives, live=start_index.retire(lives.live, ring, slots)), slots


def may_be_drawn(lives: Lives, slots: jax.Array) -> jax.Array:
    """Return whether starts are live and new enough: bool `[B]`."""
    live = bit_tree.read(lives.live.tree, slots)
    return live if lives.versions is None else live & versions.may_be_drawn(lives.versions, slots)


def stale(lives: Lives, ring: Ring, slots: jax.Array) -> jax.Array:
    """Return the slots whose version is too low, with `capacity` in place of all others."""
    assert lives.versions is not None
    is_stale = ~versions.may_be_drawn(lives.versions, ring.clamp(slots))
    return jnp.where(is_stale, slots, ring.capacity)


def used(lives: Lives, slots: jax.Array, drawn: jax.Array) -> Lives:
    """Count the draws of the slots where `drawn`, bool `[B]`, is True."""
    assert lives.uses is not None
    uses = lives.uses.at[slots].add(drawn.astype(jnp.int32), mode="promise_in_bounds")
    return dataclasses.replace(lives, uses=uses)


def taken_over(lives: Lives, slots: jax.Array, old: Lives, old_slots: jax.Array) -> Lives:
    """Return the index with the draw counts of rows that came from another buffer."""
    if lives.uses is None or old.uses is None:
        return lives
    uses = write_rows(lives.uses, slots, read_rows(old.uses, old_slots))
    return dataclasses.replace(lives, uses=uses)


def with_lowest(lives: Lives, old: Lives) -> Lives:
    """Return the index with the higher of two lowest versions: its own and another buffer's."""
    assert lives.versions is not None
    assert old.versions is not None
    return dataclasses.replace(lives, versions=versions.raised(lives.versions, old.versions.lowest))


def moved_starts(
    ring: Ring, slots: jax.Array, window: Window, old: Lives, old_slots: jax.Array
) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
    """Yield the slots of moved starts, a mask of the real ones, and their slots in the old buffer.

    A start is live once the last row of its window has come, so the starts of earlier rows are
    included.
    """
    for earlier, start, there in starts.of_moved_rows(ring, slots, window):
        yield start, there, (old_slots - earlier * old.lanes) % old.live.tree.capacity


def is_retired(lives: Lives, slots: jax.Array) -> jax.Array:
    """Return whether slots in range are retired or no starts: bool `[B]`."""
    return ~bit_tree.read(lives.live.tree, slots)
