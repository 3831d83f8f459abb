"""Formats v3.0 and v2.1 of LeRobot's data sets, whose metadata are alike once they are read."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from typing import Any

import numpy as np

from fbuf.adapter_api import foreign_files, local_path
from fbuf_adapters.datasets import _parquet
from fbuf_adapters.datasets._errors import DatasetError, needed, unreadable
from fbuf_adapters.datasets._lerobot_metadata import LeRobotMetadata, Videos

EXTRA = _parquet.EXTRA
"""The extra of fbuf with the packages that read these data sets."""

_LONGEST = 2**28
"""The longest file of metadata, in bytes."""

_UNLIKE = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError),
    *(OSError, MemoryError),
)
"""The errors that metadata of another form can cause. Errors of pyarrow are among them."""


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
    """Return a number of rows or files; refuse what is none."""
    if isinstance(value, bool) or int(value) != value or not 0 <= value < 2**31:
        raise ValueError(f"it has {value!r} where a number must be")
    return int(value)


def _name(key: str) -> str:
    """Return the name of a feature; refuse one that a terminal would obey."""
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
        # Statistics are most of the file.
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
    """Return a file of a data set that may be opened by its name."""
    path = foreign_files.inside(root, file.relative_to(root).as_posix(), links=True)
    foreign_files.size(path)
    return path


def _table(
    where: str, root: pathlib.Path, file: pathlib.Path, leave_out: tuple[str, ...] = ()
) -> Any:
    """Return a parquet file without the columns whose names begin with some words."""
    parquet, path = needed(where, "pyarrow.parquet", EXTRA), _plain(root, file)
    try:
        with _parquet.opened(parquet, path) as opened:
            names: list[str] = opened.schema_arrow.names
            return opened.read(columns=[name for name in names if not name.startswith(leave_out)])
    except _UNLIKE as error:
        raise unreadable(where, path, "parquet", error) from error
