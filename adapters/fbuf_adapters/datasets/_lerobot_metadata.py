"""The metadata of a data set of LeRobot: episodes, tasks, and the place of each video frame.

The result is the same for formats v3.0 and v2.1.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fbuf.adapter_api import foreign_files, local_path
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._fields import Array
from fbuf_adapters.datasets._parquet import EXTRA
from fbuf_adapters.datasets._parquet import opened as opened_parquet

_TOLERANCE = 1e-4  # seconds, as LeRobot's own

_LONGEST = 2**28
"""The longest file of metadata, in bytes."""

_UNLIKE = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(OSError, MemoryError),
)
"""The errors of malformed metadata, including those of pyarrow."""


@dataclasses.dataclass(frozen=True)
class VideoFrames:
    """Frames of one video file, in its order.

    Attributes:
        key: The feature, such as `"observation.images.top"`.
        path: The file.
        index: int64 `[n]`; the numbers of the frames in the file, ascending. The first is 0.
        timestamp: float64 `[n]`; the seconds from the beginning of the file.

    Examples:
        >>> import numpy as np, pathlib
        >>> from fbuf_adapters.datasets import VideoFrames
        >>> VideoFrames("top", pathlib.Path("file-000.mp4"), np.array([30]), np.array([1.0])).key
        'top'
    """

    key: str
    path: pathlib.Path
    index: Array
    timestamp: Array


@dataclasses.dataclass(frozen=True)
class Videos:
    """The places of the videos of a feature.

    Attributes:
        paths: The files.
        file: int `[episodes]`; the number of the file of each episode.
        first: int `[episodes]`; the number of the episode's first frame in the file.
    """

    paths: tuple[pathlib.Path, ...]
    file: Array
    first: Array


@dataclasses.dataclass(frozen=True)
class LeRobotMetadata:
    """The metadata of a data set of LeRobot, of format v3.0 or v2.1.

    Attributes:
        fps: Steps a second.
        tasks: The words of each task, by `task_index`.
        lengths: int64 `[episodes]`; the steps of each episode.
        features: The features, as `meta/info.json` describes them.
        data: The data file of each episode.
        videos: Where the videos of each feature are.
    """

    fps: float
    tasks: Mapping[int, str]
    lengths: Array
    features: Mapping[str, Any]
    data: tuple[pathlib.Path, ...]
    videos: Mapping[str, Videos]

    def offsets(
        self, delta_timestamps: Mapping[str, Iterable[float]]
    ) -> dict[str, tuple[int, ...]]:
        """Return the offsets for `fbuf.Window` of LeRobot's `delta_timestamps`.

        Args:
            delta_timestamps: For each feature, seconds from the row, before it or after it.

        Returns:
            For each feature, steps from the row.

        Raises:
            TypeError: If a feature has a single time, and no sequence of them.
            ValueError: If a time is no whole number of steps, to a ten-thousandth of a second, or
                if there is no such feature.

        Examples:
            >>> from fbuf_adapters.datasets import lerobot_metadata
            >>> metadata = lerobot_metadata("pusht")  # doctest: +SKIP
            >>> metadata.offsets({"action": [-0.1, 0.0, 0.1]})  # doctest: +SKIP
            {'action': (-1, 0, 1)}
        """
        found: dict[str, tuple[int, ...]] = {}
        for key, seconds in delta_timestamps.items():
            if key not in self.features:
                known = ", ".join(sorted(self.features))
                raise ValueError(f"offsets: there is no feature {key!r}; there are {known}")
            found[key] = tuple(self._steps(key, float(time)) for time in _times(key, seconds))
        return found

    def video_frames(
        self, key: str, episode_index: Any, frame_index: Any
    ) -> Iterator[tuple[Array, VideoFrames]]:
        """Yield the places of some frames, one video file after another.

        Args:
            key: The feature, such as `"observation.images.top"`.
            episode_index: int `[n]`, from 0 to the number of episodes - 1.
            frame_index: int `[n]`, from 0 to the length of the episode - 1.

        Yields:
            int `[m]`, indices into the arguments; and the frames for these.

        Raises:
            ValueError: If no video has this key, or if there is no such frame.

        Cost: O(n log n).
        """
        if key not in self.videos:
            there = ", ".join(self.videos) or "none"
            raise ValueError(
                f"video_frames: key is {key!r}, which is no video of the data set; there are "
                f"{there}"
            )
        episode, frame = np.asarray(episode_index), np.asarray(frame_index)
        bad = (episode < 0) | (episode >= len(self.lengths))
        bad |= (frame < 0) | (frame >= self.lengths[np.where(bad, 0, episode)])
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"video_frames: there is no frame {frame[at]} of episode {episode[at]}; give the "
                "episode_index and frame_index of rows of this data set"
            )
        videos = self.videos[key]
        file, index = videos.file[episode], videos.first[episode] + frame
        order = np.lexsort((index, file))
        starts = np.flatnonzero(np.diff(file[order], prepend=-1))
        for places in np.split(order, starts)[1:]:
            path = videos.paths[file[places[0]]]
            yield places, VideoFrames(key, path, index[places], index[places] / self.fps)

    def _steps(self, key: str, seconds: float) -> int:
        steps = round(seconds * self.fps)
        if abs(steps / self.fps - seconds) > _TOLERANCE:
            raise ValueError(
                f"offsets: {key!r} has {seconds}, which lies between two steps of 1/{self.fps:g} "
                f"seconds; give {steps / self.fps!r}, or the offset {steps} to fbuf.Window"
            )
        return steps


def _times(key: str, given: Any) -> Iterable[float]:
    if isinstance(given, Iterable):
        return given
    raise TypeError(
        f"offsets: {key!r} must have a sequence of seconds, such as [{given}], got {given!r}"
    )


def lerobot_metadata(path: str | os.PathLike[str]) -> LeRobotMetadata:
    """Return the metadata of a data set of LeRobot.

    Args:
        path: The directory of the data set, with `meta` and `data` in it.

    Returns:
        The metadata.

    Raises:
        DatasetError: If the format is neither v2 nor v3, or if the metadata contradict themselves.
        FileNotFoundError: If there is no such data set.
        ImportError: If pyarrow is not installed.

    Cost: O(episodes).

    Examples:
        >>> from fbuf_adapters.datasets import lerobot_metadata
        >>> lerobot_metadata("pusht").tasks  # doctest: +SKIP
        {0: 'Push the T-shaped block onto the T-shaped target.'}
    """
    return read_metadata("lerobot_metadata", path)


def read_metadata(where: str, path: str | os.PathLike[str]) -> LeRobotMetadata:
    """Return the metadata of a data set; see `lerobot_metadata`."""
    needed(where, "pyarrow", EXTRA)
    root = pathlib.Path(local_path(where, path))
    file = root / "meta" / "info.json"
    if not file.exists():
        raise FileNotFoundError(
            f"{where}: there is no data set of LeRobot in {os.fspath(path)!r}, which has no "
            "meta/info.json; to get one from the hub: "
            "hf download --repo-type dataset NAME --local-dir DIRECTORY"
        )
    try:
        (info,) = _lines(root, "meta/info.json", whole=True)
        version = str(info["codebase_version"])
        major = version.lstrip("v").partition(".")[0]
        if major not in ("2", "3"):
            raise DatasetError(
                f"{where}: the data set has format {foreign_files.printable(version)}, and v2.1 "
                "and v3.0 are read; convert it with a LeRobot of that time"
            )
        episodes = _new_episodes(where, root) if major == "3" else _old_episodes(root)
        tasks = _new_tasks(where, root) if major == "3" else _old_tasks(root)
        return _metadata(where, root, info, tasks, episodes)
    except DatasetError:
        raise
    except _UNLIKE as error:
        raise unreadable(where, root / "meta", "metadata of LeRobot", error) from error


def _metadata(
    where: str, root: pathlib.Path, info: Any, tasks: dict[int, str], episodes: list[Any]
) -> LeRobotMetadata:
    """Put the metadata together.

    Args:
        where: The function that was called, for errors.
        root: The directory of the data set.
        info: The contents of `meta/info.json`.
        tasks: The tasks.
        episodes: The dict of each episode, with its places in files.
    """
    numbers = [_count(episode["episode_index"]) for episode in episodes]
    if numbers != list(range(len(numbers))):
        raise DatasetError(
            f"{where}: the metadata have the episodes {numbers[:5]}{'...' * (len(numbers) > 5)}, "
            "and they must count from 0; write the data set anew with LeRobot"
        )
    chunk, fps = _count(info.get("chunks_size", 1000)), float(info["fps"])
    if not chunk or not 0 < fps < math.inf:
        raise ValueError(f"it has {chunk} episodes a chunk, and {fps} steps a second")
    features = {_name(key): _feature(feature) for key, feature in info["features"].items()}

    def path(template: str, number: int, of: str, key: str = "") -> str:
        """Return the path of a file of an episode, within the data set."""
        episode = episodes[number]
        parts = {"episode_index": number, "episode_chunk": number // chunk, "video_key": key}
        for part in ("chunk_index", "file_index"):
            parts[part] = _count(episode.get(f"{of}/{part}", 0))
        return _filled(template, parts)

    data = [path(info["data_path"], number, "data") for number in numbers]
    videos: dict[str, Videos] = {}
    for key in (key for key, feature in features.items() if feature["dtype"] == "video"):
        of = f"videos/{key}"
        names = [path(info["video_path"], number, of, key) for number in numbers]
        files = {name: place for place, name in enumerate(dict.fromkeys(names))}
        seconds = [float(episode.get(f"{of}/from_timestamp", 0)) for episode in episodes]
        frames = np.rint(np.array(seconds) * fps)
        if not (np.abs(frames) < 2**53).all():
            raise ValueError(f"the videos of {key} begin at {max(seconds)} seconds")
        videos[key] = Videos(
            tuple(foreign_files.inside(root, name, links=True) for name in files),
            np.array([files[name] for name in names], np.int64),
            frames.astype(np.int64),
        )
    lengths = np.array([_count(episode["length"]) for episode in episodes], np.int64)
    paths = {name: foreign_files.inside(root, name, links=True) for name in dict.fromkeys(data)}
    return LeRobotMetadata(
        fps, tasks, lengths, features, tuple(paths[name] for name in data), videos
    )


def _count(value: Any) -> int:
    """Return a number of rows or files; refuse any other value."""
    if isinstance(value, bool) or int(value) != value or not 0 <= value < 2**31:
        raise ValueError(f"it has {value!r} where a number must be")
    return int(value)


def _name(key: str) -> str:
    """Return the name of a feature; refuse a long one, or one with control characters."""
    if not key.isprintable() or len(key) > foreign_files.LONGEST:
        raise ValueError(f"a feature is called {foreign_files.printable(key)[:80]!r}")
    return key


def _feature(given: Any) -> dict[str, Any]:
    """Return the description of a feature; refuse one without a dtype or a shape."""
    shape = [_count(size) for size in given["shape"]]
    foreign_files.require_shape(shape, 8)
    if not isinstance(given["dtype"], str):
        raise ValueError(f"a feature has the dtype {given['dtype']!r}")
    return {**given, "shape": shape}


def _filled(template: str, parts: dict[str, Any]) -> str:
    """Return a path of a template such as `data/chunk-{chunk_index:03d}/file.parquet`.

    `str.format` would look up attributes, and pad to any width.
    """

    def value(found: re.Match[str]) -> str:
        return format(parts[found[1]], found[2] or "")

    filled = re.sub(r"\{([a-z_]+)(?::(0?\d{0,2}d?))?\}", value, template)
    if "{" in filled or "}" in filled:
        raise ValueError(f"a path is {foreign_files.printable(filled)[:80]!r}")
    return filled


def _new_episodes(where: str, root: pathlib.Path) -> list[Any]:
    """Return the episodes of format v3.0, of which many are in each file."""
    found: list[Any] = []
    for file in sorted((root / "meta" / "episodes").glob("*/*.parquet")):
        # Statistics are the largest part of the file.
        found += _table(where, root, file, leave_out=("stats/", "tasks")).to_pylist()
    return found


def _old_episodes(root: pathlib.Path) -> list[Any]:
    return _lines(root, "meta/episodes.jsonl")


def _new_tasks(where: str, root: pathlib.Path) -> dict[int, str]:
    rows = _table(where, root, root / "meta" / "tasks.parquet").to_pylist()
    return {_count(row.pop("task_index")): str(*row.values()) for row in rows}


def _old_tasks(root: pathlib.Path) -> dict[int, str]:
    lines = _lines(root, "meta/tasks.jsonl")
    return {_count(task["task_index"]): str(task["task"]) for task in lines}


def _lines(root: pathlib.Path, name: str, *, whole: bool = False) -> list[Any]:
    """Return the JSON of each line of a file, or of the whole file."""
    text = foreign_files.read(foreign_files.inside(root, name, links=True), _LONGEST)
    foreign_files.require_json(text)
    return [json.loads(line) for line in ([text] if whole else text.splitlines()) if line.strip()]


def _plain(root: pathlib.Path, file: pathlib.Path) -> pathlib.Path:
    """Return a file of a data set, checked to be safe to open."""
    path = foreign_files.inside(root, file.relative_to(root).as_posix(), links=True)
    foreign_files.size(path)
    return path


def _table(
    where: str, root: pathlib.Path, file: pathlib.Path, leave_out: tuple[str, ...] = ()
) -> Any:
    """Return a parquet file without the columns whose names begin with some words."""
    parquet, path = needed(where, "pyarrow.parquet", EXTRA), _plain(root, file)
    try:
        with opened_parquet(parquet, path) as opened:
            names: list[str] = opened.schema_arrow.names
            return opened.read(columns=[name for name in names if not name.startswith(leave_out)])
    except _UNLIKE as error:
        raise unreadable(where, path, "parquet", error) from error
