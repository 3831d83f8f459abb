"""Room on a disk, and what is said where there is too little."""

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
    """Refuse to begin with what the disk of a directory has no room for.

    Args:
        where: The function to name in the error, such as `"to_npz"`.
        folder: The directory, which is there.
        nbytes: How much will be written.

    Raises:
        OSError: If less is free.
    """
    if shutil.disk_usage(folder).free < nbytes:
        raise _too_little(where, folder, nbytes, errno.ENOSPC)


@contextlib.contextmanager
def explained(where: str, folder: pathlib.Path, nbytes: int) -> Generator[None]:
    """Say of a disk that gets full how much was to be written, and how much is free.

    The block should delete its unfinished files. Other failures of a disk name the directory,
    because an error may come from the background, or at the end of a program.
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
    if number == errno.ENOSPC:  # of a quota nobody says what is left
        said += f", and {in_words(shutil.disk_usage(folder).free)} are free"
    return OSError(number, said, str(folder))
