"""OGBench's npz files into a buffer."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from fbuf.adapter_api import foreign_files, local_path
from fbuf_adapters.datasets._chunks import rows_at_once
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import Array, flags, info_names, spec
from fbuf_adapters.datasets._flat import Flat, Last
from fbuf_adapters.datasets._loading import Options, load, loader
from fbuf_adapters.datasets._npz_members import Member, Npz, opened

_CALLED = {"observation": "observations", "action": "actions"}


@loader
def from_ogbench(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    infos: Sequence[str] = (),
    **options: Unpack[Options],
) -> Any:
    """Load an npz file of OGBench into a buffer.

    The file has `observations`, `actions` and `terminals`, which become the fields `observation`
    and `action`. `terminals` mark the last state of each trajectory, whose action led nowhere. So
    this state is no row. As in OGBench's own loader it is the next observation of the row before,
    which is truncated. No row terminates, because the data were collected without a
    task: rewards and goals are the learner's.

    Args:
        path: The file, such as `~/.ogbench/data/antmaze-large-navigate-v0.npz`.
        into: As for `from_arrays`.
        infos: More fields to load: `"qpos"`, `"qvel"` or `"button_states"`.
        **options: As for `from_arrays`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if the file is cut off, damaged, no npz, or lacks
            an array.
        FileNotFoundError: If there is no such file.
        TypeError: As from `from_arrays`; and if `infos` is no list of names.

    Cost: as of `from_npz`. With `next_of`, the observations are read once more, and those of the
    last states are in memory.

    Examples:
        >>> import numpy as np, os, tempfile
        >>> from fbuf_adapters.datasets import from_ogbench
        >>> path = os.path.join(tempfile.mkdtemp(), "walk-v0.npz")
        >>> states, ends = np.zeros((6, 2), np.float32), np.arange(6) % 3 == 2
        >>> np.savez_compressed(path, observations=states, actions=states, terminals=ends)
        >>> from_ogbench(path, next_of="observation")
        State(Uniform, 4 of 4 rows)

    References:
        Park et al., 2024: OGBench: Benchmarking Offline Goal-Conditioned RL.
        https://arxiv.org/abs/2410.20092
    """
    where = "from_ogbench"
    names = info_names(where, infos, _CALLED)
    path = local_path(where, path)
    with opened(where, path) as file:
        return load(_flat(where, file, names), into, **options)


def _flat(where: str, file: Npz, infos: tuple[str, ...]) -> Flat:
    """Return the arrays of a file."""

    def member(name: str) -> Member:
        if name not in file.names:
            there = ", ".join(sorted(map(foreign_files.printable, file.names)))
            raise DatasetError(f"{where}: the file has no {name!r}; it has {there or 'nothing'}")
        return file.member(name)

    ends = member("terminals")
    if not ends.shape:
        raise DatasetError(f"{where}: terminals is one value, and must be one flag a row")
    last = flags(where, "terminals", ends[slice(0, ends.shape[0])])
    kept, fields = np.flatnonzero(~last), dict[str, Any]()
    called = _CALLED | {name: name for name in infos}
    for name, theirs in called.items():
        found = member(theirs)
        if found.shape[:1] != last.shape:
            raise DatasetError(
                f"{where}: {theirs} has shape {found.shape}, and terminals has {len(last)} rows"
            )
        fields[name] = _Some(found, kept)
    # Each row before a last state; some states have no row before them.
    before = np.flatnonzero(~last[:-1] & last[1:])
    truncated = np.isin(kept, before)
    observed = _Seldom(lambda: member("observations"), before + 1)
    led_to = Last({"": observed}, np.flatnonzero(truncated), "observation")
    return Flat(
        where,
        fields,
        Ends(np.zeros_like(truncated), truncated, True, ""),
        following={},
        last=led_to,
        called=called,
    )


class _Some:
    """A selection of rows of an array, read in order.

    Args:
        array: The array.
        rows: The numbers of the rows, ascending.
    """

    def __init__(self, array: Member, rows: Array) -> None:
        self._array, self._rows = array, rows
        self.shape, self.dtype = (len(rows), *array.shape[1:]), array.dtype

    def __getitem__(self, part: slice) -> Array:
        """Read the rows, and drop the rows between them."""
        rows = self._rows[part]
        # Continue behind the previous part: all rows are read in order.
        begin = int(self._rows[part.start - 1]) + 1 if part.start else 0
        end = int(rows[-1]) + 1 if len(rows) else begin
        return self._array[slice(begin, end)][rows - begin]


class _Seldom:
    """A few rows of an array, which is read at the first access.

    Args:
        open_array: Opens the array at its first row.
        rows: The numbers of the rows, ascending.
    """

    def __init__(self, open_array: Callable[[], Member], rows: Array) -> None:
        self._open, self._rows = open_array, rows
        array = open_array()
        self.shape, self.dtype = (len(rows), *array.shape[1:]), array.dtype

    def __getitem__(self, place: int) -> Array:
        """Return one row."""
        return self._found[place]

    @functools.cached_property
    def _found(self) -> Array:
        array = self._open()
        count = array.shape[0]
        found = np.empty(self.shape, self.dtype)
        size = rows_at_once([spec(array)], count)
        for start in range(0, count, size):
            stop = min(start + size, count)
            here = slice(*np.searchsorted(self._rows, (start, stop)))
            found[here] = array[slice(start, stop)][self._rows[here] - start]
        return found
