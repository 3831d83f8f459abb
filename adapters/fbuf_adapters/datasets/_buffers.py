"""The buffers that data sets are read into, and written from."""

from __future__ import annotations

from typing import Any

import fbuf
from fbuf.adapter_api import refuse_consumed
from fbuf.host import HostStore
from fbuf_adapters.datasets._errors import DatasetError


class Buffer:
    """A `fbuf.State`, or a `HostStore`.

    Attributes:
        result: The state or the store.
    """

    def __init__(
        self, where: str, given: Any, argument: str, operation: str, advice: str = ""
    ) -> None:
        """Take a caller's object.

        Args:
            where: The function that was called, for errors.
            given: The object.
            argument: The name of the argument.
            operation: The function of `fbuf` that a consumed state is refused for.
            advice: The end of the message if the object is neither.

        Raises:
            TypeError: If the object is neither a state nor a store.
            DatasetError: If the object is a batch of buffers.
            RuntimeError: If the state has been consumed.
        """
        if isinstance(given, fbuf.State):
            refuse_consumed(operation, given)
        elif not isinstance(given, HostStore):
            raise TypeError(
                f"{where}: {argument} must be a fbuf.State or a HostStore, got "
                f"{type(given).__name__}{advice}"
            )
        self.result: Any = given
        if self.index.ring.cursor.ndim != 2:
            raise DatasetError(f"{where}: the buffer is a batch of buffers; give one of them")

    @property
    def index(self) -> Any:
        """The state, with flags and ring; the rows of a store lie elsewhere."""
        return self.result.contents.index if isinstance(self.result, HostStore) else self.result

    @property
    def item(self) -> Any:
        """One row: a tree of `jax.ShapeDtypeStruct`."""
        return self.index.storage.item

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept."""
        kept = self.index.next_obs
        return None if kept is None else kept.field
