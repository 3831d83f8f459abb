"""Any row of the buffer: all rows equally likely, whatever the sampler draws.

A place is drawn among all stored ones. If the row there was removed, another place is drawn, so
that all rows that are left stay equally likely. After many turns the remaining rows are counted,
and each open draw takes a rank among them. So any number of rows may have been removed, and no
index is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.chance import random_bits
from fbuf.storage.ring import REMOVED, Ring
from fbuf.views.episode import CHUNK

TURNS = 256
"""The most rounds of draws, before the remaining rows are counted."""

BLOCK = 2**9
"""The slots in a block, whose rows are counted together; a multiple of `CHUNK`."""

_Carry = tuple[jax.Array, jax.Array, jax.Array]


def any_rows(ring: Ring, words: Callable[[jax.Array | int], jax.Array]) -> jax.Array:
    """Draw slots of stored rows that have not been removed, all equally likely.

    O(B) reads of a byte as long as most rows are there. If most have been removed, O(B) for each of
    `TURNS` turns, and then O(capacity) reads of a byte.

    Args:
        ring: The ring.
        words: Returns uint32 `[2, *shape]` random bits of a turn, given its number.

    Returns:
        int32 `[*shape]`. In range, and meaningless, if there is no such row.
    """
    live = ring.live()

    def is_live(slots: jax.Array) -> jax.Array:
        return ring.flags.at[slots].get(mode="promise_in_bounds") & REMOVED == 0

    def draw(turn: jax.Array | int) -> jax.Array:
        return _stored(ring, random_bits.below(words(turn), ring.count()))

    def again(carry: _Carry) -> _Carry:
        turn, slots, done = carry
        slots = jnp.where(done, slots, draw(turn))
        return turn + 1, slots, done | is_live(slots)

    def goes_on(carry: _Carry) -> jax.Array:
        turn, _, done = carry
        return (turn < TURNS) & (live > 0) & ~done.all()

    slots = draw(0)
    if ring.removed is None:
        return slots
    carry = (jnp.int32(1), slots, is_live(slots))
    _, slots, done = lax.while_loop(goes_on, again, carry)
    ranks = random_bits.below(words(TURNS), live)
    done |= live == 0
    return _by_rank(ring, ranks.ravel(), slots.ravel(), done.ravel()).reshape(slots.shape)


def _stored(ring: Ring, ranks: jax.Array) -> jax.Array:
    """Return the slots of stored rows, removed or not, by their rank: in any order, each once."""
    if ring.heads == 1:
        return ranks
    ends = jnp.cumsum(ring.stored, dtype=jnp.int32)
    head = jnp.searchsorted(ends, ranks, side="right").astype(jnp.int32)
    head = jnp.minimum(head, ring.heads - 1)
    offset = ranks - (ends[head] - ring.stored[head])
    return offset * ring.heads + head


def _by_rank(ring: Ring, ranks: jax.Array, slots: jax.Array, found: jax.Array) -> jax.Array:
    """Return the slots of finished draws, and for all others the live rows of `ranks`: int32 `[B]`.

    The rows of each block are counted first, `CHUNK` blocks at a time, for all draws together. Then
    each draw searches the block of its row.
    """
    number = jnp.arange(CHUNK, dtype=jnp.int32)[None]

    def is_live(at: jax.Array) -> jax.Array:
        # Unsigned, as the slots of the last block may pass 2**31.
        inside = at < ring.capacity
        slots = jnp.where(inside, at, 0).astype(jnp.int32)
        flags = ring.flags.at[slots].get(mode="promise_in_bounds")
        return inside & (flags & REMOVED == 0) & ring.holds(slots)

    def count(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        begin, left, first, missing = carry
        inner = jnp.arange(BLOCK, dtype=jnp.int32)[None]
        at = begin + (number.T * BLOCK + inner).astype(jnp.uint32)
        counts = jnp.sum(is_live(at), axis=1, dtype=jnp.int32)
        ends = jnp.cumsum(counts, dtype=jnp.int32)
        block = jnp.sum(ends[None] <= left[:, None], axis=1, dtype=jnp.int32)
        here = missing & (block < CHUNK)
        block = jnp.minimum(block, CHUNK - 1)
        first = jnp.where(here, begin + (block * BLOCK).astype(jnp.uint32), first)
        before = jnp.where(here, ends[block] - counts[block], ends[-1])
        left = jnp.where(missing, left - before, left)
        return begin + jnp.uint32(CHUNK * BLOCK), left, first, missing & ~here

    def go_through(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        step, left, slots, missing = carry
        at = first[:, None] + (step + number).astype(jnp.uint32)
        up_to = jnp.cumsum(is_live(at), axis=1, dtype=jnp.int32)
        place = jnp.sum(up_to <= left[:, None], axis=1, dtype=jnp.int32)
        here = missing & (place < CHUNK)
        slot = (first + (step + place).astype(jnp.uint32)).astype(jnp.int32)
        slots = jnp.where(here, slot, slots)
        return step + CHUNK, left - up_to[:, -1], slots, missing & ~here

    def goes_on(end: int) -> Callable[[tuple[jax.Array, ...]], jax.Array]:
        return lambda carry: (carry[0] < end) & carry[-1].any()

    begin = (jnp.uint32(0), ranks, jnp.zeros_like(ranks, jnp.uint32), ~found)
    _, left, first, _ = lax.while_loop(goes_on(ring.capacity), count, begin)
    within = (jnp.int32(0), left, slots, ~found)
    return lax.while_loop(goes_on(BLOCK), go_through, within)[2]
