"""The stored rows of each lane, in the order of time, and their episodes; on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.storage.episodes import Spans, spans
from fbuf.storage.ring import CUT, DUMMY, ENDS, NEXT_BEGINS, REMOVED, UNFINISHED, Ring


class Lane(NamedTuple):
    """The stored rows of a lane, the oldest first.

    Attributes:
        slots: int64 `[rows]`; the slots of the rows.
        flags: uint8 `[rows]`; the flags of the rows.
        episodes: The episodes in these rows, without dummies; with removed rows.
    """

    slots: np.ndarray[Any, np.dtype[np.int64]]
    flags: np.ndarray[Any, np.dtype[np.uint8]]
    episodes: Spans

    def unbroken(self) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
        """Yield the slots of each episode without removed rows, which cut an episode in two."""
        removed = self.flags & REMOVED > 0
        first, last, *_ = _spans(self.flags, removed, False)
        for begin, end in zip(first, last, strict=True):
            yield self.slots[begin : end + 1]


def stored_lanes(ring: Ring) -> Iterator[Lane]:
    """Yield the stored rows of each lane. O(N) time and memory, on the host."""
    flags, cursor = _on_host(ring)
    for lane in range(ring.lanes):
        head, lap, stored = cursor[:, lane % ring.heads].tolist()
        places = np.arange(lane // ring.heads, stored, ring.lanes // ring.heads)
        slots = (head - stored + places) % ring.head_capacity * ring.heads + lane % ring.heads
        # A head at its beginning after exactly one round has overwritten nothing.
        overwritten = stored == ring.head_capacity and (lap, head) != (1, 0)
        own = flags[slots]
        yield Lane(slots, own, _spans(own, own & DUMMY > 0, overwritten))


def may_have_open_episodes(ring: Ring) -> bool:
    """Return whether any lane has an episode to end, or more to end than flags tell. O(N) bytes."""
    if ring.writes is not None:
        return False
    if ring.open is not None:  # it also has the resets that are due
        return True
    flags, (head, _, stored) = _on_host(ring)
    offset = (head - ring.lanes_per_head) % ring.head_capacity
    newest = flags[offset * ring.heads + np.arange(ring.lanes)]
    return bool(((newest & NEXT_BEGINS == 0) & (stored > 0)).any())


def _on_host(ring: Ring) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the flags, and the heads, laps and counts of rows: int64 `[3, heads]`."""
    # Copies: a view of the buffer's own memory would prevent writes to the buffer.
    cursor = jax.device_get(jnp.copy(ring.cursor)).astype(np.int64)
    return jax.device_get(jnp.copy(ring.flags)), cursor[:3]


def _spans(flags: np.ndarray[Any, Any], outside: np.ndarray[Any, Any], overwritten: bool) -> Spans:
    """Return the episodes in rows of these flags; see `spans`."""
    return spans(flags & ENDS > 0, outside, flags & CUT > 0, flags & UNFINISHED > 0, overwritten)
