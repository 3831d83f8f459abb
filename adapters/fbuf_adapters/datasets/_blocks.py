"""Rows of consecutive steps, as a data set has them."""

from __future__ import annotations

import dataclasses

from fbuf_adapters.datasets._fields import Array


@dataclasses.dataclass(frozen=True)
class Block:
    """So many rows, whatever the data set finds easy.

    Attributes:
        fields: Leaves `[n, ...]`, by name.
        following: What the rows led to, leaves `[n, ...]`, named as by `under`; empty if nobody
            wants it.
        terminated: bool `[n]`.
        truncated: bool `[n]`.
        unknown: bool `[n]`; ends whose last observation the data set lacks, and a target needs.
        stands_in: bool `[n]`; ends whose last observation it lacks, and no target needs: the row's
            own observation stands in for it.
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
        """Where a row is, in words."""
        ended = self.terminated[:row] | self.truncated[:row]
        return f"episode {self.episode + int(ended.sum())}, row {self.first + row} of the data set"
