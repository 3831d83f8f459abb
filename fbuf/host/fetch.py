"""Fetch the rows of a drawn batch once, in the first thread that asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Fetch:
    """Fetch rows in the first thread that asks.

    The thread makes batches ahead, or is about to change the store.
    """

    def __init__(self, take: Callable[[], Any]) -> None:
        """Prepare the fetch."""
        self._take: Callable[[], Any] | None = take
        self._lock = threading.RLock()
        self._taken: Any = None
        self._error: Exception | None = None

    def settle(self) -> None:
        """Fetch the rows if nobody has; keep an exception for the caller who wants them."""
        with self._lock:
            if self._take is None:
                return
            taken = error = None
            try:
                taken = self._take()
            except Exception as raised:
                error = raised
            # A signal handler may have changed the store meanwhile. Then it has fetched the rows
            # before the change, and `taken` may have newer ones.
            if self._take is not None:
                self._taken, self._error, self._take = taken, error, None

    def __call__(self) -> Any:
        """Return the fetched rows."""
        self.settle()
        if self._error is not None:
            raise self._error
        return self._taken
