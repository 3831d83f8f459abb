"""Masks over the first axes of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage import words


def select(mask: jax.Array, new: jax.Array, old: jax.Array | None = None) -> jax.Array:
    """Return `new` where a mask over its first axes is True, and `old` elsewhere.

    Args:
        mask: bool; shaped like the first axes of `new`.
        new: Any array.
        old: An array like `new`; None is zeros.
    """
    old = jnp.zeros_like(new) if old is None else old
    wide = mask.reshape(*mask.shape, *(1,) * (new.ndim - mask.ndim))
    if jnp.issubdtype(new.dtype, jnp.floating) and words.width(new.dtype) in (8, 16):
        # As bits: XLA on CPU would select among float32, and change NaNs.
        bits = words.UNSIGNED[new.dtype.itemsize]
        chosen = jnp.where(wide, *(lax.bitcast_convert_type(of, bits) for of in (new, old)))
        return lax.bitcast_convert_type(chosen, new.dtype)
    return jnp.where(wide, new, old)
