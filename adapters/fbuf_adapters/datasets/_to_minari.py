"""A buffer into a data set of Minari."""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fbuf.adapter_api import require_free_space, warn
from fbuf_adapters.datasets._errors import DatasetError, needed
from fbuf_adapters.datasets._fields import NEXT, Array, named, under
from fbuf_adapters.datasets._npz_members import is_native
from fbuf_adapters.datasets._ordered_rows import OrderedRows

_FIELDS = ("observation", "action", "reward")

_SPARE = 2**20
"""The most bytes of HDF5 beside those of an episode."""


def to_minari(state: Any, dataset_id: str, **about: Any) -> Any:
    """Write the whole episodes of a buffer as a data set of Minari.

    The item needs the fields `observation`, `action` and `reward`, as the items of the collectors
    have them; all other fields become infos. NamedTuples and classes become dicts of their fields.
    Environments come one after another. Values and dtypes are those of the buffer, and images are
    stored as they are: JPEG, Minari's default, would change them.

    An episode needs its first row and its last observation. An episode is left out if its beginning
    was overwritten, if rows of it were removed, or if its last observation is not known. A warning
    counts the episodes that are left out. An open episode is written, too, and truncated at its
    newest row, as Minari's `DataCollector` does.

    Args:
        state: The buffer, a `fbuf.State` or a `HostStore`, made with `next_of="observation"`, or
            with a field `next_observation`; not consumed.
        dataset_id: The id in Minari, with a version: `"cartpole/expert-v0"`.
            `MINARI_DATASETS_PATH` says where data sets are.
        **about: Other arguments of `minari.create_dataset_from_buffers`: `env`, or
            `observation_space` and `action_space`; `author`, `description` and the like.
            `jpeg_encoding=True` makes images smaller, and changes them.

    Returns:
        The `minari.MinariDataset`.

    Raises:
        DatasetError: If a field is missing, or of a dtype that HDF5 lacks, such as bfloat16. If no
            next observations are kept, or no episode is whole. If observations or actions have
            another shape than the spaces, or `dataset_id` has no version.
        TypeError: If `state` is no buffer.
        OSError: If the disk has no room for the next episode.
        ValueError: By Minari, if there is a data set of this id, or if a space is missing.
        ImportError: If minari is not installed.

    If anything raises in the middle, Ctrl-C too, the data set is deleted.

    Cost: O(N) time, and the memory of a chunk of rows and of the longest episode.

    Examples:
        >>> from fbuf_adapters.datasets import to_minari
        >>> dataset = to_minari(state, "cartpole/mine-v0", env="CartPole-v1")  # doctest: +SKIP
    """
    where = "to_minari"
    minari = needed(where, "minari")
    if not re.search(r"-v\d+$", dataset_id):
        raise DatasetError(
            f"{where}: dataset_id must end in a version, as name-v0 does, got {dataset_id!r}"
        )
    stored = OrderedRows(where, state)
    leaves = named(stored.item)
    for field in _FIELDS:
        if not under(leaves, field):
            raise DatasetError(
                f"{where}: the item has no field {field!r}; it has {', '.join(leaves)}"
            )
    if stored.next_of != "observation" and not under(leaves, NEXT):
        raise DatasetError(
            f"{where}: Minari stores the observation after the last step, and this buffer keeps "
            f"none; make it with next_of='observation', or with a field {NEXT!r}"
        )
    foreign = {name: leaf.dtype.name for name, leaf in leaves.items() if not is_native(leaf.dtype)}
    if foreign:
        casts = dict.fromkeys(foreign, "float32")
        raise DatasetError(
            f"{where}: {', '.join(f'{name} is {dtype}' for name, dtype in foreign.items())}, which "
            "Minari's files cannot hold; write the buffer with to_npz, load that with "
            f"from_npz(path, next_of='observation', casts={casts}), and write the result"
        )
    ends = np.flatnonzero(stored.terminated | stored.truncated)
    starts = np.append(0, ends[:-1] + 1)
    whole = stored.whole[ends]
    complete = np.flatnonzero(whole)
    if not len(complete):
        raise DatasetError(f"{where}: the buffer has no whole episode")
    last, known = stored.led_to(ends[complete])
    left_out = len(ends) - int(known.sum())
    if left_out == len(ends):
        raise DatasetError(f"{where}: the last observation of no episode is known")
    if left_out:
        warn(
            f"{where}: {left_out} of {len(ends)} episodes or parts of them are left out: their "
            "beginning was overwritten, rows of them were removed, or their last observation is "
            "not known"
        )
    complete = complete[known]
    last = {name: leaf[known] for name, leaf in last.items()}
    buffers = _buffers(minari, stored, starts[complete], ends[complete], last)
    return _written(where, minari, dataset_id, stored.item, buffers, about)


