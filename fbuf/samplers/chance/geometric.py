"""Geometric random numbers, made a binary digit at a time.

The binary digits of a geometric number are independent. Digit `j` is 1 with probability
`q / (1 + q)`, where `q` is the discount to the power of `2**j`. So a number takes one random word a
digit. A logarithm of one random number would give few large distances, and none beyond some
thousands: float32 has 24 bits.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

LARGEST_DISCOUNT = 1 - 2.0**-26
"""Larger numbers would not fit into int32."""


@functools.cache
def thresholds(discount: float) -> tuple[int, ...]:
    """Return the probability of a 1 for each digit, the lowest digit first, in units of 2**-32.

    Digits whose probability rounds to 0 are left out, except the lowest digit.
    """
    powers = [float(discount) ** 2**digit for digit in range(31)]
    found = [round(power / (1 + power) * 2**32) for power in powers]
    return tuple(found[:1] + [each for each in found[1:] if each])


def geometric(words: jax.Array, discount: float) -> jax.Array:
    """Return geometric numbers: `n` with probability `(1 - discount) * discount ** n`.

    The probability of any set of numbers is right to 2**-28.

    Args:
        words: uint32 `[len(thresholds(discount)), ...]`; random.
        discount: From 0 to `LARGEST_DISCOUNT`; static.

    Returns:
        int32 `[...]`, at least 0.
    """
    number = jnp.zeros(words.shape[1:], jnp.int32)
    for digit, threshold in enumerate(thresholds(discount)):
        is_one = words[digit] < jnp.uint32(threshold)
        number |= is_one.astype(jnp.int32) << digit
    return number
