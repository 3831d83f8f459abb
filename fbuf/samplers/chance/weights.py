"""Importance weights of a batch."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.samplers.protocol.sampler import Draw
from fbuf.xla.across import largest

_ROOTS: dict[float, Callable[[jax.Array], jax.Array]] = {
    0.0: jnp.ones_like,
    0.5: jnp.sqrt,
    1.0: lambda value: value,
}


def exponent(beta: Array | float) -> jax.Array:
    """Return an exponent of importance weights; 0 for a negative or infinite one, and for NaN."""
    beta = jnp.asarray(beta, jnp.float32)
    # No comparison with infinity: `jax_debug_infs` would report it.
    return jnp.where(beta <= float(jnp.finfo(jnp.float32).max), jnp.maximum(beta, 0), 0)


def power_of_ratio(smallest: jax.Array, value: jax.Array, beta: Array | float) -> jax.Array:
    """Return `(smallest / value) ** beta`; for some static exponents without a logarithm."""
    root = _ROOTS.get(beta) if isinstance(beta, float) else None
    if root is not None:
        return root(smallest) / root(value)
    return jnp.exp(exponent(beta) * (jnp.log(smallest) - jnp.log(value)))


def equal(slots: jax.Array, probability: jax.Array, mask: jax.Array) -> Draw:
    """Return a batch of weights 1."""
    one = mask.astype(jnp.float32)
    return Draw(slots, probability, one, jnp.zeros_like(one), mask)


def of_batch(
    slots: jax.Array,
    probability: jax.Array,
    relative: jax.Array,
    mask: jax.Array,
    power: jax.Array | float,
    axes: tuple[str, ...],
) -> Draw:
    """Return a batch of weights `relative ** -power`, divided by the largest in the batch.

    Args:
        slots: int32 `[B]`.
        probability: float32 `[B]`.
        relative: float32 `[B]`; the probability over that of uniform draws; 1 where masked.
        mask: bool `[B]`.
        power: At least 0.
        axes: The axes of the mesh that the rest of the batch lies along.
    """
    log_weight = -power * jnp.log(relative)
    weight = jnp.where(mask, jnp.exp(log_weight - largest(log_weight.max(), axes)), 0)
    return Draw(slots, jnp.where(mask, probability, 0), weight, log_weight, mask)


def renormalised(log_weight: jax.Array, mask: jax.Array, axes: tuple[str, ...] = ()) -> jax.Array:
    """Return the weights of a batch along `axes`, the largest unmasked one being 1."""
    # No infinity: `jax_debug_infs` would report it.
    none = jnp.finfo(jnp.float32).min
    log_weight = jnp.where(mask, log_weight, none)
    most = largest(log_weight.max(), axes)
    return jnp.exp(log_weight - jnp.where(most > none, most, 0))
