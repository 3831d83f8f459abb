"""The rows of a buffer, lane by lane, oldest first."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.dispatch.call import refuse_consumed
from fbuf.host import HostStore
from fbuf.storage.ring import CUT, DUMMY, REMOVED, STANDS_IN, TERMINATED, TRUNCATED
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Array, named, under

_MOST_ROWS = 2**14
_MOST_BYTES = 2**22


class Stored:
    """What there is in a buffer, without removed rows.

    Attributes:
        slots: int32 `[rows]`.
        terminated: bool `[rows]`.
        truncated: bool `[rows]`; also where the following row is not there: after the newest row,
            and before a removed one.
        whole: bool `[rows]`; all rows of the row's episode are there, from its first one.
        stands_in: bool `[rows]`; what the row's step led to is not known, whatever is stored.
    """

    def __init__(self, where: str, state: Any) -> None:
        if isinstance(state, HostStore):
            self._read, state = state.read, state.index
        elif isinstance(state, fbuf.State):
            refuse_consumed("rows", state)
            self._read = functools.partial(fbuf.read, state)
        else:
            raise TypeError(
                f"{where}: state must be a fbuf.State or a HostStore, got {type(state).__name__}"
            )
        if state.ring.cursor.ndim != 2:
            raise DatasetError(f"{where}: the buffer is a batch of buffers; give one of them")
        self._state = state
        ring = state.ring
        lanes = ring.lanes
        # Of the slots that hold rows, oldest first: `[lanes, length]`.
        back = jnp.arange(ring.lane_length - 1, -1, -1, dtype=jnp.int32)[None]
        newest = ring.clamp(ring.newest())
        in_order = np.asarray(ring.later(newest[:, None], -back))
        there = np.asarray(ring.holds(jnp.asarray(in_order)))
        # Computed, for a view of the buffer's own memory would keep it from being written to.
        flags = np.asarray(ring.flags | jnp.uint8(0))
        # A head that has come around once and stands at its beginning has overwritten nothing.
        cursor = np.asarray(ring.cursor + 0)
        overwrote = (cursor[2] == ring.head_capacity) & ~((cursor[1] == 1) & (cursor[0] == 0))
        overwrote = np.broadcast_to(overwrote, (lanes,))
        parts = [
            _lane(slots[held], flags[slots[held]], bool(lost))
            for slots, held, lost in zip(in_order, there, overwrote, strict=True)
        ]
        self.slots, self.terminated, self.truncated, self.whole = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        self.stands_in = flags[self.slots] & STANDS_IN > 0

    @property
    def item(self) -> Any:
        """One row."""
        return self._state.storage.item

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept."""
        kept = self._state.next_obs
        return None if kept is None else kept.field

    def read(self, rows: Array, field: str | None = None) -> Iterator[dict[str, Array]]:
        """Rows by their numbers, some at a time: leaves `[n, ...]` by name.

        Args:
            rows: int `[n]`.
            field: Only this field. None is all.
        """
        view = fbuf.Item() if field is None else fbuf.Item(fields=(field,))
        for _, batch in self._batches(rows, view):
            if field is None:
                yield named(batch)
            else:
                led = under(named({NEXT: batch[field]}), NEXT)
                yield {field + name: leaf for name, leaf in led.items()}

    def led_to(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """What the steps of rows led to, named as by `under`, and whether that is known."""
        parts: list[dict[str, Array]] = []
        known: list[Array] = []
        if self.next_of is not None:
            view = fbuf.Transition(fields=(self.next_of,))
            for there, data in self._batches(rows, view):
                parts.append(under(named({NEXT: data.next_observation}), NEXT))
                known.append(there)
        else:
            for part in self.read(rows, NEXT):
                parts.append(under(part, NEXT))
                known.append(np.ones(len(next(iter(part.values()))), np.bool_))
        led_to = {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
        return led_to, np.concatenate(known) & ~self.stands_in[rows]

    def _batches(self, rows: Array, view: Any) -> Iterator[tuple[Array, Any]]:
        size = batch_size(self.item, len(self.slots))
        for start in range(0, len(rows), size):
            wanted = self.slots[rows[start : start + size]]
            padded = np.pad(wanted, (0, size - len(wanted)), constant_values=-1)
            batch = self._read(fbuf.ids_at(self._state, padded), view=view)
            part = lambda leaf, n=len(wanted): np.asarray(leaf)[:n]
            yield part(batch.mask), jax.tree.map(part, batch.data)


def batch_size(item: Any, rows: int) -> int:
    """How many rows to read at a time: a few sizes for all buffers, fewer of wide rows."""
    leaves = jax.tree.leaves(item)
    width = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    most = max(min(_MOST_ROWS, _MOST_BYTES // max(width, 1)), 1)
    return min(most, max(256, 1 << (max(rows, 1) - 1).bit_length()))


def _lane(slots: Array, flags: Array, lost: bool) -> tuple[Array, Array, Array, Array]:
    """Of a lane, whose rows before the first may be overwritten: as in `Stored`."""
    gone = flags & REMOVED > 0
    last = flags & (TERMINATED | TRUNCATED | DUMMY) > 0
    number = np.cumsum(last) - last
    episodes = int(number[-1]) + 1 if len(number) else 0
    broken = np.zeros(episodes, np.bool_)
    broken[number[gone & (flags & DUMMY == 0)]] = True
    if episodes and (lost or flags[0] & CUT):
        broken[0] = True
    terminated, truncated = flags & TERMINATED > 0, flags & TRUNCATED > 0
    if len(slots):
        before_gap = np.append(gone[1:], True) & ~terminated
        truncated |= before_gap
    kept = ~gone
    return slots[kept], terminated[kept], truncated[kept], ~broken[number[kept]]
