"""LeRobot's data sets into a buffer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from fbuf.adapter_api import check, warn
from fbuf_adapters.datasets._ends import Ends
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import flags
from fbuf_adapters.datasets._flat import Flat
from fbuf_adapters.datasets._lerobot_columns import (
    ImageColumn,
    NumberColumn,
    Rows,
    VideoColumn,
)
from fbuf_adapters.datasets._lerobot_metadata import VideoFrames, read_metadata
from fbuf_adapters.datasets._loading import Options, load, loader


@loader
def from_lerobot(
    path: str | os.PathLike[str],
    into: Any = None,
    *,
    episodes: Sequence[int] | None = None,
    decode: Callable[[VideoFrames], Any] | None = None,
    terminated: str | None = None,
    **options: Unpack[Options],
) -> Any:
    """Load a data set of LeRobot, of format v3.0 or v2.1, into a buffer.

    Each feature becomes a field. A dot in its name makes a dict: `observation.state` is the field
    `state` of `observation`. A feature of shape (1,) is one number, as in LeRobot's own items.
    `timestamp`, `frame_index`, `episode_index`, `index` and `task_index` are fields, too. The last
    four are int32; all other dtypes are those of the files.

    Images become uint8 `[height, width, channels]`. Videos are left out, unless you give `decode`:
    `episode_index` and `frame_index` say which frame belongs to a row, and
    `lerobot_metadata(path).video_frames` says where the frame is.

    Rows follow one another as `frame_index` says. A warning counts those whose timestamps say
    something else.

    The last row of each episode is truncated. Its next observation is not known: views that return
    next observations mask it.

    Args:
        path: The directory of the data set, with `meta` and `data` in it.
        into: As for `from_arrays`.
        episodes: The numbers of the episodes to load, from 0; None is all. They are loaded in the
            order of the data set, each once.
        decode: Decodes videos: gets `VideoFrames` of one file, and returns an array `[n, ...]` with
            a frame for each of `index`. All frames of a feature must have one shape and one dtype,
            which need not be those of the file. The files are asked for in their order.
        terminated: The feature that says that an episode ended by itself, such as `"next.done"`:
            bools, or numbers 0 and 1. A row where it is True ends its episode, and has discount 0.
        **options: As for `from_arrays`.
        next_of: As for `from_arrays`; a name with dots is a part: `"observation.state"`.
        drop: As for `from_arrays`; names of videos may be among them. Features of words cannot be
            stored: leave them out.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`. And if a file is missing or damaged, or has other
            episodes or steps than the metadata say. If images differ in size, or if `decode`
            returns another number of frames, or another shape, than before.
        FileNotFoundError: If there is no such data set.
        TypeError: As from `from_arrays`; and if `episodes` are no ints.
        ValueError: If there is no such episode.
        ImportError: If pyarrow, or for images Pillow, is not installed.

    Cost: as for `from_arrays`, and the memory of one row group of each feature: in most files that
    is an episode. The number of the episode of each row is read first.

    Examples:
        >>> import fbuf
        >>> from fbuf_adapters.datasets import from_lerobot
        >>> state = from_lerobot("pusht")  # doctest: +SKIP
        >>> view = fbuf.Window({"observation.state": (-1, 0), "action": range(16)})

    References:
        Cadene et al., 2024: LeRobot. https://github.com/huggingface/lerobot
    """
    where = "from_lerobot"
    metadata = read_metadata(where, path)
    if decode is not None and not callable(decode):
        raise TypeError(f"{where}: decode must be a function of VideoFrames, got {decode!r}")
    rows = Rows(where, metadata, _episodes(where, len(metadata.lengths), episodes))
    if doubt := rows.doubt():
        warn(f"{where}: {doubt}")
    fields = _fields(rows, decode)
    last = np.diff(rows.episode, append=-1) != 0
    ended = np.zeros_like(last) if terminated is None else _flag(where, fields, terminated)
    source = Flat(where, fields, Ends(ended, last & ~ended, True, ""), following={})
    drop = options.get("drop", ())
    if decode is None and not isinstance(drop, str):  # without `decode` they are already left out
        options["drop"] = tuple(name for name in drop if name not in metadata.videos)
    return load(source, into, **options)


def _episodes(where: str, count: int, given: Any) -> list[int]:
    """Return the numbers of the episodes to load."""
    if given is None:
        return list(range(count))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"{where}: episodes must be a sequence of ints, such as [0, 3] or range(40), got "
            f"{given!r}"
        )
    wanted = [check.integer(where, "episodes", number, count - 1, 0) for number in given]
    return sorted(set(wanted))


def _fields(rows: Rows, decode: Callable[[VideoFrames], Any] | None) -> dict[str, Any]:
    """Return the features as arrays, without reading them."""
    fields: dict[str, Any] = {}
    if not len(rows.episode):
        return fields
    for name, feature in rows.metadata.features.items():
        if feature["dtype"] == "video":
            if decode is not None:
                fields[name] = VideoColumn(rows, name, decode)
        elif feature["dtype"] == "image":
            fields[name] = ImageColumn(rows, name)
        else:
            fields[name] = NumberColumn(rows, name, tuple(feature["shape"]))
    return fields


def _flag(where: str, fields: Mapping[str, Any], name: str) -> Any:
    """Return a feature as a flag of each row."""
    if name not in fields:
        raise DatasetError(
            f"{where}: terminated is {name!r}, which no feature is called; there are "
            f"{', '.join(fields)}"
        )
    column = fields[name]
    return flags(where, name, column[slice(0, column.shape[0])])
