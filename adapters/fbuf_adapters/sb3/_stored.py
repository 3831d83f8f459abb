"""The rows that a buffer holds, as the arrays of Stable-Baselines3's own buffers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from fbuf_adapters.sb3._columns import Array


class Stored(NamedTuple):
    """All rows: arrays `[buffer_size, n_envs, ...]`, 0 where none was written.

    They are copies, and read-only: a change of them would not reach the buffer.
    """

    observations: Any
    next_observations: Any
    actions: Array
    rewards: Array
    dones: Array
    timeouts: Array


class Ends(np.ndarray[Any, np.dtype[np.float32]]):
    """The ends of episodes. One may be set: that of the newest rows, as `learn` does."""

    _ends: Any

    def __new__(cls, flags: Array, end: Any) -> Self:
        """Show flags; `end(row, value)` is called with what is set."""
        array = np.asarray(flags, np.float32).view(cls)
        array._ends = end
        array.flags.writeable = False
        return array

    def __array_finalize__(self, other: Any) -> None:
        """Take no part in arrays that are made of this one."""
        self._ends = None

    def __setitem__(self, index: Any, value: Any) -> None:
        """End the episodes of the newest rows."""
        if self._ends is None:
            super().__setitem__(index, value)  # refused by NumPy: the array is read-only
        else:
            self._ends(index, value)
