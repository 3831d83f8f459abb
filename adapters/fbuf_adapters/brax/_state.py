"""The state of the buffers: the rows, the key, and the read position of a queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import fbuf
from fbuf.adapter_api import Holder


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayBufferState:
    """The state of a buffer: one pytree, for `jit`, `scan`, `vmap` and `pmap`.

    Attributes:
        buffer: The rows: a `fbuf.State`, good for every function of `fbuf`.
        sample_position: int32 scalar; how many of the stored rows a `Queue` has handed out, the
            oldest ones. 0 in other buffers.
        key: The random key of the next draw.
    """

    buffer: fbuf.State[Any]
    sample_position: jax.Array
    key: jax.Array

    def replace(self, **changes: Any) -> ReplayBufferState:
        """Return the state with some fields replaced."""
        return dataclasses.replace(self, **changes)

    @property
    def insert_position(self) -> jax.Array:
        """The number of stored rows. int32 scalar, with an axis for each `vmap`."""
        return self.per_buffer(lambda state: fbuf.size(state.buffer))

    @property
    def data(self) -> jax.Array:
        """The rows as brax lays them out: one matrix, oldest first, zeros behind the newest.

        It is a copy for inspection: O(N) time and memory. All leaves of a row lie side by side, in
        one dtype, which rounds large integers; `fbuf.rows(state.buffer)` has them as they are.
        """

        def matrix(state: ReplayBufferState) -> jax.Array:
            rows = fbuf.rows(state.buffer)  # the newest row last, and before the oldest one zeros
            with jax.numpy_dtype_promotion("standard"):  # the dtypes of a row may differ
                flat = jax.vmap(lambda row: ravel_pytree(row)[0])(rows.data)
            return jnp.roll(flat, fbuf.size(state.buffer), axis=0)

        return self.per_buffer(matrix)

    def per_buffer(self, function: Callable[[ReplayBufferState], jax.Array]) -> jax.Array:
        """Return the results of a function for each of the buffers under `vmap` or `pmap`."""
        for _ in range(jnp.ndim(self.sample_position)):
            function = jax.vmap(function)
        return function(self)


Holder.register(ReplayBufferState, lambda state, _: state.buffer)
ReplayBufferState.__module__ = "fbuf_adapters.brax"  # its public module
