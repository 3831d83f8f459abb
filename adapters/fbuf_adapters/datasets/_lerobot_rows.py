"""The rows of LeRobot's parquet files, of which a part is read at a time."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fbuf_adapters.datasets import _parquet
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._fields import Array
from fbuf_adapters.datasets._lerobot_formats import EXTRA
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata

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
        self._open = functools.lru_cache(_OPEN_FILES)(lambda file: _opened(parquet, file))
        self._unlike = (self._arrow.ArrowException, OSError, ValueError, MemoryError)
        self._groups: dict[str, tuple[Any, Any]] = {}
        self._stretches = self._found(metadata, sorted(set(episodes)))
        self._starts = np.cumsum([0, *(count for _, _, count in self._stretches)])
        self.episode, self.frame = (
            np.concatenate(
                [self._counted(file, name, slice(n, n + m)) for file, n, m in self._stretches]
                or [np.zeros(0, np.int64)]
            )
            for name in ("episode_index", "frame_index")
        )
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

    def doubt(self, metadata: LeRobotMetadata) -> str:
        """Return a warning if the times of rows are not those of steps; else an empty string."""
        if "timestamp" not in metadata.features or not len(self.frame):
            return ""
        parts = self.read("timestamp", slice(0, len(self.frame)))
        seconds = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts])
        late = np.abs(seconds - self.frame / metadata.fps) > 0.5 / metadata.fps
        if not late.any():
            return ""
        return (
            f"the timestamps of {late.sum()} rows, first of {self.at(int(np.argmax(late)))}, are "
            f"more than half a step from frame_index / {metadata.fps:g}, as if frames were lost; "
            "windows and next observations count rows, and not seconds"
        )

    def _found(
        self, metadata: LeRobotMetadata, episodes: list[int]
    ) -> list[tuple[pathlib.Path, int, int]]:
        """Return where rows of episodes are: file, first row, and how many follow one another."""
        files = list(dict.fromkeys(metadata.data))
        numbers = {file: number for number, file in enumerate(files)}
        named = {numbers[metadata.data[episode]] for episode in episodes}
        places: list[tuple[int, int, int]] = []
        seen: set[int] = set()

        def look(number: int) -> None:
            of_row = self._counted(files[number], "episode_index", slice(None))
            wanted = np.isin(of_row, episodes)
            seen.update(of_row[wanted].tolist())
            edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
            places.extend((number, n, m - n) for n, m in edges.reshape(-1, 2).tolist())

        for number in named:
            look(number)
        # A converter of LeRobot 0.4.0 named the file before, in huggingface/lerobot#2401.
        lacking = {numbers[metadata.data[n]] + 1 for n in episodes if n not in seen} - named
        for number in lacking & set(range(len(files))):
            look(number)
        return [(files[number], first, count) for number, first, count in sorted(places)]

    def _counted(self, file: pathlib.Path, name: str, part: slice) -> Array:
        """Return rows of a file, of a column of single numbers."""
        parts = [found.to_numpy(zero_copy_only=False) for found in self._read(file, name, part)]
        return np.concatenate(parts or [np.zeros(0, np.int64)])

    def _read(self, file: pathlib.Path, name: str, part: slice) -> list[Any]:
        """Return rows of a file, of one column."""
        try:
            _, starts = self._open(file)
            low, high, _ = part.indices(int(starts[-1]))
            first = int(np.searchsorted(starts, low, "right")) - 1
            parts: list[Any] = []
            for number in range(first, int(np.searchsorted(starts, high))):
                begin, end = int(starts[number]), int(starts[number + 1])
                group = self._group(file, number, name)
                start = max(low - begin, 0)
                parts.append(group.slice(start, min(high, end) - begin - start))
            return parts
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self._where}: the file {str(file)!r} is missing, which the metadata name; "
                "download the data set again"
            ) from error
        except DatasetError:
            raise
        except self._unlike as error:
            raise unreadable(self._where, file, "parquet of LeRobot", error) from error

    def _group(self, file: pathlib.Path, number: int, name: str) -> Any:
        """Return a column of a group of rows; the one that was read last is kept."""
        if self._groups.get(name, (None, None))[0] != (file, number):
            opened, _ = self._open(file)
            if name not in opened.schema_arrow.names:
                raise DatasetError(
                    f"{self._where}: the file {str(file)!r} has no column {name!r}, which the "
                    "metadata name; write the data set anew with LeRobot"
                )
            column = opened.read_row_group(number, columns=[name]).column(name).combine_chunks()
            plain = column.storage if hasattr(column, "storage") else column
            self._groups[name] = ((file, number), plain)
        return self._groups[name][1]


def _opened(parquet: Any, file: pathlib.Path) -> tuple[Any, Array]:
    """Return a file, and the numbers of the first rows of its row groups, and of all rows."""
    opened = _parquet.opened(parquet, file)
    counts = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
    return opened, np.cumsum([0, *counts])
