"""The metadata of a data set of LeRobot: episodes, tasks, and where each frame of a video is."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.datasets._fields import Array

_TOLERANCE = 1e-4  # seconds, as LeRobot's own


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
    """Where the videos of a feature are.

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
        """Yield where some frames are, one video file after another.

        Args:
            key: The feature, such as `"observation.images.top"`.
            episode_index: int `[n]`, from 0 to the number of episodes - 1.
            frame_index: int `[n]`, from 0 to the length of the episode - 1.

        Yields:
            int `[m]`, the places in the arguments; and the frames that belong there.

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
