"""Masks over the first axes of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage import words
from fbuf.xla.platform import by_platform
from fbuf.xla.varying import varying


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


def zeroed(mask: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Return arrays with zeros where a mask over their first axes is False.

    On CPU the arrays are gone over only if something is False, in a loop of at most one turn. The
    loop is the one use of gathered rows, so XLA gathers them in their own dtypes. With another use
    beside it, XLA would gather them as they lie, and convert them in a second pass.

    Args:
        mask: bool; shaped like the first axes of each array.
        leaves: Any arrays.
    """

    def everywhere(mask: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        return [select(mask, leaf) for leaf in leaves]

    def if_any(mask: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        some = ~jnp.all(mask)
        begin = varying((jnp.bool_(True), leaves), mask)
        turn = lambda carry: (varying(jnp.bool_(False), mask), everywhere(mask, carry[1]))
        return lax.while_loop(lambda carry: carry[0] & some, turn, begin)[1]

    return by_platform(mask, list(leaves), cpu=if_any, default=everywhere)
