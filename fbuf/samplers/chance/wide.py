"""Counts of two words: the number of rows of all shards together may pass 2**31.

JAX has no 64-bit integers by default. So a count is two uint32, the high word and the low one. The
few operations that draws need are written out here.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.chance.random_bits import high_word

_SHORT = 16
"""Bits of half a word."""

_FEW = 256
"""The most ends to compare with each number: for as few, a binary search takes longer."""


class Wide(NamedTuple):
    """Unsigned integers of 64 bits, as two uint32 arrays of one shape."""

    high: jax.Array
    low: jax.Array


def running_sums(counts: jax.Array) -> Wide:
    """Return the running sums of int32 `[S]` counts, each at least 0; S is at most 2**16."""
    words = counts.astype(jnp.uint32)
    # Sums of half words: neither passes a word.
    low = jnp.cumsum(words & 0xFFFF, dtype=jnp.uint32)
    return of_halves(jnp.cumsum(words >> _SHORT, dtype=jnp.uint32), low)


def of_halves(high: jax.Array, low: jax.Array) -> Wide:
    """Return `high * 2**16 + low`, of uint32 arrays."""
    carry, whole = _add(low, high << _SHORT)
    return Wide((high >> _SHORT) + carry, whole)


def of_shares(shares: jax.Array) -> Wide:
    """Return float32 shares, each from 0 to 1, times 2**56: exact for shares of at least 2**-32."""
    scaled = shares * 2.0**24  # of a float32, no more than 24 bits lie before and behind the point
    high = jnp.floor(scaled)
    return Wide(high.astype(jnp.uint32), ((scaled - high) * 2.0**32).astype(jnp.uint32))


def cumsum(numbers: Wide) -> Wide:
    """Return the running sums of `[S]` numbers, modulo 2**64."""

    def together(one: Wide, other: Wide) -> Wide:
        carry, low = _add(one.low, other.low)
        return Wide(one.high + other.high + carry, low)

    return lax.associative_scan(together, numbers)


def plus(number: Wide, more: jax.Array) -> Wide:
    """Return the sum of a wide number and uint32 numbers, modulo 2**64."""
    carry, low = _add(jnp.broadcast_to(number.low, more.shape), more)
    return Wide(number.high + carry, low)


def below(words: jax.Array, total: Wide) -> Wide:
    """Return integers in `[0, total)`, from 96 random bits each; 0 if `total` is 0.

    They are the upper words of a 96 by 64 bit product. Their probabilities differ from 1 / total by
    less than 2**-94.

    Args:
        words: uint32 `[3, B]`; random, the highest word first.
        total: Scalars, or `[B]` each.

    Returns:
        `[B]` each.
    """
    third, second, first = words
    # Columns of 32 bits, from the lowest; the carry of a column goes into the next one.
    carry1, column1 = _sum(high_word(first, total.low), second * total.low, first * total.high)
    carry2, column2 = _sum(
        high_word(second, total.low),
        high_word(first, total.high),
        third * total.low,
        second * total.high,
        carry1,
    )
    del column1, column2  # they lie below the point
    carry3, low = _sum(
        high_word(third, total.low), high_word(second, total.high), third * total.high, carry2
    )
    return Wide(high_word(third, total.high) + carry3, low)


def first_above(ends: Wide, numbers: Wide) -> jax.Array:
    """Find the first of ascending `[S]` ends above each of `[B]` numbers: int32, S for none."""
    count = ends.low.shape[0]
    if count <= _FEW:
        each = Wide(numbers.high[:, None], numbers.low[:, None])
        return jnp.sum(_up_to(Wide(ends.high[None], ends.low[None]), each), axis=1, dtype=jnp.int32)
    found = jnp.zeros(numbers.low.shape, jnp.int32)
    step = 1 << (count.bit_length() - 1)
    while step:
        further = found + step
        at = jnp.minimum(further, count) - 1
        passed = _up_to(Wide(ends.high[at], ends.low[at]), numbers)
        found = jnp.where((further <= count) & passed, further, found)
        step //= 2
    return found


def minus(numbers: Wide, others: Wide) -> jax.Array:
    """Return `numbers - others`, which must be from 0 to 2**31 - 1: int32."""
    return (numbers.low - others.low).astype(jnp.int32)


def as_float(number: Wide) -> jax.Array:
    """Return the number as float32, rounded."""
    return number.high.astype(jnp.float32) * 2.0**32 + number.low.astype(jnp.float32)


def _up_to(ends: Wide, numbers: Wide) -> jax.Array:
    """Return whether ends are not above numbers."""
    return (ends.high < numbers.high) | ((ends.high == numbers.high) & (ends.low <= numbers.low))


def _add(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the carry of a sum of two words, and the sum."""
    whole = a + b
    return (whole < a).astype(jnp.uint32), whole


def _sum(first: jax.Array, *others: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of carries of a sum of words, and the sum."""
    carries, whole = jnp.zeros_like(first), first
    for other in others:
        carry, whole = _add(whole, other)
        carries += carry
    return carries, whole
