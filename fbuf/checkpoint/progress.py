"""A progress bar on a terminal, for reads and writes of more than a second."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from typing import Any

_bar: contextvars.ContextVar[Any] = contextvars.ContextVar("fbuf progress bar", default=None)
# A thread does not inherit it: a save in the background draws no bar into a log of training.


@contextlib.contextmanager
def shown(what: str, nbytes: int) -> Generator[None]:
    """Show the progress of a read or write of `nbytes`."""
    from tqdm import tqdm  # imported late: `import fbuf` stays fast

    with tqdm(
        total=nbytes,
        desc=what,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=1,
        disable=None,  # without a terminal
        leave=False,
    ) as bar:
        before = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(before)


def moved(nbytes: int) -> None:
    """Advance the bar by `nbytes`."""
    bar = _bar.get()
    if bar is not None:
        bar.update(nbytes)
