"""Files of other libraries, which ten lines load: errors name the page that has them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from fbuf.adapter_api import foreign_files

_PAGE = "docs/know/datasets_of_others.md has ten lines that give such files to from_arrays"

_MARKS = {
    "Robomimic": {"data", "mask"},
    "Robomimic or robosuite": {"data"},
    "d3rlpy": {"columns", "num_episodes"},
    "DreamerV3": {"is_first", "is_last"},
}
"""The names that files of a library have, and no others do."""


def of_names(names: Iterable[str]) -> str:
    """Return advice for a file with arrays of these names; an empty string if there is none."""
    there = set(names)
    found = (library for library, marks in _MARKS.items() if marks <= there)
    library = next(found, None)
    return "" if library is None else f". It looks like a file of {library}: {_PAGE}"


def of_path(path: str | os.PathLike[str]) -> str:
    """Return advice for a file or directory that cannot be read; an empty string if there is none.

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
