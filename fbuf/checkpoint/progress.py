"""A progress bar for what takes more than a second, where a terminal is there to show it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from typing import Any

_bar: contextvars.ContextVar[Any] = contextvars.ContextVar("fbuf progress bar", default=None)
# A thread does not inherit it: a save in the background draws no bar into a log of training.


@contextlib.contextmanager
def shown(what: str, nbytes: int) -> Generator[None]:
    """Show how far something is that reads or writes so many bytes."""
    from tqdm import tqdm  # when something is read or written, and not with fbuf

    with tqdm(
        total=nbytes,
        desc=what,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=1,
        disable=None,  # where there is no terminal
        leave=False,
    ) as bar:
        before = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(before)


def moved(nbytes: int) -> None:
    """Take note that so many bytes have been read or written."""
    bar = _bar.get()
    if bar is not None:
        bar.update(nbytes)
