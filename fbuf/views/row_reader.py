"""The source of rows in the buffer itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.state import State
from fbuf.views.episode import CHUNK
from fbuf.views.requests import Ahead


class RowReader:
    """Reads rows from the storage of a buffer, and keeps its reads.

    Attributes:
        reads: The arrays that have been read.
    """

    def __init__(self, state: State[Any], by_words: bool = False) -> None:
        """Read from this buffer; `by_words` is that of `fbuf.xla.rows.read_rows`."""
        self.reads: list[jax.Array] = []
        self._state, self._by_words = state, by_words

    def rows(self, slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
        """See `fbuf.views.requests.Source`."""
        return self._state.storage.read_leaves(slots, leaves, self._by_words)

    def kept(self, slots: jax.Array) -> list[jax.Array]:
        """See `fbuf.views.requests.Source`."""
        assert self._state.next_obs is not None
        found = jax.tree.leaves(self._state.next_obs.rows.read(slots))
        self.reads.extend(found)
        return found

    def steps(self, ahead: Ahead) -> Callable[[jax.Array], jax.Array]:
        """See `fbuf.views.requests.Source`."""
        ring, number = self._state.ring, jnp.arange(CHUNK, dtype=jnp.int32)[None]

        def chunk(first: jax.Array) -> jax.Array:
            slots = ring.later(ring.later(ahead.slots, first)[:, None], number)
            return self._state.storage.read_leaves(slots, [ahead.leaf])[0]

        return chunk

    def record(self, read: jax.Array) -> None:
        """See `fbuf.views.requests.Source`."""
        self.reads.append(read)
