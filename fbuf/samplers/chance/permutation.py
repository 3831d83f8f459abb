"""A keyed permutation of numbers; each image is computed by itself, and none is stored.

A Feistel network permutes the numbers below the next power of two. In turns, a hash of one half of
a number's bits changes the other half. Each turn can be undone, so the network is one to one. An
image that is not among the permuted numbers goes through the network again until it is (cycle
walking). If half of all numbers are permuted, this takes two turns on average.

Adding or removing a number changes the image of one other number.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.chance import random_bits

ROUNDS = 8


def permute(
    key: jax.Array, numbers: jax.Array, n: jax.Array, inside: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Return the images of numbers under a random permutation.

    Args:
        key: The key of the permutation.
        numbers: int32 `[B]`; permuted numbers.
        n: int32 scalar, at least 1; all permuted numbers are in `[0, n)`.
        inside: Returns whether numbers in `[0, n)` are permuted: bool `[B]` for int32 `[B]`.

    Returns:
        int32 `[B]`. O(B) if `inside` holds for a fair part of `[0, n)`.
    """
    keys = random_bits.bits(key, (ROUNDS,))
    size = n.astype(jnp.uint32)
    # At least six bits: with fewer, not all orders are equally likely after `ROUNDS` rounds.
    bits = jnp.maximum(32 - lax.clz(size - 1), 6)

    def outside(found: jax.Array) -> jax.Array:
        there = jnp.minimum(found, size - 1).astype(jnp.int32)
        return (found >= size) | ~inside(there)

    def walk(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, out = carry
        found = jnp.where(out, _feistel(keys, found, bits), found)
        return found, outside(found)

    first = _feistel(keys, numbers.astype(jnp.uint32), bits)
    found, _ = lax.while_loop(lambda carry: carry[1].any(), walk, (first, outside(first)))
    return found.astype(jnp.int32)


def _feistel(keys: jax.Array, number: jax.Array, bits: jax.Array) -> jax.Array:
    """Permute the numbers of `bits` bits."""
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
    """Mix the bits of a word: the finaliser of MurmurHash3."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
