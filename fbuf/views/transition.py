"""The transition view: a row and its next observation, which is not stored twice."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic

import jax

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.store import Item
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader


@pytree
class TransitionStep(Generic[Item, ArrayT]):
    """The data of `fbuf.Transition`.

    Attributes:
        item: The row itself, as you added it; leaves `[B, ...]`.
        next_observation: The observation after the row's step: a tree like the field `next_of`,
            leaves `[B, ...]`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.int32(0)}, capacity=8, next_of="observation")
        >>> rows, following = {"observation": jnp.int32([5])}, jnp.int32([6])
        >>> state = fbuf.add(state, rows, next_observation=following)
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.Transition())
        >>> batch.data.next_observation
        Array([6], dtype=int32)
    """

    __repr__ = shown.batch_repr

    item: Item
    """The row itself, as you added it."""
    next_observation: Any
    """The observation after the row's step."""


@dataclasses.dataclass(frozen=True)
class Transition(View[TransitionStep[Any]]):
    """Return each drawn row and its next observation.

    The view reads the next observation from the following row. At the end of an episode, and at the
    newest row, it reads from a small store beside the rows. So each observation is stored once,
    which halves the memory for images, and every row has its next observation.

    Make the buffer with `next_of`, and give `next_observation` to `fbuf.add`. If more episodes end
    than `max_ends`, draws of the oldest of these last rows are masked. Where `Sample.mask` is
    False, the next observation is the row's own. It has no discount here: multiply a loss by
    `Sample.weight` or by the mask.

    Attributes:
        next_of: The name of the observation, as for `fbuf.init`. None is the `next_of` of the
            buffer.
        fields: As for `fbuf.Item`: the fields of the row to gather.

    Cost: O(B) reads.

    Raises:
        ValueError: When traced, if the buffer was not made with this `next_of`.
        TypeError: If `next_of` is not a str, or if `fields` is not a tuple of names.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.int32(0)}, capacity=8, next_of="observation")
        >>> rows, following = {"observation": jnp.int32([1, 2])}, jnp.int32([2, 3])
        >>> state = fbuf.add(state, rows, next_observation=following)
        >>> batch = fbuf.sample(state, jax.random.key(0), 4, view=fbuf.Transition())
        >>> batch.data.item["observation"], batch.data.next_observation
        (Array([2, 2, 1, 1], dtype=int32), Array([3, 3, 2, 2], dtype=int32))
    """

    next_of: str | None = None
    _: dataclasses.KW_ONLY
    fields: Fields = None

    def __post_init__(self) -> None:
        check.name_or_none("Transition", "next_of", self.next_of)
        check.names("Transition", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the rows, and their next observations."""
        flags = reader.flags(slots)
        following, known = reader.next_observation(slots, flags, self.next_of)
        return Request({"next": following, "rows": reader.rows(slots, self.fields)}, (flags, known))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put the two side by side."""
        flags, known = seen
        return Reading(TransitionStep(rows["rows"], rows["next"]), flags, known)
