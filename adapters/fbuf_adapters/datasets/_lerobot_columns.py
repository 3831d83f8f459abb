"""Rows and features of LeRobot's parquet files, read a part at a time."""

from __future__ import annotations

import abc
import io
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from fbuf_adapters._narrow import Misfit, narrow
from fbuf_adapters.datasets._errors import DatasetError, needed
from fbuf_adapters.datasets._fields import Array, refuse_foreign
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata, VideoFrames
from fbuf_adapters.datasets._parquet import EXTRA, Groups

_COUNTERS = ("frame_index", "episode_index", "index", "task_index", "subtask_index")
"""The format's own numbers: int64 in the files, though int32 holds them."""

Decode = Callable[[VideoFrames], Any]
"""Returns the frames of a video, [n, ...]."""


class Rows:
    """The rows of some episodes, in the order of the files.

    Args:
        where: The function that was called, for errors.
        metadata: The metadata of the data set.
        episodes: The numbers of the episodes.

    Attributes:
        where: The argument.
        metadata: The argument.
        episode: int64 `[rows]`; the number of the row's episode.
        frame: int64 `[rows]`; the number of the row in its episode.

    Raises:
        DatasetError: If the files have other episodes or steps than the metadata say.
    """

    def __init__(self, where: str, metadata: LeRobotMetadata, episodes: Sequence[int]) -> None:
        self.where, self.metadata = where, metadata
        plain = lambda _, column: column.storage if hasattr(column, "storage") else column
        self._groups = Groups(where, "parquet of LeRobot", plain)
        wanted = sorted(set(episodes))
        self._stretches = self._found(wanted)
        self._starts = np.cumsum([0, *(count for _, _, count in self._stretches)])
        self.episode, self.frame = (
            np.concatenate(
                [self._counted(file, name, slice(n, n + m)) for file, n, m in self._stretches]
                or [np.zeros(0, np.int64)]
            )
            for name in ("episode_index", "frame_index")
        )
        self._check(wanted)

    def read(self, name: str, part: slice) -> Iterator[Any]:
        """Yield the pyarrow arrays of a part of a column; their types may differ."""
        first = int(np.searchsorted(self._starts, part.start, "right")) - 1
        for (file, start, count), begin in zip(
            self._stretches[first:], self._starts[first:].tolist(), strict=False
        ):
            if begin >= part.stop:
                break
            low, high = max(part.start - begin, 0), min(part.stop - begin, count)
            yield from self._read(file, name, slice(start + low, start + high))

    def at(self, row: int) -> str:
        """Return the place of a row as text."""
        return f"episode {self.episode[row]}, frame {self.frame[row]}"

    def _check(self, episodes: list[int]) -> None:
        """Refuse rows that are not the steps of the episodes, one after another."""
        lengths = self.metadata.lengths
        counted = np.bincount(self.episode, minlength=len(lengths))
        for episode in episodes:
            if counted[episode] != lengths[episode]:
                raise DatasetError(
                    f"{self.where}: the metadata say that episode {episode} has "
                    f"{lengths[episode]} steps, and the files have {counted[episode]} of its "
                    "rows; download the data set again, or write it anew with LeRobot"
                )
        ends = np.diff(self.episode, append=-1) != 0
        expected = np.where(np.append(True, ends[:-1])[: len(ends)], 0, np.roll(self.frame, 1) + 1)
        if (wrong := self.frame != expected).any():
            row = int(np.argmax(wrong))
            raise DatasetError(
                f"{self.where}: {self.at(row)} stands where frame {expected[row]} should; the "
                "steps of an episode must follow one another: write the data set anew with LeRobot"
            )

    def doubt(self) -> str:
        """Return a warning if the times of rows are not those of steps; else an empty string."""
        fps = self.metadata.fps
        if "timestamp" not in self.metadata.features or not len(self.frame):
            return ""
        parts = self.read("timestamp", slice(0, len(self.frame)))
        seconds = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts])
        late = np.abs(seconds - self.frame / fps) > 0.5 / fps
        if not late.any():
            return ""
        return (
            f"the timestamps of {late.sum()} rows, first of {self.at(int(np.argmax(late)))}, are "
            f"more than half a step from frame_index / {fps:g}, as if frames were lost; "
            "windows and next observations count rows, and not seconds"
        )

    def _found(self, episodes: list[int]) -> list[tuple[pathlib.Path, int, int]]:
        """Return the runs of rows of the episodes: file, first row, and length."""
        data = self.metadata.data
        files = list(dict.fromkeys(data))
        numbers = {file: number for number, file in enumerate(files)}
        named = {numbers[data[episode]] for episode in episodes}
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
        lacking = {numbers[data[n]] + 1 for n in episodes if n not in seen} - named
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
            return self._groups.read(file, name, part)
        except FileNotFoundError as error:
            raise DatasetError(
                f"{self.where}: the file {str(file)!r} is missing, which the metadata name; "
                "download the data set again"
            ) from error
        except LookupError as error:
            raise DatasetError(
                f"{self.where}: the file {str(file)!r} has no column {name!r}, which the "
                "metadata name; write the data set anew with LeRobot"
            ) from error


