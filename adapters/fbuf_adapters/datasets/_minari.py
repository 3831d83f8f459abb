"""Minari's data sets into a buffer."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Unpack

import jax
import numpy as np

from fbuf.adapter_api import foreign_files, local_path
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._fields import (
    Array,
    flags,
    info_names,
    named,
    native,
    spec,
    squeezed,
    within,
)
from fbuf_adapters.datasets._loading import Options, load, loader
from fbuf_adapters.datasets._source import Block, RowFlags, Source


@loader
def from_minari(
    dataset: Any,
    into: Any = None,
    *,
    infos: Sequence[str] = (),
    **options: Unpack[Options],
) -> Any:
    """Load a data set of Minari into a buffer, episode after episode.

    Minari has one observation more than steps in each episode. The last observation is the next
    observation at the end, and the observations before it become the field `observation`. The
    fields `action` and `reward` go with them. The flags `terminations` and `truncations` are
    `terminated` and `truncated`. Dict and tuple spaces are dicts and tuples. The names are those of
    the collectors, so loaded and collected rows fit into one buffer.

    Minari stores rewards as float64 and discrete actions as int64. Say that they may be cast:
    `casts={"reward": "float32", "action": "int32"}`.

    Args:
        dataset: A `minari.MinariDataset`, filtered or not. Or the id of a data set on this machine:
            `minari.download_dataset` gets it, and `MINARI_DATASETS_PATH` says where it is. Or the
            path of its directory.
        into: As for `from_arrays`. The item may have a field `next_observation`, which then is the
            true one in each row.
        infos: More fields to load, by their names in the infos that `env.step` returned with the
            row's step. If an info has one entry more than there are steps, the first entry is of
            the reset, and left out.
        **options: As for `from_arrays`.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`. And if an episode has no end, an end in its middle, or
            fields of another length, shape or dtype than the first episode. And if the episodes
            have another number of steps than the metadata of the data set say. Both are known only
            when an episode is read, so episodes before it may have been added.
        TypeError: As from `from_arrays`; and if `dataset` is no data set, or `infos` no list of
            names.
        FileNotFoundError: If there is no such data set on this machine.
        ImportError: If minari is not installed.

    Cost: as for `from_arrays`, and the memory of one episode. Minari takes a few milliseconds an
    episode.

    Examples:
        >>> import fbuf
        >>> from fbuf_adapters.datasets import from_minari
        >>> casts = {"reward": "float32", "action": "int32"}
        >>> state = from_minari("cartpole/test-v0", next_of="observation", casts=casts)
        ... # doctest: +SKIP

    References:
        Younis et al., 2024: Minari. https://minari.farama.org
    """
    minari = needed("from_minari", "minari")
    return load(_Episodes(_opened(minari, dataset), infos), into, **options)


def _opened(minari: Any, dataset: Any) -> Any:
    if hasattr(dataset, "iterate_episodes"):
        return dataset
    if not isinstance(dataset, str | os.PathLike):
        raise TypeError(
            "from_minari: dataset must be a minari.MinariDataset, an id or a path, got "
            f"{type(dataset).__name__}"
        )
    folder = str(local_path("from_minari", dataset))
    for path in (os.path.join(folder, "data"), folder):
        if os.path.exists(os.path.join(path, "metadata.json")):
            _require_plain(path)
            return minari.MinariDataset(path)
    if isinstance(dataset, str):
        kept = minari.storage.datasets_root_dir.get_dataset_path(dataset)
        _require_plain(os.path.join(kept, "data"))
        return minari.load_dataset(dataset)
    raise FileNotFoundError(f"from_minari: there is no data set of Minari in {folder!r}")


def _require_plain(folder: str) -> None:
    """Refuse pipes, on which Minari would hang, and links to another directory."""
    root = pathlib.Path(folder).resolve()
    for name in ("metadata.json", "main_data.hdf5"):
        try:
            path = foreign_files.inside(root, name, links=True)
            if path.exists():
                foreign_files.size(path)
        except foreign_files.Refusal as error:
            raise unreadable("from_minari", root / name, "data set of Minari", error) from error


class _Episodes(Source):
    """A data set of Minari, which has all last observations."""

    where = "from_minari"

    def __init__(self, dataset: Any, infos: Any) -> None:
        self._dataset = dataset
        self._infos = info_names(self.where, infos, ("observation", "action", "reward"))
        self.rows, self.ends = int(dataset.total_steps), len(dataset)
        with_steps = (episode for episode in self._episodes() if len(episode.rewards))
        first = next(with_steps, None)
        if first is not None and not self.rows:
            self._miscounted(f"episode {first.id} has {len(first.rewards)}")
        self.item: Any = {} if first is None else jax.tree.map(spec, self._tree(first))

    def blocks(self, names: list[str], next_of: str | None, size: int) -> Iterator[Block]:
        """Yield each episode as a block."""
        row = 0
        for episode in self._episodes():
            steps = len(episode.rewards)
            if row + steps > self.rows:
                self._miscounted(f"episode {episode.id} ends after {row + steps}")
            if not steps:
                continue
            leaves = named(self._tree(episode))
            observed = {} if next_of is None else within(leaves, next_of)
            for name in {*names, *observed}:
                self._check(episode, leaves, name)
            yield Block(
                fields={name: self._of_steps(name, leaves[name], steps) for name in names},
                following={name: leaf[1:] for name, leaf in observed.items()},
                flags=self._flags(episode, steps),
                episode=int(episode.id),
            )
            row += steps
        if row < self.rows:
            self._miscounted(f"the episodes have {row}")

    def _miscounted(self, found: str) -> NoReturn:
        """Refuse a data set whose metadata give another number of steps."""
        raise DatasetError(
            f"{self.where}: the metadata of the data set say that it has {self.rows} steps, and "
            f"{found}; correct total_steps in its metadata.json, or write the data set anew"
        )

    def _episodes(self) -> Iterator[Any]:
        """Yield the episodes in order, and read each on demand."""
        episodes = iter(self._dataset.iterate_episodes())
        for number in self._dataset.episode_indices:
            try:
                episode = next(episodes)
            except Exception as error:
                raise DatasetError(
                    f"{self.where}: episode {number} cannot be read: {error}"
                ) from error
            yield episode

    def _tree(self, episode: Any) -> Any:
        """Return the fields as arrays, with all entries."""
        tree = {
            "observation": episode.observations,
            "action": episode.actions,
            "reward": squeezed(native(episode.rewards))[:],
        }
        for name in self._infos:
            if name not in (episode.infos or {}):
                there = ", ".join(episode.infos or {}) or "none"
                raise DatasetError(
                    f"{self.where}: episode {episode.id} has no info {name!r}; there are {there}"
                )
            tree[name] = episode.infos[name]
        is_list = lambda part: isinstance(part, list)  # strings
        tree = jax.tree.map(native, tree, is_leaf=is_list)
        for name, leaf in named(tree).items():
            if not leaf.ndim:
                raise DatasetError(
                    f"{self.where}: episode {episode.id}: {name} is one value, and not one a step"
                )
        return tree

    def _check(self, episode: Any, leaves: dict[str, Array], name: str) -> None:
        """Refuse a leaf of another length or shape than the steps have."""
        steps = len(episode.rewards)
        at = f"{self.where}: episode {episode.id}: {name}"
        if name not in leaves:
            raise DatasetError(f"{at} is missing, which the first episode has")
        more = self._is_observed(name)
        allowed = {steps + 1} if more else {steps}
        if self._is_info(name):
            allowed.add(steps + 1)
        if len(leaves[name]) not in allowed:
            raise DatasetError(
                f"{at} has {len(leaves[name])} entries, and {steps} steps need {steps + more}"
            )
        usual = named(self.item)[name].shape
        if leaves[name].shape[1:] != usual:
            raise DatasetError(
                f"{at} has shape {leaves[name].shape[1:]}, and in the first episode it has {usual}"
            )

    def _flags(self, episode: Any, steps: int) -> RowFlags:
        """Return the flags of an episode, which must end at its last step and nowhere else."""
        both: list[Array] = []
        for name in ("terminations", "truncations"):
            flag = flags(self.where, name, getattr(episode, name), int(episode.id))
            if len(flag) != steps:
                raise DatasetError(
                    f"{self.where}: episode {episode.id}: {name} has {len(flag)} entries, and "
                    f"there are {steps} steps"
                )
            if flag[:-1].any():
                raise DatasetError(
                    f"{self.where}: episode {episode.id}: {name} is True at step "
                    f"{int(np.argmax(flag))} of {steps}, before the last one; an episode ends once"
                )
            both.append(flag)
        if not (both[0][-1] or both[1][-1]):
            raise DatasetError(
                f"{self.where}: episode {episode.id} has no end: neither terminations nor "
                "truncations is True at its last step; write it with truncations[-1] = True"
            )
        return RowFlags(*both)

    def _is_info(self, name: str) -> bool:
        """Return whether a leaf belongs to an info, whose name may have dots."""
        return any(name == info or name.startswith(f"{info}.") for info in self._infos)

    def _is_observed(self, name: str) -> bool:
        """Return whether a leaf has one entry more than there are steps, the last one."""
        return name.partition(".")[0] == "observation" and not self._is_info(name)

    def _of_steps(self, name: str, leaf: Array, steps: int) -> Array:
        """Return the entries for the steps."""
        return leaf[:steps] if self._is_observed(name) else leaf[-steps:]
