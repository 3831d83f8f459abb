"""Random numbers from random bits, without the bias or the cost of the ready-made ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def uniforms(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Float32 multiples of 2**-24 in `[0, 1)`, all equally likely."""
    bits = jax.random.bits(key, shape, jnp.uint32)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def ranks(key: jax.Array, batch_size: int, total: jax.Array) -> jax.Array:
    """Integers in `[0, total)`, int32 `[batch_size]`; see `below`. The key is consumed."""
    return below(jax.random.bits(key, (2, batch_size), jnp.uint32), total)


def below(bits: jax.Array, total: jax.Array) -> jax.Array:
    """Integers in `[0, total)`, from 64 random bits each; 0 if `total` is 0.

    The high word of a 64 by 32 bit product: the probabilities differ from 1 / total by less than
    2**-64, and there is no division, which is what makes `jax.random.randint` slow on CPU.

    Args:
        bits: uint32 `[2, B]`; random.
        total: int32, at least 0; a scalar, or one for each, `[B]`.

    Returns:
        int32 `[B]`.
    """
    high, low = bits
    n = total.astype(jnp.uint32)
    middle = _high_word(low, n)
    whole = high * n + middle
    carry = (whole < middle).astype(jnp.uint32)
    return (_high_word(high, n) + carry).astype(jnp.int32)


def _high_word(a: jax.Array, b: jax.Array) -> jax.Array:
    """The upper 32 bits of the product of two uint32."""
    a_low, a_high = a & 0xFFFF, a >> 16
    b_low, b_high = b & 0xFFFF, b >> 16
    low, cross, other = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (low >> 16) + (cross & 0xFFFF) + (other & 0xFFFF)
    return a_high * b_high + (cross >> 16) + (other >> 16) + (middle >> 16)
