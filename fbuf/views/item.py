"""The item view: each drawn row as it was added."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fbuf import _rows, _storage
from fbuf._state import State
from fbuf.views._protocol import Reading


@dataclasses.dataclass(frozen=True)
class Item:
    """Return each drawn row as it was added: `data` has the item's tree, leaves `[B, ...]`.

    Example:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.full(1, 7.0))
        >>> fbuf.sample(state, jax.random.key(0), 2, view=fbuf.Item()).data
        Array([7., 7.], dtype=float32)
    """

    def read(self, state: State[Any], slots: jax.Array) -> Reading:
        """Gather the rows."""
        return Reading(
            data=_storage.read(state.storage, slots),
            flags=_rows.read(state.ring.flags, slots),
        )
