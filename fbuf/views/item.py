"""The item view: each drawn row as it was added."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from fbuf import _rows
from fbuf._state import State
from fbuf.views import _fields
from fbuf.views._protocol import Reading


@dataclasses.dataclass(frozen=True)
class Item:
    """Return each drawn row as it was added: `data` has the item's tree, leaves `[B, ...]`.

    Attributes:
        fields: The names of the fields to gather (`"a.b"` for one in another), in a tuple; `data`
            is then a dict of them. What is not named is not read, unless it is narrow. None is
            the whole item.

    Raises:
        TypeError: If `fields` is no tuple of names.
        ValueError: When traced, if the items lack one of them.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.full(1, 7.0))
        >>> fbuf.sample(state, jax.random.key(0), 2, view=fbuf.Item()).data
        Array([7., 7.], dtype=float32)
    """

    fields: _fields.Fields = None

    def __post_init__(self) -> None:
        _fields.check("Item", self.fields)

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Gather the rows."""
        return Reading(
            data=_fields.rows("Item", state.storage, slots, self.fields),
            flags=_rows.read(state.ring.flags, slots),
        )
