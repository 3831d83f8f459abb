"""The checkpoints that this process may delete: its own, and those present at a load."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping

from fbuf.checkpoint.errors import CheckpointError, Mismatch

_heads: dict[pathlib.Path, set[bytes]] = {}
"""The checkpoints by directory, each as the first line of its manifest.

Checkpoints of two runs can have the same number.
"""

_lock = threading.Lock()
"""Held during a change: saves in the background also change entries."""


def note(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Add checkpoints of a directory: saved by this process, or present at a load."""
    with _lock:
        _heads.setdefault(folder, set()).update(heads)


def forget_but(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Forget deleted checkpoints. One that is put back later comes from a backup."""
    with _lock:
        _heads[folder] = _heads.get(folder, set()) & set(heads)


def require(
    function: str,
    folder: pathlib.Path,
    heads: Mapping[int, bytes],
    read: Callable[[pathlib.Path, int], object],
) -> None:
    """Refuse to save beside a checkpoint of another run or a backup, as saves delete old ones.

    Args:
        function: The beginning of the error message.
        folder: The directory.
        heads: The first lines of its manifests.
        read: Reads a manifest.

    Raises:
        CheckpointError: If there is such a checkpoint. The advice for a damaged one differs, as it
            cannot be loaded.
    """
    seen = _heads.get(folder, set())
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
