"""Any row of the buffer: all rows equally likely, whatever the sampler draws.

A place is drawn among all stored ones. If the row there was removed, another place is drawn, so
that all rows that are left stay equally likely. After many turns the rest of the batch is found by
a rank among the rows that are left, in one way through the flags. So any number of rows may have
been removed, and no index is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers import random_bits
from fbuf.storage.ring import REMOVED, Ring

TURNS = 256
"""The most times that places are drawn, before flags are read in order."""

CHUNK = 2**16
"""The flags that a turn reads in order."""

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
        turn, slots, found = carry
        slots = jnp.where(found, slots, draw(turn))
        return turn + 1, slots, found | is_live(slots)

    def goes_on(carry: _Carry) -> jax.Array:
        turn, _, found = carry
        return (turn < TURNS) & (live > 0) & ~found.all()

    slots = draw(0)
    carry = (jnp.int32(1), slots, is_live(slots))
    _, slots, found = lax.while_loop(goes_on, again, carry)
    ranks = random_bits.below(words(TURNS), live)
    return _by_rank(ring, ranks, slots, found | (live == 0))


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
    """Return slots where they are found, and elsewhere the live rows of these ranks."""
    size = min(CHUNK, ring.capacity)
    number = jnp.arange(size, dtype=jnp.uint32)

    def look(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        first, left, slots, found = carry
        # Unsigned, for the sum may pass 2**31.
        at = first + number
        inside = at < ring.capacity
        at = jnp.where(inside, at, 0).astype(jnp.int32)
        live = ring.flags.at[at].get(mode="promise_in_bounds") & REMOVED == 0
        up_to = jnp.cumsum(inside & live & ring.holds(at), dtype=jnp.int32)
        place = jnp.searchsorted(up_to, left, side="right").astype(jnp.uint32)
        here = ~found & (left < up_to[-1])
        slots = jnp.where(here, (first + place).astype(jnp.int32), slots)
        return first + jnp.uint32(size), left - up_to[-1], slots, found | here

    def goes_on(carry: tuple[jax.Array, ...]) -> jax.Array:
        first, _, _, found = carry
        return (first < ring.capacity) & ~found.all()

    return lax.while_loop(goes_on, look, (jnp.uint32(0), ranks, slots, found))[2]
