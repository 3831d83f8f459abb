"""A buffer that returns its rows in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import check
from fbuf_adapters.brax._replay_buffer import ReplayBuffer
from fbuf_adapters.brax._state import ReplayBufferState


class Queue(ReplayBuffer[Any]):
    """Hands out rows in the order in which they came, the oldest first.

    It has the arguments and methods of brax's class of this name. A full queue loses its oldest
    rows to new ones, read or not. `fbuf.Fifo` makes buffers that say so.

    Args:
        max_replay_size: As for `UniformSamplingQueue`.
        dummy_data_sample: As for `UniformSamplingQueue`.
        sample_batch_size: The number of rows that `sample` reads, at least 1.
        cyclic: Whether the oldest stored row comes after the newest one, again and again. If not,
            each row is handed out once.

    Raises:
        ValueError: If a size is out of range.
        TypeError: If a size is not an int, if `cyclic` is not a bool, or if a leaf cannot be stored
            as it is.

    Cost: O(B) for `insert` and `sample` inside `jit`. Outside, `insert` copies the buffer.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters.brax import Queue
        >>> queue = Queue(max_replay_size=10, dummy_data_sample=0.0, sample_batch_size=2)
        >>> state = queue.insert(queue.init(jax.random.PRNGKey(0)), jnp.arange(5.0))
        >>> state, batch = queue.sample(state)
        >>> batch, int(queue.size(state))
        (Array([0., 1.], dtype=float32), 3)
    """

    _sampler = fbuf.Uniform()

    def __init__(
        self,
        max_replay_size: int,
        dummy_data_sample: Any,
        sample_batch_size: int,
        cyclic: bool = False,
    ) -> None:
        super().__init__(max_replay_size, dummy_data_sample, sample_batch_size)
        self._cyclic = check.boolean(type(self).__name__, "cyclic", cyclic)

    def size(self, buffer_state: ReplayBufferState) -> jax.Array:
        """Count the rows that `sample` can return. int32 scalar."""
        stored = super().size(buffer_state)
        return stored if self._cyclic else stored - buffer_state.sample_position

    def insert_internal(self, buffer_state: ReplayBufferState, samples: Any) -> ReplayBufferState:
        """Write rows as `insert` does, without its check."""
        new = super().insert_internal(buffer_state, samples)
        lost = self._count(samples) - (new.insert_position - buffer_state.insert_position)
        return new.replace(sample_position=jnp.maximum(0, buffer_state.sample_position - lost))

    def sample_internal(self, buffer_state: ReplayBufferState) -> tuple[ReplayBufferState, Any]:
        """Read a batch as `sample` does, without its check."""
        buffer = self._buffer(buffer_state, "sample")
        ring = buffer.ring
        stored = buffer_state.insert_position
        places = buffer_state.sample_position + jnp.arange(self._batch_size + 1, dtype=jnp.int32)
        if self._cyclic:
            places %= jnp.maximum(stored, 1)
        oldest = jnp.where(stored < ring.capacity, 0, ring.head[0])
        slots = jnp.where(places < stored, ring.later(oldest, places), ring.capacity)
        batch = fbuf.read(buffer, fbuf.ids_at(buffer, slots[:-1]))
        return buffer_state.replace(sample_position=jnp.minimum(places[-1], stored)), batch.data

    def _least(self) -> int:
        return self._batch_size


Queue.__module__ = "fbuf_adapters.brax"  # its public module
