"""Whether checkpoints are whole: every byte is read and held against its checksum."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from fbuf.disk import container, manifest, progress
from fbuf.disk.errors import CheckpointError


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

    Yields:
        The name of each, and what is wrong with it.
    """
    folder, _ = newest(path)
    checked: dict[str, tuple[int, int]] = {}
    for number in reversed(manifest.numbers(folder)):
        fault = None
        try:
            found = manifest.read(folder, number)
            # Checkpoints share files.
            to_do = {
                name: file
                for name, file in found.files.items()
                if checked.get(name) != (file.length, file.crc32)
            }
            with progress.shown("fbuf verify", sum(file.length for file in to_do.values())):
                for name, file in to_do.items():
                    container.check(folder, name, file)
                    checked[name] = (file.length, file.crc32)
        except CheckpointError as error:
            fault = error
        yield manifest.name_of(number), fault
