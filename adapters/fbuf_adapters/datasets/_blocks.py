"""Rows of consecutive steps, as a data set has them, and how many to move at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fbuf_adapters.datasets._fields import Array

_MOST_ROWS = 2**14
_FEWEST_ROWS = 2**8
_MOST_BYTES = 2**22  # larger chunks of images were slower: beside the buffer some ten are in memory


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive rows, as many as the data set finds easy.

    Attributes:
        fields: Leaves `[n, ...]`, by name.
        following: The next observations of the rows, leaves `[n, ...]`, named as by `under`; empty
            if nobody wants them.
        terminated: bool `[n]`.
        truncated: bool `[n]`.
        unknown: bool `[n]`; ends whose last observation the data set lacks, and a target needs.
        stands_in: bool `[n]`; ends whose last observation the data set lacks, and no target needs:
            the row's own observation stands in for it.
        episode: The number of the first row's episode.
        first: The number of the first row.
    """

    fields: dict[str, Array]
    following: dict[str, Array]
    terminated: Array
    truncated: Array
    unknown: Array
    stands_in: Array
    episode: int
    first: int

    def place(self, row: int) -> str:
        """Return the place of a row in words."""
        ended = self.terminated[:row] | self.truncated[:row]
        return f"episode {self.episode + int(ended.sum())}, row {self.first + row} of the data set"


def rows_at_once(specs: Iterable[Any], rows: int) -> int:
    """Return how many rows to move at a time: a few sizes for all rows, fewer for wide rows.

    Args:
        specs: Shape and dtype of each leaf of a row.
        rows: How many rows there are.
    """
    width = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)
    most = max(min(_MOST_ROWS, _MOST_BYTES // max(width, 1)), 1)
    return min(most, max(_FEWEST_ROWS, 1 << (max(rows, 1) - 1).bit_length()))
