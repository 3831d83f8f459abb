"""Batches of a store, drawn and fetched ahead by a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fbuf.checks import values as check
from fbuf.host import programs
from fbuf.host.contents import Contents
from fbuf.runtime.batch_stream import BatchDrawer, BatchStream
from fbuf.runtime.thread import Cancelled
from fbuf.views import View

NumberedDraw = Callable[[int], Callable[[], Any]]

_LEARNER_FIRST = 2e-4
"""Seconds."""


class Batches:
    """An iterator over batches; made by `HostStore.batches`.

    The batches depend on the calls alone, and not on the timing of the thread. `next` raises an
    exception of the thread, with its traceback. Several threads may call `next`: each batch is
    handed out once. If an exception breaks `next` off in the main thread, the next call there
    returns the batch.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> from fbuf.host import HostStore
        >>> store = HostStore(jnp.zeros(()), capacity=100)
        >>> store.add(jnp.ones(10))
        >>> with store.batches(jax.random.key(0), 32) as batches:
        ...     batch = next(batches)
        >>> float(batch.data.sum())
        32.0
    """

    def __init__(self, contents: Contents, draw: NumberedDraw, prefetch: int) -> None:
        """Begin; nothing is drawn yet.

        Args:
            contents: The contents of the store.
            draw: Takes the number of a batch, and returns a function that makes the batch.
            prefetch: The number of batches to keep ready.
        """
        self._lock, self._still = contents.lock, contents.still
        check.integer("HostStore.batches", "prefetch", prefetch)
        self._stream = BatchStream(_NumberedDrawer(draw), 0, 1, prefetch, "fbuf-host")
        self._closed = False

    def __iter__(self) -> Batches:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            RuntimeError: If the batches were closed.
        """
        drawn = None
        try:
            with self._still():
                if self._closed:
                    raise _closed()
                drawn = self._stream.next(None, 1, None)
            batch = drawn.take()
            self._stream.returned(drawn)
            return batch
        except Cancelled as error:
            self._stream.ended_by(error, None, self._lock)
            raise _closed() from None
        except BaseException as error:
            self._stream.ended_by(error, drawn, self._lock)
            raise

    def close(self) -> None:
        """Stop drawing, and end the thread. Batches that were not returned are lost."""
        with self._lock:
            self._closed = True
            self._stream.drop()
        self._stream.close()

    def __enter__(self) -> Batches:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class _NumberedDrawer(BatchDrawer):
    """Draw batches, whose turns are numbers; see `BatchDrawer`."""

    def __init__(self, draw: NumberedDraw) -> None:
        self._numbered = draw

    def draw(self, source: Any, turn: int, size: int, option: Any) -> tuple[Any, int]:
        """Draw the batch of a number for a call that waits for it."""
        return self._numbered(turn), turn + 1

    def draw_ahead(
        self, source: Any, turn: int, size: int, option: Any, context: Any
    ) -> tuple[Any, int]:
        """Draw the batch of a number for the thread."""
        make = self._numbered(turn)

        def made() -> Callable[[], Any]:
            # The learner now begins to use the last batch, and Python runs one thread at a time.
            time.sleep(_LEARNER_FIRST)
            # The batch is ready when the learner asks for it.
            batch = jax.block_until_ready(make())
            return lambda: batch

        return made, turn + 1


def numbered(contents: Contents, key: Any, batch_size: int, view: View, beta: Any) -> NumberedDraw:
    """Return a function that draws the batch of a number; its result makes the batch.

    Call the function with the lock of the contents held. The arguments are checked ones.
    """
    # JAX makes the names of its options at run time.
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def draw(number: int) -> Callable[[], Any]:
        index, plan = contents.index, []
        of_batch = programs.of_batches(index, view, batch_size)

        def request() -> Any:
            with jax.enable_x64(x64):  # a setting that may differ between threads
                plan[:] = of_batch.draw_number(index, key, beta, np.int32(number))
            return plan[1]

        fetch = contents.taking(request)

        def make() -> Any:
            taken = fetch()
            with jax.enable_x64(x64):
                return of_batch.build(plan[0], taken)

        return make

    return draw


def _closed() -> RuntimeError:
    return RuntimeError("HostStore.batches: these were closed; ask the store for others")
