"""Free space on a disk, and the error for too little of it."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Generator

from fbuf.checks.sizes import in_words

_FULL = {errno.ENOSPC, errno.EDQUOT}


def require(where: str, folder: pathlib.Path, nbytes: int) -> None:
    """Refuse a write that needs more than the free space of the directory's disk.

    Args:
        where: The function to name in the error, such as `"to_npz"`.
        folder: The directory, which must exist.
        nbytes: The bytes to write.

    Raises:
        OSError: If the disk has less free space.
    """
    if shutil.disk_usage(folder).free < nbytes:
        raise _too_little(where, folder, nbytes, errno.ENOSPC)


@contextlib.contextmanager
def explained(where: str, folder: pathlib.Path, nbytes: int) -> Generator[None]:
    """Add to the error of a full disk the bytes to write, and the free space.

    The block should delete its unfinished files. Other failures of a disk name the directory,
    because the error may come from a thread, or at the end of a program.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _too_little(where, folder, nbytes, error.errno) from error
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}: {where}", str(folder)) from error


def _too_little(where: str, folder: pathlib.Path, nbytes: int, number: int) -> OSError:
    said = f"{os.strerror(number)}: {where} needs at least {in_words(nbytes)}"
    if number == errno.ENOSPC:  # the rest of a quota is unknown
        said += f", and {in_words(shutil.disk_usage(folder).free)} are free"
    return OSError(number, said, str(folder))
