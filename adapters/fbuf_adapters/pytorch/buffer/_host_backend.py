"""A store that one object owns, changed in place, and lost by no exception."""

from __future__ import annotations

from typing import Any

import jax

import fbuf
from fbuf.adapter_api import Calls, View
from fbuf.host import HostStore
from fbuf_adapters.pytorch.batches._drawer import BatchRequest, PackedDraw, Recipe
from fbuf_adapters.pytorch.batches._host_programs import HostBatchProgram
from fbuf_adapters.pytorch.buffer._backend import Backend, Operation


class HostBackend(Backend):
    """Hold a store; its state is the index, without the rows. Call it with a lock held.

    Another thread makes the changes, and an exception that comes meanwhile waits for their end.
    """

    def __init__(self, store: HostStore[Any], calls: Calls) -> None:
        """Own this store: nobody else may use it.

        Raises:
            ValueError: If it has an owner.
        """
        if store.contents.owned:
            raise ValueError(
                f"fbuf_adapters.pytorch.ReplayBuffer: host is {store!r}, which another buffer has; "
                "open or load it again for this one"
            )
        store.contents.owned = True
        store.contents.tells_of_lost = False  # the buffer does
        super().__init__(store.contents.index, calls)
        self._store = store

    def change(
        self, operation: Operation, leaves: list[Any], structure: Any, wait: bool, **static: Any
    ) -> None:
        """As `Backend.change`; the arguments have always been read when it returns."""
        given = structure.unflatten(leaves)
        method = getattr(self._store, operation.__name__)

        def call() -> None:
            try:
                method(**given, **static)
            finally:
                self._follow()

        self._calls.apart(call)

    def draw(self, recipe: Recipe, asked: BatchRequest, ahead: bool) -> PackedDraw:
        """As `Backend.draw`."""
        make = lambda form: HostBatchProgram(self._store, recipe, self._calls, form)
        return self.program("draw", make)(self.newest, asked, ahead)

    def read(self, ids: fbuf.Ids, view: View = fbuf.Item()) -> fbuf.Batch[Any]:
        """As `Backend.read`."""
        # In another thread: a signal handler that changes the rows waits for its end.
        return self._calls.apart(lambda: self._store.read(ids, view=view))

    def stats(self, detailed: bool) -> dict[str, Any]:
        """As `Backend.stats`, and how many bytes lie on the host."""
        return {**super().stats(detailed), "host_bytes": self._store.contents.nbytes}

    def whole(self) -> fbuf.State[Any]:
        """As `Backend.whole`, with rows that are arrays of NumPy."""
        return self._store.contents.whole()

    def save(self, path: Any, **options: Any) -> None:
        """As `Backend.save`."""
        try:
            self._store.save(path, **options)
        finally:
            self._follow()

    def _follow(self) -> None:
        """Keep the current index of the store."""
        self._kept[0] = tuple(jax.tree.leaves(self._store.contents.index))
