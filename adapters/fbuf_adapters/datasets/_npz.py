"""npz files into a buffer, and a buffer into an npz file."""

from __future__ import annotations

import math
import operator
import os
import zipfile
from collections.abc import Iterable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.adapter_api import explain_full_disk, local_path, write_files
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError, advice_on_names
from fbuf_adapters.datasets._fields import NEXT, Array, flags, named, under
from fbuf_adapters.datasets._flat import LAST, Flat, Last
from fbuf_adapters.datasets._loading import Options, load, loader
from fbuf_adapters.datasets._npz_members import Npz, Unreadable, begin, is_native, opened, reading
from fbuf_adapters.datasets._ordered_rows import OrderedRows

_LAST_ROW = "last_observation_row"
"""The numbers of the rows whose next observations are `LAST`."""

_LAST_OF = "last_observation_of"
"""The field of the observations in `LAST`. Old files lack this array."""

_DTYPES = "dtypes"
"""Lines `name=dtype`, of arrays whose dtypes NumPy does not know."""

_OWN = ("terminated", "truncated", _LAST_ROW, _LAST_OF, _DTYPES)


@loader
def from_npz(path: str | os.PathLike[str], into: Any = None, **options: Unpack[Options]) -> Any:
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
        **options: As for `from_arrays`.

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
        return load(_flat(where, file), into, **options)


