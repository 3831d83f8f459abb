"""What a report looks at in a `HostStore`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from fbuf.doctor.opened import Part, check, opened
from fbuf.host.host_store import HostStore


@opened.register
@contextlib.contextmanager
def _(buffer: HostStore, function: str) -> Generator[list[Part]]:  # pyright: ignore[reportMissingTypeArgument]
    with buffer.lock:
        index: Any = buffer.contents.index
        check(index, function)
        read, _ = buffer.contents.reading()
        yield [Part(index, index.storage.layout, read)]
