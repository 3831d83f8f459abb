"""Memory maps of files, and advice to Linux on how to read them."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np


def of_arrays(arrays: Sequence[np.ndarray[Any, Any]]) -> list[mmap.mmap]:
    """Return the maps of arrays; arrays in memory have no map."""
    found: list[mmap.mmap] = []
    for array in arrays:
        below: Any = array
        while isinstance(below, np.ndarray):
            below = below.base
        if isinstance(below, mmap.mmap) and not any(below is known for known in found):
            found.append(below)
    return found


def at_random(maps: Sequence[mmap.mmap]) -> None:
    """Advise reads of single pages; by default Linux reads megabytes ahead."""
    if hasattr(mmap, "MADV_RANDOM"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_RANDOM)


def forget(maps: Sequence[mmap.mmap]) -> None:
    """Release the memory of read pages; the files stay readable."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def in_order(maps: Sequence[mmap.mmap]) -> Generator[None]:
    """Let Linux read these files ahead in a block."""
    if hasattr(mmap, "MADV_NORMAL"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_NORMAL)
    try:
        yield
    finally:
        at_random(maps)
