"""A keyed permutation of `[0, n)` that is computed for single numbers, and never laid out.

A Feistel network permutes the numbers below the next power of two: half of a number's bits are
changed by a hash of the other half, in turns, which can be undone and so is one to one. What falls
outside of `[0, n)` is sent through again until it falls inside (cycle walking). As fewer than half
of all numbers do, unless `n` is below 32, that takes two turns at most on average.

When `n` grows by one, the walks that went through the new number end there, and all others stay as
they are: of what was permuted so far a single number changes its place.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

ROUNDS = 8


def permute(key: jax.Array, numbers: jax.Array, n: jax.Array) -> jax.Array:
    """Where a random permutation takes numbers.

    Args:
        key: Says which permutation.
        numbers: int32 `[B]`, each in `[0, n)`; others give something in range, and meaningless.
        n: int32 scalar, at least 1.

    Returns:
        int32 `[B]`.
    """
    keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)
    size = n.astype(jnp.uint32)
    # At least six bits: with fewer, not all orders are alike after so many rounds.
    bits = jnp.maximum(32 - lax.clz(size - 1), 6)

    def again(found: jax.Array) -> jax.Array:
        return (found >= size).any()

    def walk(found: jax.Array) -> jax.Array:
        return jnp.where(found >= size, _feistel(keys, found, bits), found)

    first = jnp.minimum(numbers.astype(jnp.uint32), size - 1)
    return lax.while_loop(again, walk, _feistel(keys, first, bits)).astype(jnp.int32)


def _feistel(keys: jax.Array, number: jax.Array, bits: jax.Array) -> jax.Array:
    """A permutation of the numbers of so many bits."""
    low_bits = bits >> 1
    high_bits = bits - low_bits
    for turn in range(ROUNDS):
        # The low part changes the high one, and they change places, widths included.
        low = number & ((jnp.uint32(1) << low_bits) - 1)
        mask = (jnp.uint32(1) << high_bits) - 1
        high = ((number >> low_bits) ^ _hash(low ^ keys[turn])) & mask
        number = (low << high_bits) | high
        low_bits, high_bits = high_bits, low_bits
    return number


def _hash(word: jax.Array) -> jax.Array:
    """Mixes the bits of a word: the finaliser of MurmurHash3."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
