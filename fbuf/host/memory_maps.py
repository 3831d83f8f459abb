"""Files in the address space, and how they are read."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np


def of_arrays(arrays: Sequence[np.ndarray[Any, Any]]) -> list[mmap.mmap]:
    """The maps that arrays lie in; none for those in memory."""
    found: list[mmap.mmap] = []
    for array in arrays:
        below: Any = array
        while isinstance(below, np.ndarray):
            below = below.base
        if isinstance(below, mmap.mmap) and not any(below is known for known in found):
            found.append(below)
    return found


def at_random(maps: Sequence[mmap.mmap]) -> None:
    """Have single pages read: of a file that is read in order, Linux reads megabytes ahead."""
    if hasattr(mmap, "MADV_RANDOM"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_RANDOM)


def forget(maps: Sequence[mmap.mmap]) -> None:
    """Give back the memory of the pages that were read; the files may still be read."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def in_order(maps: Sequence[mmap.mmap]) -> Generator[None]:
    """Have them read ahead for once."""
    if hasattr(mmap, "MADV_NORMAL"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_NORMAL)
    try:
        yield
    finally:
        at_random(maps)