def _buffers(
    minari: Any, stored: OrderedRows, starts: Array, ends: Array, last: dict[str, Array]
) -> Iterator[Any]:
    """Yield each episode in Minari's form, with its last observation."""
    tree, names = jax.tree.structure(stored.item), list(named(stored.item))
    rows = np.concatenate([np.arange(*span) for span in zip(starts, ends + 1, strict=True)])
    read = stored.read(rows)
    waiting: list[dict[str, Array]] = []  # read rows without an episode yet
    there = 0
    for number, length in enumerate((ends - starts + 1).tolist()):
        while there < length:
            waiting.append(next(read))
            there += len(next(iter(waiting[-1].values())))
        joined = waiting[0]
        if len(waiting) > 1:  # cutting a single part copies nothing
            joined = {name: np.concatenate([part[name] for part in waiting]) for name in joined}
        episode = {name: leaf[:length] for name, leaf in joined.items()}
        for name, leaf in last.items():
            observed = episode["observation" + name]
            episode["observation" + name] = np.append(observed, leaf[number][None], axis=0)
        fields = _plain(jax.tree.unflatten(tree, [episode[name] for name in names]))
        part = slice(starts[number], ends[number] + 1)
        yield minari.data_collector.EpisodeBuffer(
            observations=fields["observation"],
            actions=fields["action"],
            rewards=fields["reward"],
            terminations=stored.terminated[part],
            truncations=stored.truncated[part],
            infos={name: leaf for name, leaf in fields.items() if name not in (*_FIELDS, NEXT)},
        )
        waiting = [{name: leaf[length:] for name, leaf in joined.items()}]
        there -= length


def _nbytes(buffer: Any) -> int:
    """Return the bytes of an episode."""
    parts = (buffer.observations, buffer.actions, buffer.rewards, buffer.infos)
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(parts))


def _plain(tree: Any) -> Any:
    """Return a tree with dicts for NamedTuples and classes: Minari has only dicts and tuples."""
    below = lambda part: part is not tree
    parts = jax.tree_util.tree_flatten_with_path(tree, is_leaf=below)[0]
    if any(not path for path, _ in parts):
        return tree
    if isinstance(tree, tuple | list) and not hasattr(tree, "_fields"):
        return tuple(_plain(part) for part in tree)
    return {jax.tree_util.keystr(path, simple=True): _plain(part) for path, part in parts}


def _row(space: Any) -> Any:
    """Return one row of a space, as a tree."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        return {name: _row(part) for name, part in parts.items()}
    if parts is not None:
        return tuple(_row(part) for part in parts)
    return jax.ShapeDtypeStruct(space.shape or (), np.float32)


def _check_space(where: str, field: str, space: Any, item: Any) -> None:
    """Refuse a space whose elements have other parts or shapes than the rows."""
    shapes = lambda tree: {name: tuple(leaf.shape) for name, leaf in named(tree).items()}
    needs = shapes({field: _row(space)})
    has = {name: shape for name, shape in shapes(item).items() if under({name: 0}, field)}
    if has != needs:
        raise DatasetError(
            f"{where}: rows have the shapes {has}, and {field}_space has {needs}; give the "
            f"{field}_space of these rows"
        )


def _written(
    where: str,
    minari: Any,
    dataset_id: str,
    item: Any,
    buffers: Iterator[Any],
    about: dict[str, Any],
) -> Any:
    """Write a data set of episodes; delete it if anything raises."""
    options = {"jpeg_encoding": False, **about}
    path = pathlib.Path(minari.storage.datasets_root_dir.get_dataset_path(dataset_id))
    there = path.exists()
    try:
        # First an empty one, for which Minari finds the spaces, maybe from an environment.
        dataset = minari.create_dataset_from_buffers(dataset_id, [], **options)
        for field in ("observation", "action"):
            _check_space(where, field, getattr(dataset, f"{field}_space"), item)
        for buffer in buffers:
            # HDF5 crashes the process on a full disk.
            require_free_space(where, path, _SPARE + 2 * _nbytes(buffer))
            dataset.update_dataset_from_buffer([buffer])
    except BaseException:
        if not there:
            shutil.rmtree(path, ignore_errors=True)
        raise
    return dataset
