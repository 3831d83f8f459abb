"""Masks over the first axes of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def select(mask: jax.Array, new: jax.Array, old: jax.Array | None = None) -> jax.Array:
    """Return `new` where a mask over its first axes is True, and `old` elsewhere.

    Args:
        mask: bool; shaped like the first axes of `new`.
        new: Any array.
        old: An array like `new`; None is zeros.
    """
    wide = mask.reshape(*mask.shape, *(1,) * (new.ndim - mask.ndim))
    return jnp.where(wide, new, jnp.zeros_like(new) if old is None else old)
