"""The error of data sets, and those of missing packages, unreadable files and foreign formats."""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from fbuf.adapter_api import foreign_files

_PAGE = "docs/know/datasets_of_others.md has ten lines that give such files to from_arrays"

_MARKS = {
    "Robomimic": {"data", "mask"},
    "Robomimic or robosuite": {"data"},
    "d3rlpy": {"columns", "num_episodes"},
    "DreamerV3": {"is_first", "is_last"},
}
"""The array names that identify the files of a library."""


class DatasetError(ValueError):
    """A data set cannot be loaded or written as you asked.

    The message names the episode and the field where there is one, and says what to do. If rows
    were added before, a note gives their number, and `state` has the buffer.

    Attributes:
        state: The buffer with the rows added before; None without such rows. Any other
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


DatasetError.__module__ = "fbuf_adapters.datasets"  # its public module


def needed(where: str, name: str, extra: str = "datasets") -> Any:
    """Return a package, or raise an error that says which extra of fbuf installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # the package lacks a dependency
            raise
        raise ImportError(f'{where} needs {name}: pip install "fbuf[{extra}]"') from error


def unreadable(
    where: str, path: str | os.PathLike[str], kind: str, error: BaseException
) -> DatasetError:
    """Return the error of a file that cannot be read, with the rows that were added before.

    Args:
        where: The function that was called.
        path: The file.
        kind: The expected kind of the file.
        error: The exception that ended the load.
    """
    refused = any(isinstance(e, foreign_files.Refusal) for e in (error, error.__cause__))
    why = str(error) if refused else f"it is cut off, damaged, or no {kind} ({error})"
    found = DatasetError(
        f"{where}: {os.fspath(path)!r} cannot be read: {why}{advice_on_path(path)}"
    )
    found.state = getattr(error, "state", None)
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def advice_on_names(names: Iterable[str]) -> str:
    """Return advice for a file with arrays of these names, or an empty string."""
    there = set(names)
    found = (library for library, marks in _MARKS.items() if marks <= there)
    library = next(found, None)
    return "" if library is None else f". It looks like a file of {library}: {_PAGE}"


def advice_on_path(path: str | os.PathLike[str]) -> str:
    """Return advice for an unreadable file or directory, or an empty string.

    Repositories have pointers in place of large files, until Git LFS gets the files.
    """
    given = pathlib.Path(path)
    if any((given / mark).exists() for mark in (".zgroup", ".zarray", "zarr.json")):
        return f". It looks like zarr: {_PAGE}"
    try:
        begin = foreign_files.read(given, 1024)
    except (OSError, foreign_files.Refusal):
        return ""
    is_pointer = begin.startswith(b"version https://git-lfs.github.com/spec/")
    return ". It is a pointer of Git LFS, and not the file: run git lfs pull" if is_pointer else ""
