"""Loops over the entries of a batch: what makes them fast where XLA runs them on a CPU.

There a `fori_loop` whose body touches little is one kernel, and runs in the thread that comes to
it. Two things have to be seen to:

- XLA runs whatever is ready. Where more than eight things are, it wakes other threads, which takes
  longer than all of the work. The counter and the results of a loop, if they begin as constants,
  are ready from the first. So they begin as something that is known only once the batch is.
- In a loop that works on each row it reads, a core waits for the rows one by one. Those of a large
  array are therefore looked at beforehand, in a loop so short that many are under way at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.tie import tie

_CACHED = 2**20
"""Bytes of an array that can be taken to lie in a core's own cache."""

_UNROLLED = 4
"""Rows that are looked at in one turn."""


@jax.custom_batching.custom_vmap
def zero_after(batch: jax.Array) -> jax.Array:
    """0, known only once a batch is: int32, of at least one entry, all above -2**31."""
    return (batch.reshape(-1)[0] == jnp.iinfo(jnp.int32).min).astype(jnp.int32)


@zero_after.def_vmap
def _(size: int, batched: list[bool], batch: jax.Array) -> tuple[jax.Array, bool]:
    # One for all: with a counter for each, a loop would have to end for each by itself.
    return zero_after(batch), False


def blank(zero: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """An array for a loop to write its results to, known only once `zero` is."""
    return jnp.full(shape, zero.astype(dtype))


def is_large(size: int, dtype: jnp.dtype) -> bool:
    """Whether so many numbers are more than a core's own cache has room for."""
    return size * dtype.itemsize > _CACHED


def fetched(array: jax.Array, rows: jax.Array, batch: jax.Array) -> jax.Array:
    """`batch`, known only once rows of an array, int32 `[B]`, have been brought into the cache."""
    unrolled = min(_UNROLLED, rows.shape[0])
    turns = rows.shape[0] // unrolled  # the rows that are left over are not looked at

    def body(i: jax.Array, seen: jax.Array) -> jax.Array:
        for part in range(unrolled):
            at = (rows[i + part * turns], *(0,) * (array.ndim - 1))
            at = tuple(jnp.asarray(index, jnp.int32) for index in at)
            sizes = (1,) * array.ndim
            number = lax.dynamic_slice(array, at, sizes, allow_negative_indices=False)
            seen |= (number.reshape(()) == 1).astype(jnp.int32)  # something that needs the number
        return seen

    zero = zero_after(rows)
    return tie(batch, lax.fori_loop(zero, turns, body, zero))
