"""Whether new rows begin where the rows before them led to, for rows on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbuf.storage.elsewhere import Comparison, Note
from fbuf.storage.next_obs import alike, some_numbers

Leaves = list[np.ndarray[Any, Any]]


class Followed:
    """The next observations of the newest rows: some numbers of each, in memory.

    A store that was loaded begins without: its first rows are held against nothing.
    """

    def __init__(self, lanes: int) -> None:
        """Make it for so many lanes."""
        self._lanes = lanes
        self._newest: Leaves | None = None

    def differs(
        self, notes: Sequence[Note | Comparison], observation: Leaves, following: Leaves
    ) -> bool:
        """Tell whether a new row begins elsewhere, and keep where the newest rows led to.

        Args:
            notes: What an add noted of the next observations.
            observation: The field in the new rows, leaves `[B, ...]`.
            following: Their next observations, leaves `[B, ...]`.
        """
        new, led_to = [list(map(some_numbers, leaves)) for leaves in (observation, following)]
        known = self._newest is not None
        if self._newest is None:
            self._newest = [np.zeros((self._lanes, *leaf.shape[1:]), leaf.dtype) for leaf in led_to]
        found = False
        for note in notes:
            if isinstance(note, Comparison):
                place = np.asarray(note.place)
                rows = np.flatnonzero(place >= (0 if known else self._lanes))
                for leaf, old, batch in zip(new, self._newest, led_to, strict=True):
                    expected = np.concatenate([old, batch])[place[rows]]
                    begins = leaf[rows]
                    with np.errstate(invalid="ignore", over="ignore"):
                        found |= not alike(begins, expected).all()
            elif note.source is None:
                slots = np.asarray(note.slots)
                newest = np.flatnonzero(slots < self._lanes)
                for old, batch in zip(self._newest, led_to, strict=True):
                    old[slots[newest]] = batch[newest]
        return found
