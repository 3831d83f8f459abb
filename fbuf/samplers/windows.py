"""Windows: samplers that draw only rows from which enough steps of one episode follow."""

from __future__ import annotations

import dataclasses

from fbuf.checks import values as check
from fbuf.samplers.planned import PlannedSampler
from fbuf.samplers.protocol import Sampler
from fbuf.storage.ring import Ring


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


class WindowedSampler(PlannedSampler):
    """Draw only starts: rows from which enough steps of one episode follow.

    Attributes:
        first_only: Draw only first steps of episodes.
        strict: With False, also draw the first row of an episode that is shorter than the window.
    """

    first_only: bool
    strict: bool

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is."""
        return not self._window.every_row

    @property
    def min_window(self) -> int:
        """The number of steps that follow in its episode from every drawn row, counting itself."""
        return self._window.length if self._window.strict else 1

    @property
    def _window(self) -> Window:
        return Window(self.window, self.stride, self.first_only, self.strict)

    def _check_window(self) -> None:
        """Refuse options of the wrong type or out of range."""
        name = type(self).__name__
        check.integer(name, "window", self.window)
        check.integer(name, "stride", self.stride)
        check.boolean(name, "first_only", self.first_only)
        check.boolean(name, "strict", self.strict)

    def _check_lanes(self, ring: Ring) -> None:
        """Refuse windows that no lane could ever hold."""
        lane, lanes, window = ring.lane_length, ring.lanes, self._window
        here = f"{lane} rows (capacity {ring.capacity} for {lanes} environments)"
        if window.length > lane:
            raise ValueError(
                f"fbuf.init: {type(self).__name__}(window={window.length}) is longer than a lane, "
                f"which has {here}; make the capacity larger or the window shorter"
            )
        if lane % window.stride:
            longer = (lane // window.stride + 1) * window.stride * lanes
            shorter = lane // window.stride * window.stride * lanes
            either = f"{shorter} or {longer}" if shorter else f"{longer}"
            raise ValueError(
                f"fbuf.init: {type(self).__name__}(stride={window.stride}) must divide the length "
                f"of a lane, {here}; take a capacity of {either}"
            )


def window_of(sampler: Sampler) -> Window:
    """Return the conditions for a row to be drawn by a sampler, also one of another class."""
    found = getattr(sampler, "_window", None)  # that of a sampler which draws as another one does
    if isinstance(found, Window):
        return found
    strict = sampler.min_window == sampler.window
    return Window(sampler.window, sampler.stride, first_only=False, strict=strict)
