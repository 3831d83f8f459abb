"""Where a writer of steps left a buffer, from one call from Python to the next.

Nothing here waits for the device, unless the caller wants to know now.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.adapter_api import changed_lanes, on_automatic_axes


@jax.jit
def _copied(cursor: jax.Array) -> jax.Array:
    """Return a copy, for the next change of the buffer consumes the cursor."""
    return jnp.copy(cursor)


@functools.partial(jax.jit, static_argnames=("lanes", "shards"))
def _changed(cursor: jax.Array, left: jax.Array, *, lanes: int, shards: int) -> jax.Array:
    return on_automatic_axes(changed_lanes)(cursor, left, lanes, shards)


class LeftOff:
    """The cursor of the ring after a writer's last add."""

    def __init__(self) -> None:
        self._array: jax.Array | None = None
        """The cursor itself: the same array has the same numbers."""
        self._numbers: jax.Array | None = None
        self._asked: tuple[jax.Array | None, Any] = None, None

    def note(self, cursor: jax.Array) -> None:
        """Leave a buffer with this cursor."""
        self._array, self._numbers, self._asked = cursor, _copied(cursor), (None, None)

    def changed(self, cursor: jax.Array, lanes: int, shards: int = 1) -> Any:
        """Return in which lanes others have changed the newest rows since; None is in none.

        Asked before there is time to spare, the answer is there when it is asked for again.

        Args:
            cursor: The cursor now; it must not have been consumed.
            lanes: The number of lanes, of all shards.
            shards: The number of shards.

        Returns:
            bool `[lanes]`, of the device or of NumPy.
        """
        if cursor is self._array:
            return None
        if cursor is not self._asked[0]:
            self._asked = cursor, self._compared(cursor, lanes, shards)
        return self._asked[1]

    def _compared(self, cursor: jax.Array, lanes: int, shards: int) -> Any:
        left = self._numbers
        if (
            left is None
            or left.shape != cursor.shape
            or not left.sharding.is_equivalent_to(cursor.sharding, left.ndim)
        ):
            return np.ones(lanes, np.bool_)
        return _changed(cursor, left, lanes=lanes, shards=shards)


def known(changed: Any, *, wait: bool = False) -> Any:
    """Return the answer of `LeftOff.changed` with None for "in none", if that can be told now."""
    given: Any = changed  # pyright does not know of `is_ready`
    if isinstance(changed, jax.Array) and (wait or given.is_ready()):
        changed = jax.device_get(changed)
    return None if isinstance(changed, np.ndarray) and not changed.any() else changed
