"""The item view: each drawn row as it was added."""

from __future__ import annotations

import dataclasses

import jax

from fbuf.checks import values as check
from fbuf.views.protocol import Reading, View
from fbuf.views.reader import Fields, Reader


@dataclasses.dataclass(frozen=True)
class Item(View):
    """Return each drawn row as you added it: `data` has the item's tree, leaves `[B, ...]`.

    Attributes:
        fields: The names of the fields to gather (`"a.b"` for a field in a field), in a tuple;
            `data` is then a dict of them. Fields that you do not name are not read, unless they are
            narrow. None is the whole item.

    Raises:
        TypeError: If `fields` is not a tuple of names.
        ValueError: When traced, if the items have no such field.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.full(1, 7.0))
        >>> fbuf.sample(state, jax.random.key(0), 2, view=fbuf.Item()).data
        Array([7., 7.], dtype=float32)
    """

    fields: Fields = None

    def __post_init__(self) -> None:
        check.names("Item", "fields", self.fields)

    def read(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Reading:
        """Gather the rows."""
        return Reading(data=reader.rows(slots, self.fields), flags=reader.flags(slots))
