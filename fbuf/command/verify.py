"""Checks of whole checkpoints: every byte is read and held against its checksum.

A directory has checkpoints of one buffer, or of a buffer over a mesh. The shards of the latter have
directories of their own.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from fbuf.checkpoint import manifest, npy, progress, sharded_manifest
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest

Checked = dict[pathlib.Path, tuple[int, int]]
"""The length and the checksum of files that are as they should be."""

WHAT = "fbuf verify"


def newest(folder: pathlib.Path) -> int:
    """Return the number of the newest checkpoint of a directory.

    Raises:
        FileNotFoundError: If there is no checkpoint.
    """
    known = manifest.numbers(folder) if folder.is_dir() else []
    if not known:
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    return known[-1]


def each(path: pathlib.Path) -> Iterator[tuple[str, CheckpointError | None]]:
    """Check every checkpoint of a directory, the newest first.

    A checkpoint that a run deletes meanwhile, because it goes on saving, is passed over.

    Yields:
        The name of each checkpoint, and its damage.
    """
    checked: Checked = {}
    folder = path.resolve()
    if not sharded_manifest.numbers(folder):
        newest(folder)
    for kind in (sharded_manifest, manifest):
        for number in reversed(kind.numbers(folder)):
            damage = None
            try:
                parts = [(folder, number)]
                if kind is sharded_manifest:
                    parts = [
                        (sharded_manifest.check_part(folder, shard, part), part.number)
                        for shard, part in enumerate(sharded_manifest.read(folder, number).parts)
                    ]
                for part in parts:
                    _check(*part, checked)
            except CheckpointError as error:
                damage = error
            except FileNotFoundError as error:
                damage = CheckpointError(f"{error.filename} is missing")
            if damage is None or number in kind.numbers(folder):
                yield kind.name_of(number), damage


def _check(folder: pathlib.Path, number: int, checked: Checked) -> None:
    """Check a checkpoint."""
    check_files(folder, manifest.read(folder, number), checked)


def check_files(folder: pathlib.Path, found: Manifest, checked: Checked, what: str = WHAT) -> None:
    """Read the files of a checkpoint, but those that were checked before, which it then adds.

    Args:
        folder: The directory.
        found: The manifest.
        checked: The files that are as they should be.
        what: The name of a progress bar.

    Raises:
        CheckpointError: If a file is damaged.
    """
    # Checkpoints share files.
    to_do = {
        name: file
        for name, file in found.files.items()
        if checked.get(folder / name) != (file.length, file.crc32)
    }
    with progress.shown(what, sum(file.length for file in to_do.values())):
        for name, file in to_do.items():
            npy.check(folder, name, file)
            checked[folder / name] = (file.length, file.crc32)
