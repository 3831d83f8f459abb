"""Joining small files of rows, so that many small saves do not leave thousands of files.

Where there are more than `MOST`, the `TOGETHER` neighbours of the fewest rows become one. A row is
then written anew about once for every `TOGETHER`-fold growth of its file: few times in its life.
Where more than half of all rows in files have been overwritten, those with the most of these are
written anew without them.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from fbuf.checkpoint import npy, row_ranges
from fbuf.checkpoint.files import CHUNK, Block
from fbuf.checkpoint.manifest import Manifest, Segment

MOST = 64
"""The most files of rows that a checkpoint has before some are joined."""

TOGETHER = 32
"""How many become one."""


@dataclasses.dataclass(frozen=True)
class Joined:
    """Files that are to become one.

    Attributes:
        old: What they hold, the oldest first.
        new: What the new one holds.
        blocks: What is to be written.
    """

    old: tuple[Segment, ...]
    new: Segment
    blocks: list[Block]


def joined(
    folder: pathlib.Path, name: str, store: str, manifest: Manifest, widths: Sequence[int]
) -> Joined | None:
    """Some files of a store as one; None if there are few.

    Args:
        folder: The directory.
        name: What the new file is to be called.
        store: The store, by name.
        manifest: A manifest with these files.
        widths: The bytes of a row of each array of the store.
    """
    segments, size = manifest.segments[store], lambda at: row_ranges.size(row_ranges.of_segment(at))
    oldest = _oldest(manifest, store)
    live = lambda at: row_ranges.size(row_ranges.newer(row_ranges.of_segment(at), oldest))
    count = min(TOGETHER, len(segments))
    candidates = [segments[at : at + count] for at in range(len(segments) - count + 1)]
    candidates = [some for some in candidates if _is_one_stretch(some, oldest)]
    if not candidates:
        return None
    if len(segments) > MOST:
        old = min(candidates, key=lambda some: sum(map(size, some)))
    elif sum(map(size, segments)) > 2 * max(sum(map(live, segments)), sum(manifest.live[store])):
        # Of rows that heads of several speeds have written, many may be overwritten.
        old = max(candidates, key=lambda some: sum(map(size, some)) - sum(map(live, some)))
    else:
        return None
    first = tuple(map(max, old[0].first, oldest))
    new = Segment(name, first, tuple(map(max, first, old[-1].last)))
    views = []
    for segment in old:
        # What is copied is checked first: damage must not get a checksum of its own.
        npy.check(folder, segment.file, manifest.files[segment.file])
        views.append(npy.views(folder / segment.file, size(segment), widths))
    blocks = [
        Block(size(new), width, _rows(old, new, [view[at] for view in views]))
        for at, width in enumerate(widths)
    ]
    return Joined(old, new, blocks)


def _oldest(manifest: Manifest, store: str) -> tuple[int, ...]:
    """Of each head the place where the rows begin that still count."""
    total, live = manifest.totals[store], manifest.live[store]
    return tuple(t - n for t, n in zip(total, live, strict=True))


def _is_one_stretch(segments: Sequence[Segment], oldest: tuple[int, ...]) -> bool:
    """Whether each begins where the one before it ends, but for rows that do not count."""
    return all(
        last == first or first <= begin
        for one, two in itertools.pairwise(segments)
        for last, first, begin in zip(one.last, two.first, oldest, strict=True)
    )


def _rows(
    old: Sequence[Segment], new: Segment, arrays: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """The rows of the new file in their order: head by head, the oldest first."""
    for head, begin in enumerate(new.first):
        for segment, array in zip(old, arrays, strict=True):
            counts = [b - a for a, b in zip(segment.first, segment.last, strict=True)]
            at = sum(counts[:head])
            first = at + max(begin - segment.first[head], 0)
            last, step = at + counts[head], max(CHUNK // max(array.shape[1], 1), 1)
            for start in range(first, last, step):
                yield array[start : min(start + step, last)]
