"""The buffers that loaders fill and writers read."""

from __future__ import annotations

from typing import Any

from fbuf.adapter_api import Asked, Owner, owner_of
from fbuf_adapters.datasets._errors import DatasetError


class Buffer:
    """A `fbuf.State`, or a `HostStore`.

    Attributes:
        owner: Its owner.
    """

    def __init__(
        self, where: str, given: Any, operation: str, argument: str = "state", instead: str = ""
    ) -> None:
        """Take a caller's object; a consumed state is refused for this function of `fbuf`.

        Raises:
            TypeError: If the object is neither a state nor a store.
            DatasetError: If the object is a batch of buffers.
            RuntimeError: If the state has been consumed.
        """
        asked = Asked(where, "a fbuf.State or a HostStore", instead, argument)
        self.owner: Owner = owner_of(given, asked)
        if self.owner.over_mesh:
            asked.refuse(given)
        self.owner.require(operation)
        if self.index.ring.cursor.ndim != 2:
            raise DatasetError(f"{where}: the buffer is a batch of buffers; give one of them")

    @property
    def index(self) -> Any:
        """The state, with flags and ring; the rows of a store lie elsewhere."""
        return self.owner.index

    @property
    def item(self) -> Any:
        """One row: a tree of `jax.ShapeDtypeStruct`."""
        return self.index.storage.item

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept."""
        kept = self.index.next_obs
        return None if kept is None else kept.field
