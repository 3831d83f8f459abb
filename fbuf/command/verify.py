"""Whether checkpoints are whole: every byte is read and held against its checksum.

A directory has checkpoints of one buffer, or of one over a mesh, whose shards have directories of
their own.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

from fbuf.checkpoint import manifest, npy, progress, sharded_manifest
from fbuf.checkpoint.errors import CheckpointError

Checked = dict[pathlib.Path, tuple[int, int]]
"""The length and the checksum of files that are as they should be."""


def newest(path: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The directory, and the number of its newest checkpoint.

    Raises:
        FileNotFoundError: If there is none.
    """
    folder = path.resolve()
    known = manifest.numbers(folder) if folder.is_dir() else []
    if not known:
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    return folder, known[-1]


def each(path: pathlib.Path) -> Iterator[tuple[str, CheckpointError | None]]:
    """Check every checkpoint of a directory, the newest first.

    One that is deleted meanwhile, by a run that goes on saving, is passed over.

    Yields:
        The name of each, and what is wrong with it.
    """
    checked: Checked = {}
    folder = path.resolve()
    shards = sharded_manifest.numbers(folder)
    for number in reversed(shards):
        fault = _fault(_check_shards, folder, number, checked)
        if fault is None or number in sharded_manifest.numbers(folder):
            yield sharded_manifest.name_of(number), fault
    if not shards:
        newest(path)
    for number in reversed(manifest.numbers(folder) if folder.is_dir() else []):
        fault = _fault(_check, folder, number, checked)
        if fault is None or number in manifest.numbers(folder):
            yield manifest.name_of(number), fault


def _fault(
    check: Callable[[pathlib.Path, int, Checked], None],
    folder: pathlib.Path,
    number: int,
    checked: Checked,
) -> CheckpointError | None:
    """What is wrong, if anything is."""
    try:
        check(folder, number, checked)
    except CheckpointError as error:
        return error
    except FileNotFoundError as error:
        return CheckpointError(f"{error.filename} is missing")
    return None


def _check_shards(folder: pathlib.Path, number: int, checked: Checked) -> None:
    """Check the shards of a checkpoint over a mesh."""
    for shard, part in enumerate(sharded_manifest.read(folder, number).parts):
        _check(sharded_manifest.check_part(folder, shard, part), part.number, checked)


def _check(folder: pathlib.Path, number: int, checked: Checked) -> None:
    """Check a checkpoint."""
    found = manifest.read(folder, number)
    # Checkpoints share files.
    to_do = {
        name: file
        for name, file in found.files.items()
        if checked.get(folder / name) != (file.length, file.crc32)
    }
    with progress.shown("fbuf verify", sum(file.length for file in to_do.values())):
        for name, file in to_do.items():
            npy.check(folder, name, file)
            checked[folder / name] = (file.length, file.crc32)
