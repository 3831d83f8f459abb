"""npz files into a buffer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fbuf.adapter_api import Sampler, local_path
from fbuf_adapters.datasets import _others
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, flags, under
from fbuf_adapters.datasets._flat import LAST, Flat, Last
from fbuf_adapters.datasets._loading import Options, load
from fbuf_adapters.datasets._npz_members import Npz, Unreadable, opened, reading

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
    with opened(where, path) as file:
        data = _flat(where, file)
        return load(where, data, into, Options(sampler, next_of, casts, drop, progress))


def _flat(where: str, file: Npz) -> Flat:
    """Return the arrays of a file."""
    names, dtypes = file.names, dict[str, Any]()
    member = lambda name: file.member(name, dtypes.get(name))

    def whole(name: str) -> Any:
        found = member(name)
        return found[slice(0, found.shape[0])] if found.shape else np.empty(0)

    apart = {"terminated", "truncated"}
    if DTYPES in names and member(DTYPES).dtype.kind == "U":  # else a field has that name
        apart.add(DTYPES)
        with reading(DTYPES):
            lines = [str(line).rpartition("=") for line in whole(DTYPES)]
            dtypes |= {name: np.dtype(jnp.dtype(dtype)) for name, _, dtype in lines}
    if "terminated" not in names:
        raise DatasetError(
            f"{where}: the file has no 'terminated', which says where episodes end; it has "
            f"{', '.join(names) or 'nothing'}; rename its arrays: observation, action, reward, "
            "next_observation, terminated, truncated; or from_arrays(renamed, terminated=...)"
            f"{_others.of_names(names)}"
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
            raise Unreadable(f"{LAST_ROW} must be an int for each entry of {LAST}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(terminated):
            raise Unreadable(f"{LAST_ROW} must be from 0 to {len(terminated) - 1}")
        with reading(LAST_OF):
            last = Last(kept, rows, str(whole(LAST_OF)[0]) if LAST_OF in names else None)
        apart |= {LAST_ROW, LAST_OF, *(LAST + name for name in kept)}
    fields = {name: member(name) for name in names if name not in apart}
    # A buffer that kept last observations knows which of them are unknown; a field does not.
    following = under(fields, NEXT) if last is None else {}
    ends = Ends(terminated, truncated, told, advice)
    return Flat(where, fields, ends, following=following, last=last)
