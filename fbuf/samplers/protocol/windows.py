"""Windows: samplers that draw only rows from which enough steps of one episode follow."""

from __future__ import annotations

from fbuf.checks import values as check
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.storage.ring import Ring


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
        return not self.start_conditions.every_row

    @property
    def min_window(self) -> int:
        """The number of steps that follow in its episode from every drawn row, counting itself."""
        return self.start_conditions.length if self.start_conditions.strict else 1

    @property
    def start_conditions(self) -> Window:
        """The conditions for a row to be drawn: the options."""
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
        lane, lanes, window = ring.lane_length, ring.lanes, self.start_conditions
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
