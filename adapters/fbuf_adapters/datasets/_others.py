"""Files of other libraries, which ten lines load: errors name the page that has them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

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


def of_directory(path: str | os.PathLike[str]) -> str:
    """Return advice for a directory that is no file; an empty string if there is none."""
    marks = (".zgroup", ".zarray", "zarr.json")
    is_zarr = any((pathlib.Path(path) / mark).exists() for mark in marks)
    return f". It looks like zarr: {_PAGE}" if is_zarr else ""
