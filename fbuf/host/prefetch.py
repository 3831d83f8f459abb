"""Batches of a store, drawn and taken ahead by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fbuf.checks import values as check
from fbuf.host import programs
from fbuf.host.contents import Contents
from fbuf.runtime.thread import Cancelled, Task, Worker
from fbuf.views import View

_LEARNER_FIRST = 2e-4
"""Seconds."""


class Batches:
    """An iterator over batches; made by `HostStore.batches`.

    The batches depend on the calls alone, and not on the timing of the thread. An exception in
    the thread is raised by `next`, with the place it came from. Several threads may call `next`:
    each batch is handed out once.

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

    def __init__(
        self, lock: threading.RLock, draw: Callable[[int], Callable[[], Any]], prefetch: int
    ) -> None:
        """Nothing is drawn yet.

        Args:
            lock: The lock of the store.
            draw: Called with the number of a batch, and returns what draws and makes it.
            prefetch: How many batches to have ready.
        """
        self._lock = lock
        self._draw = draw
        self._prefetch = check.integer("HostStore.batches", "prefetch", prefetch)
        self._ahead: list[_Ahead] = []
        """Drawn and not handed out yet, in order; the last is the newest of all."""
        self._worker: Worker | None = Worker("fbuf-host")

    def __iter__(self) -> Batches:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            RuntimeError: If the batches were closed.
        """
        # A Ctrl-C may come between any two instructions. The next call then finds all as it was
        # before this call, but for a batch that nobody waits for.
        first: _Ahead | None = None
        try:
            with self._lock:
                worker = self._worker
                if worker is None:
                    raise _closed()
                # A copy: another thread may take its own out meanwhile.
                waiting = [ahead for ahead in list(self._ahead) if not ahead.claimed]
                while len(waiting) <= self._prefetch:
                    number = self._ahead[-1].number + 1 if self._ahead else 0
                    ahead = _Ahead(number, self._draw(number))
                    worker.submit(ahead.task)
                    self._ahead.append(ahead)
                    waiting.append(ahead)
                first = waiting[0]
                first.claimed = True
            batch = first.task.result()
            self._ahead.remove(first)
            return batch
        except Cancelled:
            raise _closed() from None
        except BaseException as error:
            if first is not None:
                if first.failed_with(error):
                    self._ahead.remove(first)
                else:  # the next call returns it
                    first.claimed = False
            raise

    def close(self) -> None:
        """Draw nothing more, and end the thread. Batches that were not handed out are gone."""
        with self._lock:
            worker, self._worker = self._worker, None
            for ahead in list(self._ahead):
                ahead.task.cancel()
        if worker is not None:
            worker.close()

    def __enter__(self) -> Batches:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def numbered(
    contents: Contents, key: Any, batch_size: int, view: View, beta: Any
) -> Callable[[int], Callable[[], Any]]:
    """Return a function that draws the batch of a number; its result makes the batch.

    Call the function with the lock of the contents held. The arguments are checked ones.
    """
    # JAX makes the names of its options at run time.
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def draw(number: int) -> Callable[[], Any]:
        index, plan = contents.index, []

        def request() -> Any:
            with jax.enable_x64(x64):  # a setting that may hold in one thread alone
                plan[:] = programs.draw_number(
                    index, key, beta, np.int32(number), batch_size=batch_size, view=view
                )
            return plan[1]

        taking = contents.taking(request)

        def make() -> Any:
            taken = taking()
            with jax.enable_x64(x64):
                return programs.drawn(*plan, taken, view=view, layouts=contents.layouts)

        return make

    return draw


class _Ahead:
    """A batch that is made ahead.

    Attributes:
        number: Which one it is.
        task: Makes it.
        claimed: Whether somebody waits for it.
    """

    def __init__(self, number: int, make: Callable[[], Any]) -> None:
        self.number = number
        self.claimed = False
        self._error: BaseException | None = None

        def run() -> Any:
            try:
                # The learner begins to use the last batch now, and one thread at a time runs
                # Python.
                time.sleep(_LEARNER_FIRST)
                # The batch is ready when it is asked for.
                return jax.block_until_ready(make())
            except BaseException as error:
                self._error = error
                raise

        self.task = Task(run)

    def failed_with(self, error: BaseException) -> bool:
        """Whether that is what it has failed with."""
        return error is self._error


def _closed() -> RuntimeError:
    return RuntimeError("HostStore.batches: these were closed; ask the store for others")
