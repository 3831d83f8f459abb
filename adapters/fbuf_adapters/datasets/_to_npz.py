"""A buffer into an npz file."""

from __future__ import annotations

import math
import operator
import os
import zipfile
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from fbuf.adapter_api import explain_full_disk, local_path, write_files
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import Array, named, under
from fbuf_adapters.datasets._flat import LAST
from fbuf_adapters.datasets._from_npz import DTYPES, LAST_OF, LAST_ROW
from fbuf_adapters.datasets._npz_members import begin, is_native
from fbuf_adapters.datasets._ordered_rows import OrderedRows

_OWN = ("terminated", "truncated", LAST_ROW, LAST_OF, DTYPES)


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
        small[LAST_ROW] = ends[known].astype(np.int64)
    leaves = named(stored.item)
    dtypes = {name: np.dtype(of.dtype) for name, of in {**leaves, **small}.items()}
    foreign = [f"{name}={dtype.name}" for name, dtype in dtypes.items() if not is_native(dtype)]
    if stored.next_of is not None:
        small[LAST_OF] = np.array([stored.next_of])
    if foreign:
        small[DTYPES] = np.array(foreign)
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
    """Refuse names that `from_npz` would make another tree of."""
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
