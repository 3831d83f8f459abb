"""The features of LeRobot's data sets as arrays, of which a part is read at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from fbuf_adapters._narrow import Misfit, narrow
from fbuf_adapters.datasets._errors import DatasetError, needed
from fbuf_adapters.datasets._fields import Array, refuse_foreign
from fbuf_adapters.datasets._lerobot_formats import EXTRA
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata, VideoFrames
from fbuf_adapters.datasets._lerobot_rows import Rows

COUNTERS = ("frame_index", "episode_index", "index", "task_index", "subtask_index")
"""The format's own numbers: int64 in the files, though int32 holds them."""

Decode = Callable[[VideoFrames], Any]
"""Returns the frames of a video, [n, ...]."""


class Numbers:
    """A feature of numbers or bools."""

    def __init__(self, where: str, rows: Rows, name: str, shape: tuple[int, ...]) -> None:
        """Look at the first row.

        Args:
            where: The function that was called, for errors.
            rows: The rows.
            name: The feature.
            shape: Its shape in the metadata, which is (1,) for a single number.
        """
        self._where, self._rows, self._name = where, rows, name
        (first,) = rows.read(name, slice(0, 1))
        self._inner = shape if hasattr(first.type, "value_type") else ()
        self.shape = (len(rows.episode), *self._inner)
        self.dtype = self[slice(0, 1)].dtype

    def __getitem__(self, part: slice) -> Array:
        """Read some rows."""
        found = [self._plain(values, part) for values in self._rows.read(self._name, part)]
        joined = np.concatenate(found).reshape(part.stop - part.start, *self._inner)
        if self._name not in COUNTERS:
            return joined
        try:
            return narrow(joined, np.dtype(np.int32), exact=True)
        except Misfit as misfit:
            raise DatasetError(
                f"{self._where}: {self._name} holds {misfit.value}, which int32 cannot hold; it "
                "counts rows, and no buffer has so many: write the data set anew with LeRobot"
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


class Images:
    """A feature of images, which are files of their own within the parquet file."""

    def __init__(self, where: str, rows: Rows, name: str) -> None:
        """Look at the first image."""
        self._where, self._rows, self._name = where, rows, name
        self._image = needed(where, "PIL.Image", EXTRA)
        # Damaged headers cause any of these.
        self._unlike = (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError)
        self._unlike += (self._image.DecompressionBombError, MemoryError)
        (image,) = self._stored(slice(0, 1))
        first = self._decoded(0, image)
        self.shape, self.dtype = (len(rows.episode), *first.shape), first.dtype

    def __getitem__(self, part: slice) -> Array:
        """Decode some images."""
        found = np.empty((part.stop - part.start, *self.shape[1:]), self.dtype)
        for place, image in enumerate(self._stored(part)):
            row = part.start + place
            decoded = self._decoded(row, image)
            if (decoded.shape, decoded.dtype) != (self.shape[1:], self.dtype):
                raise DatasetError(
                    f"{self._where}: {self._rows.at(row)}: the image {self._name} is "
                    f"{decoded.dtype} {decoded.shape}, and the first one is {self.dtype} "
                    f"{self.shape[1:]}; write the data set anew with images of one size"
                )
            found[place] = decoded
        return found

    def _stored(self, part: slice) -> Iterator[Any]:
        for found in self._rows.read(self._name, part):
            yield from found.to_pylist()

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


class Videos:
    """A feature of videos, whose frames a function of the caller decodes."""

    def __init__(
        self, where: str, metadata: LeRobotMetadata, rows: Rows, name: str, decode: Decode
    ) -> None:
        """Decode the first frame."""
        self._where, self._metadata, self._rows = where, metadata, rows
        self._name, self._decode = name, decode
        self._form: tuple[Any, ...] | None = None
        first = self[slice(0, 1)]
        self._form = first.shape[1:], first.dtype
        self.shape, self.dtype = (len(rows.episode), *first.shape[1:]), first.dtype

    def __getitem__(self, part: slice) -> Array:
        """Decode some frames."""
        found: Array | None = None
        episode, frame = self._rows.episode[part], self._rows.frame[part]
        for places, frames in self._metadata.video_frames(self._name, episode, frame):
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
            if found is None:
                found = np.empty((len(frame), *decoded.shape[1:]), decoded.dtype)
            found[places] = decoded
        assert found is not None
        return found
