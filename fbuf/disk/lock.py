"""One writer a directory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Generator

NAME = "LOCK"


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Generator[None]:
    """Hold the lock of a directory; it is let go when the process ends, however it ends.

    Raises:
        BlockingIOError: If another process holds it; the message says which.
    """
    import fcntl  # not on Windows, where all but saving works

    with open(folder / NAME, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).strip() or "another process"
            raise BlockingIOError(
                f"fbuf.save: {folder} is being written by {holder}; save to another directory, or "
                "end that process"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            # A process that was forked meanwhile has the file open, too, and would hold it.
            fcntl.flock(file, fcntl.LOCK_UN)
