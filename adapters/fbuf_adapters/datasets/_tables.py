"""Tables with a row a step into a buffer: parquet files, and data frames of pandas."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import numpy as np

from fbuf.adapter_api import foreign_files, local_path
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, flags, under
from fbuf_adapters.datasets._flat import Flat
from fbuf_adapters.datasets._loading import Options, load, loader
from fbuf_adapters.datasets._parquet import Column, Table, files_of


@loader
def from_parquet(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    terminated: str = "terminated",
    truncated: str | None = None,
    **options: Unpack[Options],
) -> Any:
    """Load parquet files with a row a step, episode after episode, into a buffer.

    Each column is a field. A dot in its name makes a dict, and so does a column of structs. Numbers
    are one number a row; lists, and lists of lists, are arrays, which must have one shape in all
    rows. Next observations are the columns of `next_observation`, if they are there. Otherwise, and
    for missing ends of episodes, see `from_arrays`.

    Args:
        path: A file, or a directory: its files that end in `.parquet`, in the order of their names.
        into: As for `from_arrays`.
        terminated: The column that says that an episode ended by itself at this row: bools, or
            numbers 0 and 1.
        truncated: The column that says that an episode was cut off after this row. None takes the
            column `truncated`, if it is there.
        **options: As for `from_arrays`.
        drop: As for `from_arrays`. Words cannot be stored: leave them out.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if a file is damaged, is no parquet, or lacks a
            column. If a value is missing, or a list has another length than in the first row.
        FileNotFoundError: If there is no such file.
        TypeError: As from `from_arrays`.
        ImportError: If pyarrow is not installed.

    Cost: as of `from_arrays`, and the memory of one row group of each column.

    Examples:
        >>> import numpy as np, os, pyarrow, pyarrow.parquet, tempfile
        >>> from fbuf_adapters.datasets import from_parquet
        >>> path = os.path.join(tempfile.mkdtemp(), "walk.parquet")
        >>> rows = {"observation": [[0.0, 1.0]] * 4, "done": [False, True] * 2, "cut": [False] * 4}
        >>> pyarrow.parquet.write_table(pyarrow.table(rows), path)
        >>> ends = {"terminated": "done", "truncated": "cut"}
        >>> from_parquet(path, **ends, casts={"observation": "float32"}, progress=False)
        State(Uniform, 4 of 4 rows)
    """
    where = "from_parquet"
    table = Table(where, files_of(where, local_path(where, path)))
    column = lambda name: Column(table, name)
    drop = options.pop("drop", ())
    return load(_flat(where, table.names, column, terminated, truncated, drop), into, **options)


@loader
def from_pandas(
    frame: Any,
    into: Any = None,
    *,
    terminated: str = "terminated",
    truncated: str | None = None,
    **options: Unpack[Options],
) -> Any:
    """Load a data frame with a row a step, episode after episode, into a buffer.

    Each column is a field; a dot in its name makes a dict. A column may hold arrays or lists, which
    must have one shape in all rows. The index of the frame is left out.

    Args:
        frame: A `pandas.DataFrame`, or a `polars.DataFrame`.
        into: As for `from_arrays`.
        terminated: As for `from_parquet`.
        truncated: As for `from_parquet`.
        **options: As for `from_arrays`.
        drop: As for `from_parquet`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if the frame lacks a column, or has two of a name.
            If a value is missing, or has another shape than in the first row.
        TypeError: As from `from_arrays`; and if `frame` is no data frame.

    Cost: as of `from_arrays`, and a copy of the columns that hold arrays.

    Examples:
        >>> import pandas  # doctest: +SKIP
        >>> from fbuf_adapters.datasets import from_pandas
        >>> columns = {"speed": [0.0, 1.0], "done": [0, 1], "truncated": [0, 0]}
        >>> frame = pandas.DataFrame(columns)  # doctest: +SKIP
        >>> from_pandas(frame, terminated="done", casts={"speed": "float32"})  # doctest: +SKIP
        State(Uniform, 2 of 2 rows)
    """
    where = "from_pandas"
    names: list[Any] = list(getattr(frame, "columns", ()))
    if not names or not hasattr(frame, "__getitem__"):
        raise TypeError(
            f"{where}: frame must be a data frame with columns, got {type(frame).__name__}; give "
            "arrays to from_arrays"
        )
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise DatasetError(
            f"{where}: the columns are called {names[:5]}{'...' * (len(names) > 5)}, and each must "
            "have a name of its own, which is a str; give frame.rename(columns=...)"
        )
    column = lambda name: _values(where, name, frame[name])
    drop = options.pop("drop", ())
    return load(_flat(where, names, column, terminated, truncated, drop), into, **options)


_ENDS = ("done", "dones", "terminal", "terminals", "is_terminal", "next.done")
"""Other usual names of the column of ends."""


def _flat(
    where: str,
    names: list[str],
    column: Callable[[str], Any],
    terminated: str,
    truncated: str | None,
    drop: Iterable[str],
) -> Flat:
    """Return the columns of a table, except those to drop."""
    if isinstance(drop, str):
        raise TypeError(f"{where}: drop must be a list of names, such as [{drop!r}]")
    drop = tuple(drop)
    shown = ", ".join(map(foreign_files.printable, names)) or "none"
    for argument, name in (("terminated", terminated), ("truncated", truncated)):
        if name is not None and name not in names:
            other = next((other for other in _ENDS if other in names), None)
            advice = f"; if episodes end by {other}, give terminated={other!r}"
            raise DatasetError(
                f"{where}: {argument} is {name!r}, which no column is called; there are {shown}"
                f"{advice if other and argument == 'terminated' else ''}"
            )
    told = truncated if truncated is not None else "truncated" if "truncated" in names else None
    for name in drop:
        if not any(f"{other}.".startswith(f"{name}.") for other in names):
            raise DatasetError(
                f"{where}: drop has {name!r}, which no column is called; there are {shown}"
            )
    apart = {terminated, told}
    left = [
        name
        for name in names
        if name not in apart and not any(f"{name}.".startswith(f"{of}.") for of in drop)
    ]
    if not left:
        raise DatasetError(f"{where}: no column is left to be a field; there are {shown}")
    whole = lambda name: (found := column(name))[slice(0, found.shape[0])]
    ended = flags(where, terminated, whole(terminated))
    cut = np.zeros_like(ended) if told is None else flags(where, told, whole(told))
    advice = "give truncated, the column that says so" if told is None else ""
    fields = {name: column(name) for name in left}
    ends = Ends(ended, cut, told is not None, advice)
    return Flat(where, fields, ends, following=under(fields, NEXT))


def _values(where: str, name: str, series: Any) -> Any:
    """Return a column of a data frame as an array; one of arrays or lists as `[rows, ...]`."""
    if _missing(series):  # `to_numpy` would convert them to NaN
        raise DatasetError(
            f"{where}: {name} has rows without a value; fill these in, or leave the column out "
            f"with drop=[{name!r}]"
        )
    values = np.asarray(series.to_numpy())
    if values.dtype != object:
        return values
    try:
        rows = [np.asarray(row) for row in values]
        stacked = np.stack(rows) if rows else np.zeros(0)
    except ValueError:
        shapes = sorted({np.shape(row) for row in values})[:3]
        raise DatasetError(
            f"{where}: {name} has rows of the shapes {shapes}; they must be alike"
        ) from None
    if stacked.dtype.kind not in "biufc":
        raise DatasetError(
            f"{where}: {name} holds {type(values[0]).__name__}s or missing values, which cannot be "
            f"stored; make numbers of them, or leave it out with drop=[{name!r}]"
        )
    return stacked


def _missing(series: Any) -> bool:
    """Return whether rows of a column have no value. NaN in a column of NumPy's floats is one."""
    if hasattr(series, "null_count"):  # polars
        return bool(series.null_count())
    of_numpy = isinstance(getattr(series, "dtype", np.dtype(object)), np.dtype)
    return not of_numpy and bool(series.isna().any())
