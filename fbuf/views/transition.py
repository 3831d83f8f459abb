"""The transition view: a row and the observation its step led to, which is not stored twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fbuf import _rows
from fbuf._state import State
from fbuf.views import _fields
from fbuf.views._protocol import Reading


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ItemAndNext:
    """What `fbuf.Transition` makes of a row.

    Attributes:
        item: The row itself, as it was added; leaves `[B, ...]`.
        next: What its step led to: a tree like the field `next_of`, leaves `[B, ...]`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.int32(0)}, capacity=8, next_of="observation")
        >>> rows, led_to = {"observation": jnp.int32([5])}, jnp.int32([6])
        >>> state = fbuf.add(state, rows, next_observation=led_to)
        >>> fbuf.sample(state, jax.random.key(0), 1, view=fbuf.Transition()).data.next
        Array([6], dtype=int32)
    """

    item: Any
    next: Any


@dataclasses.dataclass(frozen=True)
class Transition:
    """Return each drawn row and the observation its step led to.

    That is read from the following row; at the end of an episode of either kind, and at the newest
    row, from a small store beside the rows. So for images a buffer takes half the memory, and every
    row that is there has its next observation, also across the seam of the ring.

    The buffer must be made with `next_of`, and `fbuf.add` be given `next_observation`. If more
    episodes end than it has room for (`max_ends`), draws of the oldest of these rows come masked.

    Attributes:
        next_of: The name of the observation: the one the buffer was made with.
        fields: As for `fbuf.Item`: which fields of the row itself to gather.

    Cost: O(B) reads.

    Raises:
        ValueError: When traced, if the buffer was not made with this `next_of`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.int32(0)}, capacity=8, next_of="observation")
        >>> rows, led_to = {"observation": jnp.int32([1, 2])}, jnp.int32([2, 3])
        >>> state = fbuf.add(state, rows, next_observation=led_to)
        >>> batch = fbuf.sample(state, jax.random.key(0), 4, view=fbuf.Transition())
        >>> batch.data.item["observation"], batch.data.next
        (Array([2, 2, 1, 1], dtype=int32), Array([3, 3, 2, 2], dtype=int32))
    """

    next_of: str = "observation"
    fields: _fields.Fields = None

    def __post_init__(self) -> None:
        _fields.check("Transition", self.fields)

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Read the rows, and what they led to."""
        flags = _rows.read(state.ring.flags, slots)
        led_to, known = _fields.read_next("Transition", state, slots, flags, self.next_of)
        item = _fields.rows("Transition", state.storage, slots, self.fields)
        return Reading(ItemAndNext(item, led_to), flags, known=known)
