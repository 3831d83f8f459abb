"""Buffers with the methods of brax's, for its trainers and those of MuJoCo Playground."""

from __future__ import annotations

import abc
from typing import Any, Generic, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.adapter_api import Sampler, check, register_with_flax
from fbuf_adapters.brax._state import ReplayBufferState

Drawn = TypeVar("Drawn")
"""The batch of `sample`."""


class ReplayBuffer(abc.ABC, Generic[Drawn]):
    """The common methods of all buffers of this package, as in brax.

    The object holds sizes alone; all rows are in the state. So one object serves any number of
    states, and its methods work under `jit`, `scan`, `vmap`, `pmap` and brax's `PmapWrapper` and
    `PjitWrapper`. Inside `jit` rows are written in place, if the outermost `jit` or `pmap` donates
    the state. Outside, `insert` copies the buffer first, because brax's states stay good after it.

    Args:
        max_replay_size: The number of rows to keep, at least 1. In a full buffer the next row
            replaces the oldest one.
        dummy_data_sample: One row: any pytree of arrays and numbers. Only shapes and dtypes are
            read. Each leaf keeps its dtype; brax casts all leaves of a row to one.
        sample_batch_size: The number of rows that `sample` returns, at least 1.

    Raises:
        ValueError: If a size is out of range.
        TypeError: If a size is not an int, or if a leaf cannot be stored as it is.
    """

    _sampler: Sampler

    def __init__(
        self, max_replay_size: int, dummy_data_sample: Any, sample_batch_size: int
    ) -> None:
        name = type(self).__name__
        self._size = check.integer(name, "max_replay_size", max_replay_size)
        self._batch_size = check.integer(name, "sample_batch_size", sample_batch_size)
        self._row = dummy_data_sample

    def init(self, key: jax.Array) -> ReplayBufferState:
        """Return an empty buffer that draws by this key. All memory is allocated here."""
        key = jnp.copy(key)  # a donated state must not delete the caller's key
        register_with_flax(ReplayBufferState)
        buffer = fbuf.init(self._row, self._size, sampler=self._sampler)
        return ReplayBufferState(buffer, jnp.int32(0), key)

    def insert(self, buffer_state: ReplayBufferState, samples: Any) -> ReplayBufferState:
        """Write rows after the newest one.

        Args:
            buffer_state: The state; it stays good.
            samples: The rows: the tree of `dummy_data_sample`, leaves `[B, ...]`, B at least 1 and
                at most `max_replay_size`. Dtypes are those of `dummy_data_sample`; none is cast.

        Returns:
            The state with the rows in it.

        Raises:
            ValueError: When traced, if there are too many rows, or a shape or the tree differs.
            TypeError: When traced, if a dtype differs.

        Cost: O(B), and O(N) for a copy outside `jit`.
        """
        self.check_can_insert(buffer_state, samples, 1)
        return self.insert_internal(buffer_state, samples)

    def sample(self, buffer_state: ReplayBufferState) -> tuple[ReplayBufferState, Drawn]:
        """Read the next batch.

        Args:
            buffer_state: The state; it stays good.

        Returns:
            The state for the next call, and the batch; see the class. Inside `jit` the rows that
            are missing are zeros: look at `size` first.

        Raises:
            ValueError: Outside `jit`, if there are too few rows. The check waits for the device.
        """
        self.check_can_sample(buffer_state, 1)
        return self.sample_internal(buffer_state)

    def check_can_insert(self, buffer_state: ReplayBufferState, samples: Any, shards: int) -> None:
        """Refuse more rows than a shard holds."""
        rows = self._count(samples) // shards
        if rows > self._size:
            raise ValueError(
                f"{type(self).__name__}.insert: Trying to insert a batch of samples larger than "
                f"the maximum replay size. num_samples: {rows}, max replay size {self._size}; "
                "insert fewer at a time, or make the buffer larger"
            )

    def check_can_sample(self, buffer_state: ReplayBufferState, shards: int) -> None:
        """Refuse a buffer with too few rows for a batch, unless the state is traced."""
        sizes = buffer_state.per_buffer(self.size)
        if isinstance(sizes, jax.core.Tracer) or not sizes.is_fully_addressable:
            return
        least = self._least()
        if np.min(sizes) < least:
            raise ValueError(
                f"{type(self).__name__}.sample: Trying to sample {self._batch_size * shards} "
                f"elements, but only {np.sum(sizes)} available. Insert more first"
            )

    def size(self, buffer_state: ReplayBufferState) -> jax.Array:
        """Count the rows that `sample` can return. int32 scalar."""
        return fbuf.size(buffer_state.buffer)

    def insert_internal(self, buffer_state: ReplayBufferState, samples: Any) -> ReplayBufferState:
        """Write rows as `insert` does, without its check."""
        self._count(samples)
        buffer = self._buffer(buffer_state, "insert")
        return buffer_state.replace(buffer=fbuf.add(buffer, samples, donate=False))

    @abc.abstractmethod
    def sample_internal(self, buffer_state: ReplayBufferState) -> tuple[ReplayBufferState, Drawn]:
        """Read a batch as `sample` does, without its check."""

    def _count(self, samples: Any) -> int:
        """Return the number of rows; refuse one row without an axis for the batch."""
        one, batch = (
            jnp.shape((jax.tree.leaves(tree) or [0.0])[0]) for tree in (self._row, samples)
        )
        if len(batch) <= len(one):
            raise ValueError(
                f"{type(self).__name__}.insert: samples must be a batch, leaves [B, ...]; its "
                f"first leaf has shape {batch}, and that of a row {one}; give one row as x[None]"
            )
        return batch[0]

    def _buffer(self, buffer_state: ReplayBufferState, method: str) -> fbuf.State[Any]:
        """Return the rows of a state; refuse those of a buffer of another size."""
        buffer = buffer_state.buffer
        if getattr(buffer, "capacity", None) != self._size:
            raise ValueError(
                f"{type(self).__name__}.{method}: buffer_state.buffer has another shape, {buffer}, "
                f"than the {self._size} rows of this object; give a state that its init made"
            )
        return buffer

    def _least(self) -> int:
        """Return the number of stored rows that a batch needs."""
        return 1


ReplayBuffer.__module__ = "fbuf_adapters.brax"  # its public module
