"""The checkpoints that this process may delete: its own, and those that it found at a load."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping

from fbuf.checkpoint.errors import CheckpointError, Mismatch

_seen: dict[pathlib.Path, set[bytes]] = {}
"""The checkpoints by directory, each as the first line of its manifest.

Checkpoints of two runs can have the same number.
"""

_lock = threading.Lock()
"""Held while an entry is changed: saves in the background change entries, too."""


def note(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Add checkpoints of a directory, which were saved here, or were there at a load."""
    with _lock:
        _seen.setdefault(folder, set()).update(heads)


def forget_but(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Forget deleted checkpoints. One that is put back later comes from a backup."""
    with _lock:
        _seen[folder] = _seen.get(folder, set()) & set(heads)


def require(
    function: str,
    folder: pathlib.Path,
    heads: Mapping[int, bytes],
    read: Callable[[pathlib.Path, int], object],
) -> None:
    """Refuse to save where a checkpoint is from another run or a backup: old ones are deleted.

    Args:
        function: The beginning of the error message.
        folder: The directory.
        heads: The first lines of its manifests.
        read: Reads a manifest.

    Raises:
        CheckpointError: If there is one. A damaged one cannot be loaded, so the advice is another.
    """
    seen = _seen.get(folder, set())
    unknown = [number for number, head in heads.items() if head not in seen]
    if unknown:
        try:
            read(folder, unknown[-1])
        except Mismatch:
            pass
        except CheckpointError as error:
            raise CheckpointError(
                f"fbuf.{function}: {folder} has a damaged checkpoint, number {unknown[-1]}, that "
                "this process has neither saved nor found there when it loaded; take its manifest "
                "away, load with fallback=True to go on from the one before it, or save to another "
                f"directory. {str(error).partition(': ')[2]}"
            ) from None
        raise CheckpointError(
            f"fbuf.{function}: {folder} has a checkpoint, number {unknown[-1]}, that this process "
            "has neither saved nor found there when it loaded; load from the directory to go on "
            "from its newest checkpoint, or save to another directory"
        )
