"""The rows of LeRobot's parquet files, of which a part is read at a time."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._fields import Array
from fbuf_adapters.datasets._lerobot_metadata import EXTRA, LeRobotMetadata

_OPEN_FILES = 16


class Rows:
    """The rows of some episodes, in the order of the files.

    Args:
        where: The function that was called, for errors.
        metadata: The metadata of the data set.
        episodes: The numbers of the episodes.

    Attributes:
        episode: int64 `[rows]`; the number of the row's episode.
        frame: int64 `[rows]`; the number of the row in its episode.

    Raises:
        DatasetError: If the files have other episodes or steps than the metadata say.
    """

    def __init__(self, where: str, metadata: LeRobotMetadata, episodes: Sequence[int]) -> None:
        self._where = where
        self._arrow = needed(where, "pyarrow", EXTRA)
        parquet = needed(where, "pyarrow.parquet", EXTRA)
        self._open = functools.lru_cache(_OPEN_FILES)(parquet.ParquetFile)
        self._groups: dict[str, tuple[Any, Any]] = {}
        self._stretches: list[tuple[pathlib.Path, int, int]] = []
        numbers: dict[str, list[Array]] = {"episode_index": [], "frame_index": []}
        for file in dict.fromkeys(metadata.data[episode] for episode in sorted(episodes)):
            of_file = self._counted(file, "episode_index", slice(None))
            wanted = np.isin(of_file, episodes)
            edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
            for start, stop in edges.reshape(-1, 2).tolist():
                self._stretches.append((file, start, stop - start))
                for name, parts in numbers.items():
                    parts.append(self._counted(file, name, slice(start, stop)))
        self._starts = np.cumsum([0, *(count for _, _, count in self._stretches)])
        empty = [np.zeros(0, np.int64)]
        self.episode, self.frame = (np.concatenate(parts or empty) for parts in numbers.values())
        self._check(metadata, episodes)

    def read(self, name: str, part: slice) -> Iterator[Any]:
        """Yield the arrays of pyarrow that make up a part of a column; their types may differ."""
        first = int(np.searchsorted(self._starts, part.start, "right")) - 1
        for (file, start, count), begin in zip(
            self._stretches[first:], self._starts[first:].tolist(), strict=False
        ):
            if begin >= part.stop:
                break
            low, high = max(part.start - begin, 0), min(part.stop - begin, count)
            yield from self._read(file, name, slice(start + low, start + high))

    def at(self, row: int) -> str:
        """Return the place of a row in words."""
        return f"episode {self.episode[row]}, frame {self.frame[row]}"

    def _check(self, metadata: LeRobotMetadata, episodes: Sequence[int]) -> None:
        """Refuse rows that are not the steps of the episodes, one after another."""
        counted = np.bincount(self.episode, minlength=len(metadata.lengths))
        for episode in sorted(set(episodes)):
            if counted[episode] != metadata.lengths[episode]:
                raise DatasetError(
                    f"{self._where}: the metadata say that episode {episode} has "
                    f"{metadata.lengths[episode]} steps, and the files have {counted[episode]} of "
                    "its rows; download the data set again, or write it anew with LeRobot"
                )
        ends = np.diff(self.episode, append=-1) != 0
        expected = np.where(np.append(True, ends[:-1])[: len(ends)], 0, np.roll(self.frame, 1) + 1)
        if (wrong := self.frame != expected).any():
            row = int(np.argmax(wrong))
            raise DatasetError(
                f"{self._where}: {self.at(row)} stands where frame {expected[row]} should; the "
                "steps of an episode must follow one another: write the data set anew with LeRobot"
            )

    def _counted(self, file: pathlib.Path, name: str, part: slice) -> Array:
        """Return rows of a file, of a column of single numbers."""
        parts = [found.to_numpy(zero_copy_only=False) for found in self._read(file, name, part)]
        return np.concatenate(parts or [np.zeros(0, np.int64)])

    def _read(self, file: pathlib.Path, name: str, part: slice) -> list[Any]:
        """Return rows of a file, of one column."""
        try:
            opened = self._open(file)
            groups = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
            parts: list[Any] = []
            begin = 0
            low, high, _ = part.indices(sum(groups))
            for number, count in enumerate(groups):
                if begin < high and begin + count > low:
                    group = self._group(file, number, name)
                    start = max(low - begin, 0)
                    parts.append(group.slice(start, min(high - begin, count) - start))
                begin += count
            return parts
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self._where}: the file {str(file)!r} is missing, which the metadata name; "
                "download the data set again"
            ) from error
        except (self._arrow.ArrowException, OSError) as error:
            raise unreadable(self._where, file, "parquet of LeRobot", error) from error

    def _group(self, file: pathlib.Path, number: int, name: str) -> Any:
        """Return a column of a group of rows; the one that was read last is kept."""
        if self._groups.get(name, (None, None))[0] != (file, number):
            opened = self._open(file)
            if name not in opened.schema_arrow.names:
                raise DatasetError(
                    f"{self._where}: the file {str(file)!r} has no column {name!r}, which the "
                    "metadata name; write the data set anew with LeRobot"
                )
            column = opened.read_row_group(number, columns=[name]).column(0).combine_chunks()
            plain = column.storage if hasattr(column, "storage") else column
            self._groups[name] = ((file, number), plain)
        return self._groups[name][1]
