"""Sums along time, backwards from the last step: the form of all targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def backward(own: jax.Array, kept: jax.Array) -> jax.Array:
    """Return `x[t] = own[t] + kept[t] * x[t + 1]`, along the first axis; behind the last it is 0.

    Where `kept` is 0, the next step does not count, even if it is NaN.

    On CPU a loop over steps is faster than `lax.associative_scan`, and compiles sooner.
    """

    def step(later: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        own, kept = now
        found = jnp.where(kept == 0, own, own + kept * later)
        return found, found

    return lax.scan(step, jnp.zeros_like(own[0]), (own, kept), reverse=True)[1]


def shifted(steps: jax.Array) -> jax.Array:
    """Return the values of the next step, along the first axis; 0 behind the last."""
    return jnp.concatenate([steps[1:], jnp.zeros_like(steps[:1])])
