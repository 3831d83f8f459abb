"""Parquet files, read a part of a column at a time."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from fbuf.adapter_api import foreign_files
from fbuf_adapters.datasets._errors import DatasetError, advice_on_path, needed, unreadable
from fbuf_adapters.datasets._fields import Array

EXTRA = "lerobot"
"""The extra of fbuf with pyarrow."""

_OPEN_FILES = 16


def opened(parquet: Any, path: pathlib.Path) -> Any:
    """Open a parquet file.

    Raises:
        Refusal: If it is no plain file, or would expand too much.
    """
    size = foreign_files.size(path)
    file = parquet.ParquetFile(path)
    about = file.metadata
    for group in map(about.row_group, range(about.num_row_groups)):
        # Equal values compress to almost nothing.
        columns = (group.column(number) for number in range(about.num_columns))
        largest = max([8 * group.num_rows, *(column.total_uncompressed_size for column in columns)])
        foreign_files.require_size(largest, size)
    foreign_files.require_size(8 * about.num_rows, size)
    return file


class Groups:
    """Columns of parquet files, read a group of rows at a time; the last group of each is kept.

    Args:
        where: The function that was called, for errors.
        kind: The kind of the files, for errors.
        plain: Returns the array to keep, given the name of a column and a group of its rows.
    """

    def __init__(self, where: str, kind: str, plain: Callable[[str, Any], Any]) -> None:
        self._where, self._kind, self._plain = where, kind, plain
        self._arrow, parquet = (needed(where, n, EXTRA) for n in ("pyarrow", "pyarrow.parquet"))
        self._broken = (self._arrow.ArrowException, OSError, ValueError, MemoryError)
        self._kept: dict[str, tuple[tuple[pathlib.Path, int], Any]] = {}
        self._opened = functools.lru_cache(_OPEN_FILES)(lambda path: _with_starts(parquet, path))

    def columns(self, path: pathlib.Path) -> tuple[list[str], int]:
        """Return the names of the columns of a file, one for each field of a struct; its rows."""
        with self._reading(path):
            file, starts = self._opened(path)
            names = [name for field in file.schema_arrow for name in _leaves(self._arrow, field)]
            return names, starts[-1]

    def read(self, path: pathlib.Path, name: str, part: slice) -> list[Any]:
        """Return the arrays of a part of a column, one for each group.

        Raises:
            DatasetError: If the file cannot be read.
            FileNotFoundError: If there is no such file.
            LookupError: If it has no such column.
        """
        with self._reading(path):
            _, starts = self._opened(path)
            low, high, _ = part.indices(starts[-1])
            groups = range(bisect.bisect(starts, low) - 1, bisect.bisect_left(starts, high))
            return [
                self._group(path, n, name)[max(low - starts[n], 0) : high - starts[n]]
                for n in groups
            ]

    def _group(self, path: pathlib.Path, number: int, name: str) -> Any:
        if self._kept.get(name, (None, None))[0] != (path, number):
            file, _ = self._opened(path)
            column = file.read_row_group(number, columns=[name]).column(0).combine_chunks()
            self._kept[name] = (path, number), self._plain(name, column)
        return self._kept[name][1]

    @contextlib.contextmanager
    def _reading(self, path: pathlib.Path) -> Generator[None]:
        try:
            yield
        except (DatasetError, FileNotFoundError):
            raise
        except self._broken as error:
            raise unreadable(self._where, path, self._kind, error) from error


def _with_starts(parquet: Any, path: pathlib.Path) -> tuple[Any, list[int]]:
    """Return a file, the first row of each of its groups, and the number of rows."""
    file = opened(parquet, path)
    counts = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
    return file, list(itertools.accumulate(counts, initial=0))


class Table:
    """The columns of some parquet files, one file after another.

    Args:
        where: The function that was called, for errors.
        paths: The files.

    Attributes:
        names: The names of the columns; a column of structs is one for each of their fields.

    Raises:
        DatasetError: If a file cannot be read, or has other columns than the first.
    """

    def __init__(self, where: str, paths: list[pathlib.Path]) -> None:
        self.where, self._paths, self._starts = where, paths, [0]
        self._groups = Groups(where, "parquet", self._plain)
        self.names, _ = self._groups.columns(paths[0])
        for path in paths:
            names, rows = self._groups.columns(path)
            if names != self.names:
                raise DatasetError(
                    f"{where}: {path.name} has other columns than {paths[0].name}; give the files "
                    "one after another, each with an into that takes its columns"
                )
            self._starts.append(self._starts[-1] + rows)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._starts[-1]

    def parts(self, name: str, part: slice) -> Iterator[Array]:
        """Yield the arrays of a part of a column, one for each group of rows."""
        for path, begin, end in zip(self._paths, self._starts, self._starts[1:], strict=False):
            low, high = max(part.start, begin), min(part.stop, end)
            if low < high:
                yield from self._groups.read(path, name, slice(low - begin, high - begin))

    def _plain(self, name: str, column: Any) -> Array:
        """Return the numbers of an array of lists of lists, `[rows, ...]`."""
        while hasattr(column.type, "fields") and column.null_count == 0:
            column = column.field(0)  # a struct with a single read field
        shape: list[int] = [len(column)]
        inner: tuple[int, ...] = ()
        if hasattr(column, "storage"):  # a tensor, stored as a list
            inner, column = tuple(getattr(column.type, "shape", ())), column.storage
        if hasattr(column, "dictionary_decode"):
            column = column.dictionary_decode()
        while hasattr(column.type, "value_type"):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            if column.null_count or (lengths != lengths[:1]).any():
                self._refuse(name, "has rows of different lengths, or without a value")
            shape.append(int(lengths[0]) if len(lengths) else 0)
            column = column.flatten()
        if column.null_count:
            self._refuse(name, "has rows without a value")
        if inner and math.prod(inner) == shape[-1]:
            shape[-1:] = inner
        return column.to_numpy(zero_copy_only=False).reshape(shape)

    def _refuse(self, name: str, what: str) -> None:
        raise DatasetError(
            f"{self.where}: {foreign_files.printable(name)} {what}; fill these in, or leave the "
            f"column out with drop=[{name!r}]"
        )


class Column:
    """A column as an array, read a part at a time.

    Raises:
        DatasetError: If it cannot be read, or if a row has another shape than the first.
    """

    def __init__(self, table: Table, name: str) -> None:
        self._table, self._name = table, name
        first = next(table.parts(name, slice(0, 1)), np.zeros(0))
        self.shape, self.dtype = (table.rows, *first.shape[1:]), first.dtype

    def __getitem__(self, part: slice) -> Array:
        """Read some rows."""
        found = list(self._table.parts(self._name, part))
        if not found:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        for some in found:
            if some.shape[1:] != self.shape[1:] or some.dtype != self.dtype:
                raise DatasetError(
                    f"{self._table.where}: {self._name} is {some.dtype} {some.shape[1:]} in some "
                    f"rows, and {self.dtype} {self.shape[1:]} in the first one; they must be alike"
                )
        return np.concatenate(found)


def _leaves(arrow: Any, field: Any, above: str = "") -> Iterator[str]:
    """Yield the names of the columns of a field, which may be a struct of fields."""
    name = f"{above}{field.name}"
    if not arrow.types.is_struct(field.type):
        yield name
        return
    for number in range(field.type.num_fields):
        yield from _leaves(arrow, field.type.field(number), f"{name}.")


def files_of(where: str, path: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Return the parquet files of a directory in the order of their names, or the one file.

    Raises:
        DatasetError: If there is none in the directory, or if a link leads out of it.
        FileNotFoundError: If there is no such file.
    """
    root = pathlib.Path(path)
    if not root.exists():
        raise FileNotFoundError(f"{where}: there is no file {os.fspath(path)!r}")
    if not root.is_dir():
        return [root]
    names = sorted(entry.name for entry in root.iterdir() if entry.name.endswith(".parquet"))
    if not names:
        advice = advice_on_path(path)
        raise DatasetError(
            f"{where}: {os.fspath(path)!r} has no files that end in .parquet{advice}"
        )
    try:
        return [foreign_files.inside(root, name, links=True) for name in names]
    except foreign_files.Refusal as error:
        raise unreadable(where, path, "parquet", error) from error
