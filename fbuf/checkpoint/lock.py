"""One writer a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
from collections.abc import Generator

from fbuf.checkpoint import files, lock_file
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checks import foreign

NAME = "LOCK"

_NO_LOCKS = {*files.CANNOT, errno.ENOLCK}
"""The errors of a disk without locks, such as a cluster's."""

_held: set[int] = set()
"""The open files of locks that this process holds."""


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Generator[None]:
    """Hold the lock of a directory; the end of the process releases it in any case.

    On a disk without locks it is a file, see `fbuf.checkpoint.lock_file`.

    Raises:
        BlockingIOError: If another process holds it; the message says which.
        CheckpointError: If the lock is no plain file: this process would write to it.
    """
    file = _opened(folder / NAME)
    try:
        if not _locked(folder, file):
            with lock_file.held(folder):
                yield
            return
        _held.add(file)
        with contextlib.suppress(OSError):  # on a full disk; the text is for messages only
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        _held.discard(file)
        os.close(file)


def _opened(path: pathlib.Path) -> int:
    """Open the file of a lock, or make it."""
    try:
        with contextlib.suppress(FileNotFoundError):
            foreign.size(foreign.inside(path.parent, path.name, links=False))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        return os.open(path, flags, 0o666)
    except foreign.Refusal as error:
        raise CheckpointError(
            f"fbuf.save: {path} is not written to: {error}; delete it, or save to another directory"
        ) from None


def _locked(folder: pathlib.Path, file: int) -> bool:
    """Lock a file; return False if its disk has no locks."""
    import fcntl  # not on Windows, where all but saving works

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = foreign.printable(os.read(file, 200).decode(errors="replace").strip())
        holder = holder or "another process"
        raise BlockingIOError(
            f"fbuf.save: {folder} is being written by {holder}; save to another directory, or "
            "end that process"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(error.errno, error.strerror, str(folder / NAME)) from error
        return False
    return True


def _let_go() -> None:
    """Close the files in a forked process, which would otherwise hold the locks, too."""
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