def _flat(where: str, file: Npz) -> Flat:
    """Return the arrays of a file."""
    names, dtypes = file.names, dict[str, Any]()
    member = lambda name: file.member(name, dtypes.get(name))

    def whole(name: str) -> Any:
        found = member(name)
        return found[slice(0, found.shape[0])] if found.shape else np.empty(0)

    apart = {"terminated", "truncated"}
    if _DTYPES in names and member(_DTYPES).dtype.kind == "U":  # otherwise a field has that name
        apart.add(_DTYPES)
        with reading(_DTYPES):
            lines = [str(line).rpartition("=") for line in whole(_DTYPES)]
            dtypes |= {name: np.dtype(jnp.dtype(dtype)) for name, _, dtype in lines}
    if "terminated" not in names:
        raise DatasetError(
            f"{where}: the file has no 'terminated', which says where episodes end; it has "
            f"{', '.join(names) or 'nothing'}; rename its arrays: observation, action, reward, "
            "next_observation, terminated, truncated; or from_arrays(renamed, terminated=...)"
            f"{advice_on_names(names)}"
        )
    terminated = flags(where, "terminated", whole("terminated"))
    told = "truncated" in names
    truncated, advice = np.zeros_like(terminated), "write an array 'truncated' into the file, too"
    if told:
        truncated = flags(where, "truncated", whole("truncated"))
        advice = "mark their ends in 'truncated'"
    last = None
    if _LAST_ROW in names and (of_last := under(dict.fromkeys(names), LAST)):
        kept = {name: whole(LAST + name) for name in of_last}
        rows = whole(_LAST_ROW)
        if any(leaf.shape[0] != len(rows) for leaf in kept.values()) or rows.dtype.kind != "i":
            raise Unreadable(f"{_LAST_ROW} must be an int for each entry of {LAST}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(terminated):
            raise Unreadable(f"{_LAST_ROW} must be from 0 to {len(terminated) - 1}")
        with reading(_LAST_OF):
            last = Last(kept, rows, str(whole(_LAST_OF)[0]) if _LAST_OF in names else None)
        apart |= {_LAST_ROW, _LAST_OF, *(LAST + name for name in kept)}
    fields = {name: member(name) for name in names if name not in apart}
    # A buffer with last observations knows the unknown ones; a field does not.
    following = under(fields, NEXT) if last is None else {}
    ends = Ends(terminated, truncated, told, advice)
    return Flat(where, fields, ends, following=following, last=last)


def to_npz(state: Any, path: str | os.PathLike[str]) -> None:
    """Write all rows of a buffer into an npz file, episode after episode.

    `N` is the number of rows. Environments come one after another, the oldest row of each first.
    Removed rows are left out. `from_npz` makes the same rows of the file; so do `numpy.load` and
    other readers of npz. To go on training later use `fbuf.save`, which also keeps priorities and
    ids.

    The file has an array `[N, ...]` for each leaf, such as `observation` or `observation.camera`,
    and bool `[N]` `terminated` and `truncated`. A row is truncated if the next row of its episode
    is not there: the newest row, and a row before a removed one. A buffer made with `next_of` has
    three more arrays. The known observations after the last rows of episodes are in
    `last_observation`. The numbers of these rows are in `last_observation_row`, as int64, and the
    name of the field is in `last_observation_of`. The array `dtypes` names the dtypes that NumPy
    lacks. So no field may have one of these names.

    Args:
        state: The buffer, a `fbuf.State` or a `HostStore`; not consumed.
        path: The file. An older file is replaced by a rename once the new one is on the disk. At
            any moment the old file or the new one is there, whole.

    Raises:
        DatasetError: If the buffer is empty, or its item is no dict. If a field has a name that the
            file has for itself. If a key is no string, is a number or has a dot: `from_npz` would
            make another tree of such an item.
        TypeError: If `state` is no buffer.
        RuntimeError: If `state` has been consumed.
        OSError: If the file cannot be written. An older file stays.

    Cost: O(N) time, and the memory of a chunk of rows and of the last observations.

    Examples:
        >>> import fbuf, jax.numpy as jnp, os, tempfile
        >>> from fbuf_adapters.datasets import from_npz, to_npz
        >>> state = fbuf.init({"reward": 0.0}, capacity=8)
        >>> state = fbuf.add(state, {"reward": jnp.arange(3.0)})
        >>> path = os.path.join(tempfile.mkdtemp(), "rows.npz")
        >>> to_npz(state, path)
        >>> from_npz(path)
        State(Uniform, 3 of 3 rows)
    """
    where = "to_npz"
    final = local_path(where, path)
    stored = OrderedRows(where, state)
    rows = np.arange(len(stored.slots))
    if not len(rows):
        raise DatasetError(f"{where}: the buffer holds no rows")
    if not isinstance(stored.item, dict):
        raise DatasetError(
            f"{where}: the item is a {type(stored.item).__name__}, and the arrays of a file have "
            "names; make the item a dict"
        )
    _check_names(where, stored.item)
    ends = np.flatnonzero(stored.terminated | stored.truncated)
    small: dict[str, Array] = {"terminated": stored.terminated, "truncated": stored.truncated}
    if stored.next_of is not None:
        led_to, known = stored.led_to(ends)
        small |= {LAST + name: leaf[known] for name, leaf in led_to.items()}
        small[_LAST_ROW] = ends[known].astype(np.int64)
    leaves = named(stored.item)
    dtypes = {name: np.dtype(of.dtype) for name, of in {**leaves, **small}.items()}
    foreign = [f"{name}={dtype.name}" for name, dtype in dtypes.items() if not is_native(dtype)]
    if stored.next_of is not None:
        small[_LAST_OF] = np.array([stored.next_of])
    if foreign:
        small[_DTYPES] = np.array(foreign)
    arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any], Iterable[Array]]] = {
        name: (array.shape, array.dtype, [array]) for name, array in small.items()
    }
    for name, leaf in leaves.items():
        parts = map(operator.itemgetter(name), stored.read(rows, name))
        arrays[name] = (len(rows), *leaf.shape), dtypes[name], parts

    def write(out: Any) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
            for name, (shape, dtype, parts) in arrays.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    begin(member, shape, dtype)
                    for part in parts:
                        member.write(np.ascontiguousarray(part).tobytes())

    nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype, _ in arrays.values())
    with explain_full_disk(where, final.parent, nbytes):
        write_files(final.parent, {final.name: write})


def _check_names(where: str, item: Any) -> None:
    """Refuse names that `from_npz` would turn into another tree."""
    advice = "call it something else in the item, or use fbuf.save, which keeps any names"
    for path, _ in jax.tree_util.tree_flatten_with_path(item)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        for part in path:
            key = part.key if isinstance(part, jax.tree_util.DictKey) else "a"
            if not isinstance(key, str) or "." in key or key.isdecimal():
                raise DatasetError(
                    f"{where}: the item has {name!r}, whose key {key!r} cannot be told from a "
                    f"place in a tuple or in a dict of dicts; {advice}"
                )
        if name in _OWN or under({name: None}, LAST):
            raise DatasetError(
                f"{where}: the item has a field {name!r}, and the file has an array of this name "
                f"for itself; {advice}"
            )