class Column(abc.ABC):
    """A feature as an array; its first row determines the shape of all rows."""

    def __init__(self, rows: Rows, name: str) -> None:
        self._rows, self._where, self._name = rows, rows.where, name
        self._form: tuple[Any, ...] | None = None
        first = self[slice(0, 1)]
        self._form = first.shape[1:], first.dtype
        self.shape, self.dtype = (len(rows.episode), *first.shape[1:]), first.dtype

    @abc.abstractmethod
    def __getitem__(self, part: slice) -> Array:
        """Read some rows."""


class NumberColumn(Column):
    """A feature of numbers or bools; its `shape` in the metadata is (1,) for a single number."""

    def __init__(self, rows: Rows, name: str, shape: tuple[int, ...]) -> None:
        (first,) = rows.read(name, slice(0, 1))
        self._inner = shape if hasattr(first.type, "value_type") else ()
        super().__init__(rows, name)

    def __getitem__(self, part: slice) -> Array:
        """Read some rows."""
        found = [self._plain(values, part) for values in self._rows.read(self._name, part)]
        joined = np.concatenate(found).reshape(part.stop - part.start, *self._inner)
        if self._name not in _COUNTERS:
            return joined
        try:
            return narrow(joined, np.dtype(np.int32), exact=True)
        except Misfit as misfit:
            raise DatasetError(
                f"{self._where}: {self._name} holds {misfit.value}, which int32 cannot hold; "
                "it counts rows, and no buffer has so many: write the data set anew with LeRobot"
            ) from None

    def _plain(self, values: Any, part: slice) -> Array:
        """Return the numbers of an array of lists of lists, in one row."""
        for length in self._inner:
            if not hasattr(values.type, "value_type"):
                self._refuse(part)
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
            if (lengths != length).any():  # also of a missing list, whose length is NaN
                self._refuse(part)
            values = values.flatten()
        if hasattr(values.type, "value_type") or values.null_count:
            self._refuse(part)
        return values.to_numpy(zero_copy_only=False)

    def _refuse(self, part: slice) -> NoReturn:
        raise DatasetError(
            f"{self._where}: {self._name} is not of shape {self._inner} in each row from "
            f"{self._rows.at(part.start)}, or has missing values; write the data set anew, or "
            f"leave the feature out with drop=[{self._name!r}]"
        )


class ImageColumn(Column):
    """A feature of images, each an image file inside the parquet file."""

    def __init__(self, rows: Rows, name: str) -> None:
        self._image = needed(rows.where, "PIL.Image", EXTRA)
        # Damaged headers cause any of these.
        self._unlike = (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError)
        self._unlike += (self._image.DecompressionBombError, MemoryError)
        super().__init__(rows, name)

    def __getitem__(self, part: slice) -> Array:
        """Decode some images."""
        pixels: Array | None = None
        images = (image for some in self._rows.read(self._name, part) for image in some.to_pylist())
        for row, image in enumerate(images, part.start):
            decoded = self._decoded(row, image)
            if self._form not in (None, (decoded.shape, decoded.dtype)):
                raise DatasetError(
                    f"{self._where}: {self._rows.at(row)}: the image {self._name} is "
                    f"{decoded.dtype} {decoded.shape}, and the first one is {self.dtype} "
                    f"{self.shape[1:]}; write the data set anew with images of one size"
                )
            if pixels is None:
                pixels = np.empty((part.stop - part.start, *decoded.shape), decoded.dtype)
            pixels[row - part.start] = decoded
        assert pixels is not None
        return pixels

    def _decoded(self, row: int, image: Any) -> Array:
        """Return the pixels, [height, width, channels]."""
        if not image or not image.get("bytes"):
            raise DatasetError(
                f"{self._where}: {self._rows.at(row)}: the image {self._name} is not in the "
                "parquet file; write the data set anew with LeRobot, which puts it there"
            )
        try:
            pixels = np.asarray(self._image.open(io.BytesIO(image["bytes"])))
        except self._unlike as error:
            raise DatasetError(
                f"{self._where}: {self._rows.at(row)}: the image {self._name} cannot be read: "
                f"{error}"
            ) from error
        return pixels[..., None] if pixels.ndim == 2 else pixels


class VideoColumn(Column):
    """A feature of videos, whose frames a function of the caller decodes."""

    def __init__(self, rows: Rows, name: str, decode: Decode) -> None:
        self._decode = decode
        super().__init__(rows, name)

    def __getitem__(self, part: slice) -> Array:
        """Decode some frames."""
        pixels: Array | None = None
        episode, frame = self._rows.episode[part], self._rows.frame[part]
        for places, frames in self._rows.metadata.video_frames(self._name, episode, frame):
            given = self._decode(frames)
            refuse_foreign(self._where, f"the value of decode for {self._name}", given)
            decoded = np.asarray(given)
            form = decoded.shape[1:], decoded.dtype
            if decoded.shape[:1] != (len(places),) or self._form not in (None, form):
                wanted = "" if self._form is None else f" of {self._form[1]} {self._form[0]}"
                raise DatasetError(
                    f"{self._where}: decode was asked for {len(places)} frames{wanted} of "
                    f"{frames.path}, and returned {decoded.dtype} {decoded.shape}; return an "
                    "array [n, ...] with a frame for each number in frames.index"
                )
            if pixels is None:
                pixels = np.empty((len(frame), *decoded.shape[1:]), decoded.dtype)
            pixels[places] = decoded
        assert pixels is not None
        return pixels
