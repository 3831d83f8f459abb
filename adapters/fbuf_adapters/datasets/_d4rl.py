"""D4RL's flat HDF5 files into a buffer."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from fbuf.adapter_api import check, local_path
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError, advice_on_names
from fbuf_adapters.datasets._fields import NEXT, Array, flags, info_names, named, squeezed, under
from fbuf_adapters.datasets._flat import Flat
from fbuf_adapters.datasets._hdf5 import Hdf5, opened
from fbuf_adapters.datasets._loading import Options, load, loader

_CALLED = {"observation": "observations", "action": "actions", "reward": "rewards"}


@loader
def from_d4rl(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    infos: Sequence[str] = (),
    max_episode_steps: int | None = None,
    **options: Unpack[Options],
) -> Any:
    """Load a flat HDF5 file of D4RL into a buffer.

    The file has `observations`, `actions`, `rewards` and `terminals`, and may have `timeouts` and
    `next_observations`, each with one axis of rows. Groups of arrays are dict spaces. Rows get the
    fields `observation`, `action` and `reward`; `terminals` are `terminated`, and `timeouts` are
    `truncated`. Rewards and flags `[rows, 1]` are one number a row.

    Without `next_observations`, the following row has the next observation. At the end of an
    episode it is unknown: the following row is of another episode. Views that return next
    observations mask truncated rows. Rows that terminated count, with discount 0, and a warning
    counts these rows, see `from_arrays`.

    A file may lack `timeouts`, or have them False everywhere. With `next_observations`, the rows
    themselves show where an episode was cut off. Otherwise give `max_episode_steps`; if you do not,
    a warning comes, for episodes that were cut off are joined.

    Args:
        path: The file.
        into: As for `from_arrays`.
        infos: More fields to load: `"qpos"` is the file's `infos/qpos`.
        max_episode_steps: For a file without `timeouts`, at least 1: an episode that has not ended
            after this many steps is truncated. Steps are counted from the row after a terminal;
            with `next_observations`, from where they show that an episode begins.
        **options: As for `from_arrays`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if the file is cut off, is no HDF5, or lacks an
            array.
        TypeError: As from `from_arrays`; and if `infos` is no list of names.
        ImportError: If h5py is not installed.

    Cost: as of `from_arrays`; the flags of all rows are read first, the rest a chunk at a time.

    Examples:
        >>> import h5py, numpy as np, os, tempfile
        >>> from fbuf_adapters.datasets import from_d4rl
        >>> path = os.path.join(tempfile.mkdtemp(), "walks.hdf5")
        >>> with h5py.File(path, "w") as file:
        ...     for name in ("observations", "actions"):
        ...         file[name] = np.zeros((6, 2), np.float32)
        ...     file["rewards"] = np.ones(6, np.float32)
        ...     file["terminals"] = np.zeros(6, bool)
        ...     file["timeouts"] = np.arange(6) % 3 == 2
        >>> from_d4rl(path, next_of="observation")
        State(Uniform, 6 of 6 rows)

    References:
        Fu, Kumar, Nachum, Tucker, Levine, 2020: D4RL: Datasets for Deep Data-Driven Reinforcement
        Learning. https://arxiv.org/abs/2004.07219
    """
    where = "from_d4rl"
    names = info_names(where, infos, _CALLED)
    if max_episode_steps is not None:
        check.integer(where, "max_episode_steps", max_episode_steps)
    path = local_path(where, path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{where}: there is no file {os.fspath(path)!r}")
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        raise DatasetError(
            f"{where}: {os.fspath(path)!r} is no HDF5, but looks like an npz file; use from_npz, "
            "whose arrays are called observation, action, reward, terminated, truncated"
        )
    with opened(where, path) as file:
        return load(_flat(where, file, names, max_episode_steps), into, **options)


def _flat(where: str, file: Hdf5, infos: Sequence[str], steps: int | None) -> Flat:
    called = {"terminated": "terminals", "truncated": "timeouts"}
    fields: dict[str, Any] = {}
    for name, theirs in [*_CALLED.items(), *((name, f"infos/{name}") for name in infos)]:
        for leaf, array in _arrays(where, file, name, theirs).items():
            fields[leaf] = squeezed(array) if name == "reward" else array
            called[leaf] = theirs + leaf.removeprefix(name).replace(".", "/")
    following: dict[str, Any] = {}
    if file.has("next_observations"):
        following = under(_arrays(where, file, NEXT, "next_observations"), NEXT)
        called |= {NEXT + name: "next_observations" + name.replace(".", "/") for name in following}
    terminated = _flags(where, file, "terminals")
    cut = _flags(where, file, "timeouts") if file.has("timeouts") else np.zeros_like(terminated)
    told = bool(cut.any())  # timeouts are False everywhere in some files
    if told and steps is not None:
        raise DatasetError(
            f"{where}: the file has timeouts, so it says itself where episodes are truncated; "
            "leave max_episode_steps out"
        )
    advice = "give max_episode_steps" if steps is None else ""
    return Flat(
        where,
        fields,
        Ends(terminated, cut, told or steps is not None, advice, steps),
        following=following,
        called=called,
    )


def _arrays(where: str, file: Hdf5, name: str, theirs: str) -> dict[str, Any]:
    """Return the arrays of a field by name, without reading them."""
    if not file.has(theirs):
        raise DatasetError(
            f"{where}: the file has no {theirs!r}; it has {', '.join(file.names()) or 'nothing'}"
            f"{advice_on_names(file.names())}"
        )
    return named({name: file.tree(theirs)})


def _flags(where: str, file: Hdf5, name: str) -> Array:
    found = _arrays(where, file, name, name)
    if name not in found:
        raise DatasetError(f"{where}: {name} is a group of arrays, and must be one flag a row")
    return flags(where, name, found[name][()])
