"""The part of a `HostStore` that a report looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from fbuf.doctor.opened import Part, opened
from fbuf.host.host_store import HostStore


@opened.register
@contextlib.contextmanager
def _(buffer: HostStore, function: str) -> Generator[list[Part]]:  # pyright: ignore[reportMissingTypeArgument]
    with buffer.lock, opened(buffer.contents.whole(), function) as parts:
        yield parts
