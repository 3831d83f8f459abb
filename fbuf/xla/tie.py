"""Order: making a read come before a write.

XLA writes an array in place only if it can see that every read of the old content comes first. XLA
sees the order where the written value depends on the read one. Elsewhere XLA copies the whole
array, to be safe. The function `tie` makes a value depend on reads, through a condition that never
holds, which XLA does not know. The page `docs/know/design.md` says where it is used. The
script `benchmarks/evidence/order.py` measures it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.platform import by_platform


def tie(value: jax.Array, *reads: Any) -> jax.Array:
    """Return `value`, known only once all reads have been made.

    Tie the slots of a write, before the write:

        old = index[slots]
        slots = tie(slots, old)
        index = index.at[slots].set(new)

    Args:
        value: An array, or a random key.
        reads: The read arrays, or trees of them, of any shape and dtype.

    Returns:
        The same value.
    """
    arrays = [array for array in jax.tree.leaves(reads) if array.size]
    if not arrays:
        return value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = tie(jax.random.key_data(value), *arrays)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    never = functools.reduce(operator.or_, [_never(array, value.shape[:1]) for array in arrays])
    never = never.reshape(*never.shape, *(1,) * (value.ndim - never.ndim))
    return jnp.where(never, jnp.zeros_like(value), value)


def in_order(value: jax.Array, read: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both; `value` is known only once `read` is, and what uses either waits for both.

    On a GPU a `tie` of a value to an array that is written anew would copy that array.

    Args:
        value: An array.
        read: An array.

    Returns:
        The same arrays.
    """
    return by_platform(
        value,
        read,
        cpu=lambda value, read: (tie(value, read), read),
        default=lambda *both: lax.optimization_barrier(both),
    )


def unfolded(zeros: jax.Array, read: jax.Array) -> jax.Array:
    """Return zeros that XLA takes for unknown: else it computes with them as it compiles.

    Args:
        zeros: The array.
        read: Any array of the program.

    Returns:
        The zeros.
    """
    return jnp.where(_never(read, ()), jnp.ones_like(zeros), zeros)


@jax.custom_batching.custom_vmap
def once(read: Any) -> Any:
    """Return a read of an array, made before the array is written.

    Else XLA would make one kernel of the read and of the write under `vmap` on a GPU. It would copy
    the whole array, to read the old content of one and write the other. Without `vmap` it makes two
    kernels already.

    Args:
        read: Arrays, or trees of them.

    Returns:
        The same.
    """
    return read


@once.def_vmap
def _(size: int, batched: list[Any], read: Any) -> tuple[Any, Any]:
    return lax.optimization_barrier(read), batched[0]


def _never(read: jax.Array, rows: tuple[int, ...]) -> jax.Array:
    """Return False, known only once an array is read: for each of its rows, or for all of it."""
    if jnp.issubdtype(read.dtype, jnp.complexfloating):
        read = read.real
    if read.ndim and read.shape[:1] == rows:
        # One number for each row: on a GPU one number for all would be one more kernel.
        number = read.reshape(read.shape[0], -1)[:, 0]
    else:
        # Not by brackets, which take longer to trace.
        number = lax.slice(read, (0,) * read.ndim, (1,) * read.ndim).reshape(())
    number = lax.convert_element_type(number, jnp.float32)
    below, above = (
        lax.lt(number, lax.full_like(number, 1)),
        lax.gt(number, lax.full_like(number, 2)),
    )
    return lax.bitwise_and(below, above)
