"""Joining small files of rows, so that many small saves do not leave thousands of files.

With more than `MOST` files, the `TOGETHER` neighbours of the fewest rows become one. A row is then
written anew about once for every `TOGETHER`-fold growth of its file: few times in its life. Where
more than half of all rows in files have been overwritten, the files with the most such rows are
written anew without them.

For each head, a file begins where the one before it ends, but for rows that no longer count. A save
adds all rows since the last one that still count, and a file goes only if none of its rows counts.
So any neighbours may become one.
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
"""The most files of rows that a checkpoint has before some are joined."""

TOGETHER = 32
"""The number of files that become one."""


@dataclasses.dataclass(frozen=True)
class Compaction:
    """Files that become one.

    Attributes:
        old: Their rows, the oldest first.
        new: The rows of the new file.
        blocks: The content of the new file.
    """

    old: tuple[Segment, ...]
    new: Segment
    blocks: list[RowBlock]


def compaction(
    folder: pathlib.Path, name: str, store: str, manifest: Manifest, widths: Sequence[int]
) -> Compaction | None:
    """Return some files of a store as one; None if there are few.

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
        # Heads of several speeds may leave many overwritten rows.
        old = max(candidates, key=lambda some: size(some) - live(some))
    else:
        return None
    first = tuple(map(max, old[0].first, oldest))
    new = Segment(name, first, tuple(map(max, first, old[-1].last)))
    views = []
    for segment in old:
        # The check comes before the copy: damage must not get a checksum of its own.
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
