"""Formats v3.0 and v2.1 of LeRobot's data sets, whose metadata are alike once they are read."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np

from fbuf.adapter_api import local_path
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata, Videos

EXTRA = "lerobot"
"""The extra of fbuf with the packages that read these data sets."""


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
        info = json.loads(file.read_text())
        version = str(info["codebase_version"])
        major = version.lstrip("v").partition(".")[0]
        if major not in ("2", "3"):
            raise DatasetError(
                f"{where}: the data set has format {version}, and v2.1 and v3.0 are read; convert "
                "it with a LeRobot of that time"
            )
        episodes = _new_episodes(where, root) if major == "3" else _old_episodes(root)
        tasks = _new_tasks(where, root) if major == "3" else _old_tasks(root)
        return _metadata(where, root, info, tasks, episodes)
    except (KeyError, json.JSONDecodeError) as error:
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
    numbers = [int(episode["episode_index"]) for episode in episodes]
    if numbers != list(range(len(numbers))):
        raise DatasetError(
            f"{where}: the metadata have the episodes {numbers[:5]}{'...' * (len(numbers) > 5)}, "
            "and they must count from 0; write the data set anew with LeRobot"
        )
    chunk = int(info.get("chunks_size", 1000))
    fps = float(info["fps"])

    def path(template: str, number: int, of: str, key: str = "") -> str:
        """Return the path of a file of an episode, within the data set."""
        episode = episodes[number]
        parts = {"episode_index": number, "episode_chunk": number // chunk, "video_key": key}
        for part in ("chunk_index", "file_index"):
            parts[part] = int(episode.get(f"{of}/{part}", 0))
        return template.format(**parts)

    data = [path(info["data_path"], number, "data") for number in numbers]
    videos: dict[str, Videos] = {}
    for key in (key for key, feature in info["features"].items() if feature["dtype"] == "video"):
        of = f"videos/{key}"
        names = [path(info["video_path"], number, of, key) for number in numbers]
        files = {name: place for place, name in enumerate(dict.fromkeys(names))}
        seconds = [float(episode.get(f"{of}/from_timestamp", 0)) for episode in episodes]
        videos[key] = Videos(
            tuple(root / name for name in files),
            np.array([files[name] for name in names], np.int64),
            np.rint(np.array(seconds) * fps).astype(np.int64),
        )
    lengths = np.array([int(episode["length"]) for episode in episodes], np.int64)
    return LeRobotMetadata(
        fps, tasks, lengths, info["features"], tuple(root / name for name in data), videos
    )


def _new_episodes(where: str, root: pathlib.Path) -> list[Any]:
    """Return the episodes of format v3.0, of which many are in each file."""
    found: list[Any] = []
    for file in sorted((root / "meta" / "episodes").glob("*/*.parquet")):
        names = needed(where, "pyarrow.parquet", EXTRA).read_schema(file).names
        # Statistics are most of the file.
        wanted = [name for name in names if not name.startswith(("stats/", "tasks"))]
        found += _table(where, file, wanted).to_pylist()
    return found


def _old_episodes(root: pathlib.Path) -> list[Any]:
    return _lines(root / "meta" / "episodes.jsonl")


def _new_tasks(where: str, root: pathlib.Path) -> dict[int, str]:
    rows = _table(where, root / "meta" / "tasks.parquet", None).to_pylist()
    return {row.pop("task_index"): str(*row.values()) for row in rows}


def _old_tasks(root: pathlib.Path) -> dict[int, str]:
    return {task["task_index"]: task["task"] for task in _lines(root / "meta" / "tasks.jsonl")}


def _lines(file: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def _table(where: str, file: pathlib.Path, columns: list[str] | None) -> Any:
    parquet = needed(where, "pyarrow.parquet", EXTRA)
    try:
        return parquet.ParquetFile(file).read(columns=columns)
    except needed(where, "pyarrow", EXTRA).ArrowInvalid as error:
        raise unreadable(where, file, "parquet", error) from error
