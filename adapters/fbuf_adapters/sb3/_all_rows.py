"""The rows that a buffer holds, as the arrays of Stable-Baselines3's own buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import fbuf
from fbuf.adapter_api import TERMINATED, TRUNCATED, View
from fbuf_adapters.sb3._columns import Array, Column
from fbuf_adapters.sb3._frames import Stacked
from fbuf_adapters.sb3._memory import Fields, Memory
from fbuf_adapters.sb3._rows import FixedDict, Rows, refuse


class AllRows(NamedTuple):
    """All rows: arrays `[buffer_size, n_envs, ...]`, 0 where none was written.

    They are copies, and read-only: a change of them would not reach the buffer.
    """

    observations: Any
    next_observations: Any
    actions: Array
    rewards: Array
    dones: Array
    timeouts: Array


_FLAG = Column((), np.dtype(np.float32))
_FLAGS = {"dones": TERMINATED | TRUNCATED, "timeouts": TRUNCATED}
"""By the array, the flags of a row that make it 1."""
_FIELDS = {"observations": "observation", "actions": "action", "rewards": "reward"}
"""By the array, the field of a row."""


def rows_of(memory: Memory, columns: Fields, name: str) -> Any:
    """Return one of the arrays of `AllRows` without reading it: a `Rows`, or a dict of them."""

    def of(column: Any, path: tuple[str, ...]) -> Any:
        if isinstance(column, Column):
            return Rows(_Source(memory, name, path, column))
        return FixedDict({key: of(sub, (*path, key)) for key, sub in column.items()})

    if name in _FLAGS or name == "rewards":
        return of(_FLAG, ())
    return of(columns["actions" if name == "actions" else "observations"], ())


def stored(memory: Memory, columns: Fields) -> AllRows:
    """Read all rows. O(N)."""

    def read(rows: Any) -> Any:
        if isinstance(rows, Rows):
            return np.asarray(rows)
        return {name: read(part) for name, part in rows.items()}

    return AllRows(*[read(rows_of(memory, columns, name)) for name in AllRows._fields])


class _Source(NamedTuple):
    """The rows that an array shows.

    Attributes:
        memory: The rows.
        name: A field of `AllRows`.
        path: The keys of a part of observations that are dicts.
        column: The form of a row.
    """

    memory: Memory
    name: str
    path: tuple[str, ...]
    column: Column

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows."""
        return self.memory.length, self.memory.staging.n_envs, *self.column.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row."""
        return self.column.dtype

    def read(self, steps: Array, envs: Array) -> Array:
        """Return rows, by step and environment: with NumPy, where it can read them."""
        ages, there = self.memory.ages(steps, envs)
        if not there.any():
            return np.zeros((len(ages), *self.column.shape), self.column.dtype)
        ages = np.where(there, ages, 0)
        stacked = isinstance(self.memory.drawing.view, Stacked)
        if self.memory.device.platform != "cpu" or (stacked and "observations" in self.name):
            steps, envs = (np.where(there, places, 0) for places in (steps, envs))
            found = self._through_view(self.memory.slots(steps, envs))
        else:
            found = self._by_numpy(ages)
        if not there.all():
            found[~there] = 0
        return found

    def set(self, steps: Array, envs: Array, values: Array) -> None:
        """End the episodes of the newest rows, as `learn` does: they count as truncated."""
        memory = self.memory
        changed = (values != 0) != (self.read(steps, envs) != 0)
        newest = steps == (memory.steps - 1) % memory.length
        if not memory.steps or (changed & ~(newest & (values != 0))).any():
            refuse(self.name)
        ends = np.zeros(memory.staging.n_envs, bool)
        ends[envs[changed]] = True
        if ends.any():
            memory.end(ends)

    def _by_numpy(self, ages: Array) -> Array:
        """Read rows by their age."""
        rows = self.memory.rows()
        if self.name in _FLAGS:
            return (rows.flags(ages) & _FLAGS[self.name] > 0).astype(np.float32)
        following = self.name == "next_observations"
        number: Any = rows.observation if following else rows.item[_FIELDS[self.name]]
        for key in self.path:
            number = number[key]
        found = rows.following(ages).following[number] if following else rows.leaf(ages, number)
        return self.column.numpy(found)

    def _through_view(self, slots: Array) -> Array:
        """Read rows at slots with a compiled program."""
        # Each size compiles one, so small ones are rounded up to a few.
        size = len(slots)
        more = max(16, 1 << (size - 1).bit_length()) - size if size <= _SMALL else 0
        batch = self.memory.read(np.pad(slots, (0, more), mode="edge"), plain(self.memory))
        if self.name == "dones":
            return np.array(batch.terminated | batch.truncated)[:size].astype(np.float32)
        if self.name == "timeouts":
            return np.array(batch.truncated)[:size].astype(np.float32)
        following = self.name == "next_observations"
        data = batch.data
        found = data.next_observation if following else data.item[_FIELDS[self.name]]
        for key in self.path:
            found = found[key]
        return self.column.numpy(np.array(found))[:size]


_SMALL = 4096
"""Up to this number of rows, sizes are rounded up."""


def plain(memory: Memory) -> View:
    """Return the view of single transitions, with stacks of frames if the memory draws these."""
    view = memory.drawing.view
    if isinstance(view, Stacked):
        return Stacked(fbuf.Transition(), view.n, view.axis, view.copies)
    return fbuf.Transition()
