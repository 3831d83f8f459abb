"""npz files into a buffer."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fbuf.adapter_api import Sampler, local_path
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError, unreadable
from fbuf_adapters.datasets._fields import NEXT, flags, under
from fbuf_adapters.datasets._flat import LAST, Flat, Last
from fbuf_adapters.datasets._loading import Options, load
from fbuf_adapters.datasets._npz_members import Member

LAST_ROW = "last_observation_row"
"""The numbers of the rows whose next observations are `LAST`."""

LAST_OF = "last_observation_of"
"""The field whose next values `LAST` are. Old files lack it."""

DTYPES = "dtypes"
"""Lines `name=dtype`, of arrays whose dtypes NumPy does not know."""


def from_npz(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    sampler: Sampler | None = None,
    next_of: str | None = None,
    casts: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    progress: bool | None = None,
) -> Any:
    """Load an npz file, of `to_npz` or your own, into a buffer.

    The arrays have one axis of rows, episode after episode. The file must have an array
    `terminated`, and may have `truncated`; the other arrays are fields. The name
    `observation.camera` stands for the field `camera` of `observation`, and `observation.0` for the
    first part of a tuple. Next observations are the rows of `next_observation`, if it is there; in
    a file of `to_npz`, the observations that the buffer kept. A warning comes if ends of episodes
    seem to be missing, and if the rows themselves show the ends, see `from_arrays`.

    Args:
        path: The file.
        into: As for `from_arrays`.
        sampler: As for `from_arrays`.
        next_of: As for `from_arrays`.
        casts: As for `from_arrays`.
        drop: As for `from_arrays`.
        progress: As for `from_arrays`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if the file is cut off, damaged, or no npz. A
            flipped byte is found at the end of its array, so rows may have been added. Nothing in
            the file is run: there is no pickle.
        TypeError: As from `from_arrays`.

    Cost: as of `from_arrays`; the flags are read first, the rest a chunk at a time, but an array in
    Fortran order as a whole.

    Examples:
        >>> import numpy as np, os, tempfile
        >>> from fbuf_adapters.datasets import from_npz
        >>> path = os.path.join(tempfile.mkdtemp(), "walk.npz")
        >>> ends = np.arange(4) % 2 == 1
        >>> rows = {"observation": np.zeros((4, 2), np.float32)}
        >>> np.savez(path, **rows, terminated=ends, truncated=np.zeros(4, bool))
        >>> from_npz(path)
        State(Uniform, 4 of 4 rows)
    """
    where = "from_npz"
    path = local_path(where, path)
    try:
        with zipfile.ZipFile(path) as file, contextlib.ExitStack() as held:
            data = _flat(where, file, held)
            return load(where, data, into, Options(sampler, next_of, casts, drop, progress))
    except (zipfile.BadZipFile, zlib.error, EOFError, _Unreadable) as error:
        raise unreadable(where, path, "npz", error) from error


class _Unreadable(Exception):
    """An array that cannot be read."""


def _flat(where: str, file: zipfile.ZipFile, held: contextlib.ExitStack) -> Flat:
    """Return the arrays of a file, which are open as long as `held` is."""
    names = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
    for name in names:
        if names.count(name) > 1:
            raise DatasetError(
                f"{where}: the file has two arrays {name!r}, and only one of them can be read; "
                "write it again with two names"
            )
    dtypes: dict[str, Any] = {}

    def member(name: str) -> Member:
        source = lambda: held.enter_context(file.open(f"{name}.npy"))
        try:
            return Member(source, name, dtypes.get(name))
        except ValueError as error:
            raise _Unreadable(str(error)) from error

    def whole(name: str) -> Any:
        found = member(name)
        return found[slice(0, found.shape[0])] if found.shape else np.empty(0)

    apart = {"terminated", "truncated"}
    if DTYPES in names and member(DTYPES).dtype.kind == "U":  # else a field has that name
        apart.add(DTYPES)
        lines = [str(line).rpartition("=") for line in whole(DTYPES)]
        try:
            dtypes |= {name: np.dtype(jnp.dtype(dtype)) for name, _, dtype in lines}
        except TypeError as error:
            raise _Unreadable(f"{DTYPES}: {error}") from error
    if "terminated" not in names:
        raise DatasetError(
            f"{where}: the file has no 'terminated', which says where episodes end; it has "
            f"{', '.join(names) or 'nothing'}; rename its arrays: observation, action, reward, "
            "next_observation, terminated, truncated; or from_arrays(renamed, terminated=...)"
        )
    terminated = flags(where, "terminated", whole("terminated"))
    told = "truncated" in names
    truncated, advice = np.zeros_like(terminated), "write an array 'truncated' into the file, too"
    if told:
        truncated = flags(where, "truncated", whole("truncated"))
        advice = "mark their ends in 'truncated'"
    last = None
    if LAST_ROW in names and (of_last := under(dict.fromkeys(names), LAST)):
        kept = {name: whole(LAST + name) for name in of_last}
        rows = whole(LAST_ROW)
        if any(leaf.shape[0] != len(rows) for leaf in kept.values()) or rows.dtype.kind != "i":
            raise _Unreadable(f"{LAST_ROW} must be an int for each entry of {LAST}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(terminated):
            raise _Unreadable(f"{LAST_ROW} must be from 0 to {len(terminated) - 1}")
        last = Last(kept, rows, str(whole(LAST_OF)[0]) if LAST_OF in names else None)
        apart |= {LAST_ROW, LAST_OF, *(LAST + name for name in kept)}
    fields = {name: member(name) for name in names if name not in apart}
    # A buffer that kept last observations knows which of them are unknown; a field does not.
    following = under(fields, NEXT) if last is None else {}
    ends = Ends(terminated, truncated, told, advice)
    return Flat(where, fields, ends, following=following, last=last)
