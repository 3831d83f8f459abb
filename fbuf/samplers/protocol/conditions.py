"""The conditions for a row to be drawn: which rows are starts of windows."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Window:
    """The conditions for a row to be a start.

    Attributes:
        length: Rows of a window, at least 1.
        stride: Only every `stride`-th step of a lane is a start.
        first_only: Only the first row of an episode is a start.
        strict: Every window has all of its rows.
        by_episode: The sampler needs to know which starts are in one episode.
    """

    length: int
    stride: int
    first_only: bool
    strict: bool
    by_episode: bool = False

    @property
    def every_row(self) -> bool:
        """Whether every stored row is a start."""
        return self.length == 1 and self.stride == 1 and not self.first_only and not self.by_episode


EVERY_ROW = Window(length=1, stride=1, first_only=False, strict=True)
"""The conditions of samplers of single rows."""
