"""The rows that a buffer holds, as the arrays of Stable-Baselines3's own buffers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

import fbuf
from fbuf.adapter_api import View
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns
from fbuf_adapters.sb3._frames import Stacked
from fbuf_adapters.sb3._memory import Fields, Memory


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


def stored(memory: Memory, columns: Fields, view: View) -> Stored:
    """Read all rows through a view that returns transitions. O(N)."""
    shape = memory.length, memory.staging.n_envs
    slots = memory.slots(np.arange(shape[0])[:, None], np.arange(shape[1])[None])
    batch = memory.read(slots.reshape(-1), view)

    def array(column: Column, leaf: Any) -> Array:
        found = column.numpy(np.array(leaf)).reshape(*shape, *column.shape)
        found.flags.writeable = False
        return found

    item, flag = batch.data.item, Column((), np.dtype(np.float32))
    ended = (batch.terminated | batch.truncated).astype(np.float32)
    return Stored(
        map_columns(array, columns["observations"], item["observation"]),
        map_columns(array, columns["observations"], batch.data.next_observation),
        array(columns["actions"], item["action"]),
        array(flag, item["reward"]),
        Ends(array(flag, ended), memory),
        array(flag, batch.truncated.astype(np.float32)),
    )


class Ends(np.ndarray[Any, np.dtype[np.float32]]):
    """The ends of episodes. Those of the newest rows may be set, as `learn` does."""

    _memory: Memory | None

    def __new__(cls, flags: Array, memory: Memory) -> Self:
        """Show flags `[buffer_size, n_envs]`."""
        array = flags.view(cls)
        array._memory = memory
        return array

    def __array_finalize__(self, other: Any) -> None:
        """Make of arrays that are computed from this one plain ones."""
        self._memory = None

    def __setitem__(self, index: Any, value: Any) -> None:
        """End the episodes of the newest rows, as truncated."""
        memory = self._memory
        if memory is None:
            super().__setitem__(index, value)
            return
        which = np.zeros(self.shape, bool)
        which[index] = value
        newest = (memory.steps - 1) % memory.length
        ends = which[newest].copy()
        which[newest] = False
        if which.any() or not ends.any():
            raise ValueError(
                f"{WHERE}: dones can be set for the newest rows alone; stored rows do not change. "
                "Add the rows to a new buffer"
            )
        memory.end(ends & memory.open())


def plain(view: View) -> View:
    """Return the view of single transitions, with stacks of frames if the given view has them."""
    if isinstance(view, Stacked):
        return Stacked(fbuf.Transition(), view.n, view.axis, view.copies)
    return fbuf.Transition()
