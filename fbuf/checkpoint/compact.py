"""Joining small files of rows, so that many small saves do not leave thousands of files.

With more than `MOST` files, the `TOGETHER` neighbours with the fewest rows become one. A row is
rewritten about once for every `TOGETHER`-fold growth of its file, so only a few times. If more than
half of all rows in files have been overwritten, the files with the most such rows are rewritten
without them.

For each head, a file begins at the end of the file before it, apart from rows that no longer count.
A save adds all rows since the save before it that still count. A file is deleted only if no row of
it counts. So any neighbours may be joined.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from fbuf.checkpoint import npy, row_ranges
from fbuf.checkpoint.files import CHUNK, RowBlock
from fbuf.checkpoint.manifest import Manifest, Segment

MOST = 64
"""The most files of rows in a checkpoint; with more, some are joined."""

TOGETHER = 32
"""The number of files to join."""


@dataclasses.dataclass(frozen=True)
class Compaction:
    """Some files, and the one that replaces them.

    Attributes:
        old: The rows of the old files, the oldest first.
        new: The rows of the new file.
        blocks: The content of the new file.
    """

    old: tuple[Segment, ...]
    new: Segment
    blocks: list[RowBlock]


def compaction(
    folder: pathlib.Path, name: str, store: str, manifest: Manifest, widths: Sequence[int]
) -> Compaction | None:
    """Return some files of a store joined into one; None if the store has few.

    Args:
        folder: The directory.
        name: The name of the new file.
        store: The store, by name.
        manifest: A manifest with these files.
        widths: The bytes of a row of each array of the store.
    """
    segments, oldest = manifest.segments[store], _oldest(manifest, store)
    size = lambda some: sum(sum(segment.counts) for segment in some)
    live = lambda some: sum(row_ranges.size(row_ranges.newer(at.places, oldest)) for at in some)
    count = min(TOGETHER, len(segments))
    candidates = [segments[at : at + count] for at in range(len(segments) - count + 1)]
    if len(segments) > MOST:
        old = min(candidates, key=size)
    elif size(segments) > 2 * max(live(segments), sum(manifest.live[store])):
        # Heads of different speeds may leave many overwritten rows.
        old = max(candidates, key=lambda some: size(some) - live(some))
    else:
        return None
    first = tuple(map(max, old[0].first, oldest))
    new = Segment(name, first, tuple(map(max, first, old[-1].last)))
    views = []
    for segment in old:
        # Check before the copy: damaged bytes must not get a new checksum.
        npy.check(folder, segment.file, manifest.files[segment.file])
        views.append(npy.views(folder / segment.file, sum(segment.counts), widths))
    blocks = [
        RowBlock(sum(new.counts), width, _rows(old, new, [view[at] for view in views]))
        for at, width in enumerate(widths)
    ]
    return Compaction(old, new, blocks)


def _oldest(manifest: Manifest, store: str) -> tuple[int, ...]:
    """Return, for each head, the place of the oldest row that still counts."""
    total, live = manifest.totals[store], manifest.live[store]
    return tuple(t - n for t, n in zip(total, live, strict=True))


def _rows(
    old: Sequence[Segment], new: Segment, arrays: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield the rows of the new file in their order: head by head, the oldest first."""
    for head, begin in enumerate(new.first):
        for segment, array in zip(old, arrays, strict=True):
            counts = segment.counts
            at = sum(counts[:head])
            first = at + max(begin - segment.first[head], 0)
            last, step = at + counts[head], max(CHUNK // max(array.shape[1], 1), 1)
            for start in range(first, last, step):
                yield array[start : min(start + step, last)]
