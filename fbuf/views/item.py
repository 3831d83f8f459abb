"""The item view: each drawn row as it was added."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from fbuf.checks import values as check
from fbuf.storage.layout import Fields, Layout
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader


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

    reads_one_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.names("Item", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the rows."""
        return Request({"rows": reader.rows(slots, self.fields)}, reader.flags(slots))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Return the rows as they are."""
        return Reading(data=rows["rows"], flags=seen)
