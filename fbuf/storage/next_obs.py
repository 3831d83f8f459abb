"""Next observations: read from the following row, or kept aside if that row does not hold them.

The observation after a step is the observation of the following row. To store it twice would double
the memory. After the last row of an episode, and after the newest row, there is no such row. A
separate store keeps their next observations: a row for each lane, and a ring for ends of episodes.
Where each lane has a head of its own, it has a ring of its own, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf._pytree import pytree
from fbuf.storage import store
from fbuf.storage.deferred import DeferredStorage
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.masks import select
from fbuf.storage.ring import ENDS, Ring, Span
from fbuf.storage.store import Storage
from fbuf.xla.filled import filled, zeros
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import tie

_ROUNDING = 2**-8
"""Relative distance of two numbers that are equal in bfloat16."""

_BESIDE_OTHERS = 2**-20
"""Distance of two numbers that are computed from much larger ones, over the largest of a row."""

_SMALLEST = 2**-24
"""Largest distance of two numbers near 0 that are equal in float16."""

_WHOLE = 1024
"""Largest leaf of which all numbers are compared."""

_COMPARED = 256
"""Numbers to compare of a larger leaf: comparing whole images costs as much as storing them."""


@pytree
class Where:
    """The places of the next observations of rows; all `[B]`.

    Attributes:
        aside: bool; True if the next observation is kept aside, False if it lies in the following
            row.
        kept: int32; the place in the store, in range for all rows.
        known: bool; whether the next observation is known.
    """

    aside: jax.Array
    kept: jax.Array
    known: jax.Array

    def either(self, kept: Any, following: Any) -> Any:
        """Merge two trees, leaves `[B, ...]`: kept observations, and those of following rows."""
        return jax.tree.map(lambda *pair: select(self.aside, *pair), kept, following)


@pytree
class NextObs:
    """The next observations of the newest rows and of the last rows of episodes.

    Attributes:
        rows: `lanes + ends` rows of the field. First one for the newest row of each lane, unless
            that row ended an episode; then one for each end.
        owner: int32 `[lanes + ends]`; the slot of the row that owns each entry, -1 for a free
            entry.
        kept_at: int32 `[capacity]`; the index into `rows` of this row's final observation, or -1;
            valid while `owner` there is this slot.
        cursor: int32 `[2, heads]`; the place of the next end in the ring of a head, and the laps of
            that ring, modulo 2**32. A `clear` does not reset it.
        field: The name of the field; static.
    """

    rows: Storage[Any]
    owner: jax.Array
    kept_at: jax.Array
    cursor: jax.Array
    field: str = dataclasses.field(metadata={"static": True})

    def add(
        self,
        ring: Ring,
        span: Span,
        flags: jax.Array,
        next_observation: Any,
        known: jax.Array | None = None,
        observation: Any = None,
    ) -> tuple[NextObs, jax.Array]:
        """Keep the next observations of new rows that no following row will hold.

        Args:
            ring: The ring with the rows in it.
            span: Their slots.
            flags: uint8 `[B]`; the flags of the rows, as the caller gave them.
            next_observation: Leaves `[B, ...]`.
            known: bool `[B]`; the rows whose next observation is known. None is all.
            observation: Leaves `[B, ...]`; the field in the new rows, to be compared with the next
                observations of the rows before. None compares nothing.

        Returns:
            The new state, and the fault bits of each row.
        """
        rows: Any = self.rows
        broken = jnp.zeros_like(span.drawable)
        if observation is not None:
            place = self._row_before(ring, span, flags)
            if isinstance(rows, DeferredStorage):
                rows = rows.compared(place)
            else:
                broken = self._differs(ring.lanes, place, observation, next_observation)
        inside = ring.clamp(span.slots)
        ends = span.drawable & (flags & ENDS > 0)
        newest = (span.slots < ring.capacity) & (ring.newer(inside) == 0) & ~ends
        if known is not None:
            ends &= known
        # The slots alone do not tie: with one lane, no place is computed from them.
        write = lambda where: rows.write(tie(where, broken), next_observation)
        kept, lost = self._keep(ring, tie(span.slots, broken), ends, newest, write)
        return kept, lost | bits_where(broken, Fault.BROKEN_EPISODE)

    def end(self, ring: Ring, slots: jax.Array) -> tuple[NextObs, jax.Array]:
        """Keep the next observation of the newest row of each lane, which now ends an episode.

        Args:
            ring: The ring.
            slots: int32 `[lanes]`; the slots of these rows, `capacity` for lanes that do not end.

        Returns:
            The new state, and the fault bits of each lane.
        """
        # Computed from the slots, to have their type inside `shard_map`, see `fbuf.xla.varying`.
        given = jnp.arange(ring.lanes, dtype=jnp.int32) + (slots & 0)
        ends = slots < ring.capacity
        copy = lambda where: self.rows.copy(given, where)
        return self._keep(ring, slots, ends, jnp.zeros_like(ends), copy)

    def cleared(self) -> NextObs:
        """Return the store without any entry. O(ends)."""
        return dataclasses.replace(self, owner=jnp.minimum(self.owner, -1))

    def read(
        self, storage: Storage[Any], ring: Ring, slots: jax.Array, flags: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Read the next observations of rows.

        Args:
            storage: The rows.
            ring: The ring.
            slots: int32 `[B]`; the slots of the rows.
            flags: uint8 `[B]`; the flags of the rows.

        Returns:
            The field, leaves `[B, ...]`, and bool `[B]`: whether the next observation is known.
        """
        where = self.find(ring, slots, flags)
        leaves, tree = jax.tree.flatten(storage.layout.find("sample", "next_of", self.field))
        following = tree.unflatten(storage.read_leaves(ring.later(slots, 1), leaves))
        return where.either(self.rows.read(where.kept), following), where.known

    def find(self, ring: Ring, slots: jax.Array, flags: jax.Array) -> Where:
        """Find the next observations of rows at `[B]` slots with these flags."""
        ended = flags & ENDS > 0
        newest = ring.newer(slots) == 0
        kept_at = read_rows(self.kept_at, slots)
        inside = jnp.maximum(kept_at, 0)
        return Where(
            aside=ended | newest,
            kept=jnp.where(ended, inside, slots % ring.lanes),
            known=~ended | ((kept_at >= 0) & (read_rows(self.owner, inside) == slots)),
        )

    def _row_before(self, ring: Ring, span: Span, flags: jax.Array) -> jax.Array:
        """Find the next observation of the row before each new row.

        Returns:
            int32 `[B]`: a place in the store if below `lanes`, otherwise `lanes` plus a place in
            the batch. It is -1 where no row, or another episode, comes before.
        """
        lanes, slots = ring.lanes, span.slots
        there = slots < ring.capacity
        lane = slots % lanes
        # If intermediate rows were dropped, the first kept row follows no stored row.
        whole = (span.count <= ring.head_capacity).reshape(-1)[lane % ring.heads]
        one_earlier = ring.later(ring.clamp(slots), -1)
        # No window continues behind a removed row.
        follows = whole & (read_rows(self.owner, lane) == one_earlier)
        follows &= ~ring.is_removed(one_earlier)
        place = jnp.where(there, lane, 0)
        if slots.shape[0] > lanes:
            before = _last_before(there.reshape(-1, lanes)).reshape(-1)
            inside = jnp.maximum(before, 0)
            is_open = span.drawable & (flags & ENDS == 0)
            follows = jnp.where(before < 0, follows, is_open[inside])
            place = jnp.where(before < 0, place, lanes + inside)
        return jnp.where(follows & span.drawable, place, -1)

    def _differs(
        self, lanes: int, place: jax.Array, observation: Any, next_observation: Any
    ) -> jax.Array:
        """Find rows whose observation is not the next one of the row before, `[B]`: `_row_before`.

        `_COMPARED` numbers of a large leaf are compared.
        """
        kept = self.rows.read(jnp.arange(lanes, dtype=jnp.int32))
        differs = place < -1
        for new, old, led_to in zip(
            *map(jax.tree.leaves, (observation, kept, next_observation)), strict=True
        ):
            new, old, led_to = map(some_numbers, (new, old, led_to))
            if place.shape[0] > lanes:
                old = jnp.concatenate([old, led_to])
            expected = old[jnp.maximum(place, 0)]
            differs |= ~alike(new, expected).all(axis=1)
        return differs & (place >= 0)

    def _keep(
        self,
        ring: Ring,
        slots: jax.Array,
        ends: jax.Array,
        newest: jax.Array,
        write: Callable[[jax.Array], Storage[Any]],
    ) -> tuple[NextObs, jax.Array]:
        """Keep the next observations of rows that end an episode, or are the newest of a lane.

        `write` is called with the places, int32 `[B]`.
        """
        lanes, heads = ring.lanes, ring.heads
        nowhere = self.owner.shape[0]
        room = (nowhere - lanes) // heads
        running = jnp.cumsum(ends.reshape(-1, heads), axis=0, dtype=jnp.uint32)
        rank, count = running - 1, running[-1]
        kept = ends & (count[None] - rank <= room).reshape(-1)
        cursor, lap = self.cursor.astype(jnp.uint32)
        end = cursor + count
        first = lanes + room * jnp.arange(heads, dtype=jnp.int32)[None]
        where = first + ((cursor[None] + rank) % jnp.uint32(room)).astype(jnp.int32)
        where = jnp.where(kept, where.reshape(-1), nowhere)
        before = read_rows(self.owner, jnp.minimum(where, nowhere - 1))
        # The lane's own place belongs to its newest row, unless the row ended an episode.
        last = newest | (ends & (ring.newer(ring.clamp(slots)) == 0))
        places = jnp.concatenate([tie(where, before), jnp.where(last, slots % lanes, nowhere)])
        owner = write_rows(
            self.owner, places, jnp.concatenate([slots, jnp.where(newest, slots, -1)])
        )
        kept_at = write_rows(self.kept_at, slots, jnp.where(kept, where, -1))
        # The place belonged to another row, which is still stored and points here.
        looks = kept_at.at[jnp.maximum(before, 0)].get(mode="promise_in_bounds") == where
        there = ring.holds(before) & ~ring.is_removed(jnp.maximum(before, 0))
        robbed = kept & (before >= 0) & (before != slots) & looks & there
        own = jnp.where(newest, slots % lanes, where)
        return (
            dataclasses.replace(
                self,
                rows=write(own),
                owner=owner,
                kept_at=kept_at,
                cursor=jnp.stack([end % room, lap + end // room]).astype(jnp.int32),
            ),
            bits_where(robbed | (ends & ~kept), Fault.LOST_NEXT),
        )


def empty(storage: Storage[Any], ring: Ring, field: str, ends: int) -> NextObs:
    """Return an empty store with room for `ends` ends, rounded up to equally many for each head."""
    ends = -(-ends // ring.heads) * ring.heads
    return NextObs(
        rows=store.empty(_observation(storage, field), ring.lanes + ends),
        owner=filled(ring.lanes + ends, -1, np.int32),
        kept_at=zeros(ring.capacity, np.int32),
        cursor=zeros((2, ring.heads), np.int32),
        field=field,
    )


def of_one_end(storage: Storage[Any], field: str) -> Any:
    """Return the data kept for an end of an episode: a tree of `jax.ShapeDtypeStruct`."""
    return _observation(storage, field), jax.ShapeDtypeStruct((), jnp.int32)


def _last_before(there: jax.Array) -> jax.Array:
    """Find the row of a batch before each row in its lane, -1 without one: int32 `[T, lanes]`.

    `there` is a mask of the written rows.
    """
    number = jnp.arange(there.size, dtype=jnp.int32).reshape(there.shape)
    newest = lax.cummax(jnp.where(there, number, -1), axis=0)
    return jnp.concatenate([jnp.full_like(newest[:1], -1), newest[:-1]])


def alike(one: Any, other: Any) -> Any:
    """Return whether numbers of rows `[B, n]` are equal, or differ by a rounding: bool `[B, n]`.

    NaN is equal to NaN.
    """
    same = (one == other) | ((one != one) & (other != other))
    if not jnp.issubdtype(one.dtype, jnp.floating) or not one.size:
        return same
    if one.dtype.itemsize < 4:
        one, other = one.astype(np.float32), other.astype(np.float32)
    size = abs(other)
    finite = size <= np.finfo(size.dtype).max  # False for NaN, too
    where = np.where if isinstance(size, np.ndarray) else jnp.where
    of_row = where(finite, size, 0).max(axis=1, keepdims=True)
    near = abs(one - other) <= _ROUNDING * size + _BESIDE_OTHERS * of_row + _SMALLEST
    return same | (near & finite)


def some_numbers(leaf: Any) -> Any:
    """Return some numbers of each row of `[B, ...]`, or all if there are few: `[B, most]`."""
    flat = leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))
    picked = _picked(flat.shape[1])
    return flat if picked is None else flat[:, picked]


@functools.cache
def _picked(size: int) -> np.ndarray[Any, Any] | None:
    """Choose the numbers of a leaf of this size to compare; None is all of them.

    The choice has no pattern, so the numbers fall into all rows, columns and channels of an image.
    """
    if size <= _WHOLE:
        return None
    chosen = np.random.default_rng(0).choice(size, _COMPARED, replace=False)
    return np.sort(chosen).astype(np.int32)


def _observation(storage: Storage[Any], field: str) -> Any:
    leaves, tree = jax.tree.flatten(storage.layout.find("init", "next_of", field))
    return jax.tree.unflatten(tree, [storage.layout.fields[leaf].spec for leaf in leaves])
