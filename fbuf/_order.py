"""Reading before writing: how to keep XLA from copying whole arrays.

An array is written in place only if XLA can see that all reads of its old content come before the
write. Where nothing that is written depends on what was read, it cannot, and copies the array to
be safe. So the write is made to depend on the read, through a condition that never holds, which
XLA does not know.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def after(value: jax.Array, never: jax.Array) -> jax.Array:
    """`value`, known only once `never` is, which is False."""
    return jnp.where(never, jnp.zeros_like(value), value)


def never(read: jax.Array) -> jax.Array:
    """False for each of `[B]` rows, known only once the rows have been read."""
    if read.size == 0 or jnp.issubdtype(read.dtype, jnp.complexfloating):
        return jnp.zeros(read.shape[0], bool)
    number = read.reshape(read.shape[0], -1)[:, 0].astype(jnp.float32)
    return (number < 1) & (number > 2)


def key_after(key: jax.Array, never: jax.Array) -> jax.Array:
    """A random key, known only once `never` is.

    Not to save a copy: XLA on CPU would make random numbers on a second thread meanwhile, and to
    wake that takes longer than to make them.
    """
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        data = after(jax.random.key_data(key), never)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))
    return after(key, never)
