"""The error of data sets, and the errors of missing packages and of unreadable files."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fbuf.adapter_api import foreign_files
from fbuf_adapters.datasets import _others


class DatasetError(ValueError):
    """A data set cannot be loaded or written as you asked.

    The message names the episode and the field where there is one, and says what to do. If rows
    were added before, it has a note that says how many, and the buffer with them is in `state`.

    Attributes:
        state: The buffer with the rows that were added before; None if none were. Any other
            exception that ends a load, such as `KeyboardInterrupt`, gets the same attribute.

    Examples:
        >>> import numpy as np
        >>> from fbuf_adapters.datasets import DatasetError, from_arrays
        >>> try:
        ...     from_arrays({"reward": np.zeros(3)}, terminated=np.zeros(2, bool))
        ... except DatasetError as error:
        ...     print(error)
        from_arrays: reward has 3 rows, and terminated has 2
    """

    state: Any = None


DatasetError.__module__ = "fbuf_adapters.datasets"  # where users find it


def needed(where: str, name: str, extra: str = "datasets") -> Any:
    """Return a package, or raise an error that says which extra of fbuf installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # the package is there, and lacks another one
            raise
        raise ImportError(f'{where} needs {name}: pip install "fbuf[{extra}]"') from error


def unreadable(
    where: str, path: str | os.PathLike[str], kind: str, error: BaseException
) -> DatasetError:
    """Return the error of a file that cannot be read, with the rows that were added before.

    Args:
        where: The function that was called.
        path: The file.
        kind: The kind that the file should be of.
        error: The exception that ended the load.
    """
    refused = any(isinstance(e, foreign_files.Refusal) for e in (error, error.__cause__))
    why = str(error) if refused else f"it is cut off, damaged, or no {kind} ({error})"
    found = DatasetError(
        f"{where}: {os.fspath(path)!r} cannot be read: {why}{_others.of_path(path)}"
    )
    found.state = getattr(error, "state", None)
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found
