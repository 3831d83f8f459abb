"""The owner of a `HostStore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fbuf
from fbuf.owner.owner import Owner


class HostOwner(Owner):
    """Looks at a store, and changes it in place."""

    make = "HostStore({}, {})"
    in_place = True

    @property
    def index(self) -> fbuf.State[Any]:
        """As `Owner.index`."""
        return self.buffer.contents.index

    def require(self, operation: str) -> None:
        """As `Owner.require`."""
        if operation == "add" and self.buffer.contents.owned:
            raise ValueError(
                f"{self.asked.where}: the store belongs to a buffer for PyTorch, which would not "
                "know of the rows; give a store of its own"
            )

    def whole(self) -> Sequence[fbuf.State[Any]]:
        """As `Owner.whole`."""
        return [self.buffer.contents.whole()]

    def read(self, ids: Any, view: Any) -> Any:
        """As `Owner.read`."""
        return self.buffer.read(ids, view=view)

    def add(self, items: Any, **given: Any) -> None:
        """As `Owner.add`."""
        self.buffer.add(items, **given)

    def change(self, operation: Callable[..., Any], **given: Any) -> None:
        """As `Owner.change`."""
        self.buffer.contents.change(operation, **given)
