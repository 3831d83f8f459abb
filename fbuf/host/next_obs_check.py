"""Whether new rows begin where the rows before them led to, for rows on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbuf.host.row_arrays import Rows
from fbuf.storage.deferred import Comparison, PendingWrite
from fbuf.storage.next_obs import alike, some_numbers

Leaves = list[np.ndarray[Any, Any]]


def differs(
    notes: Sequence[PendingWrite | Comparison],
    kept: Rows,
    lanes: int,
    observation: Leaves,
    following: Leaves,
) -> bool:
    """Tell whether a new row begins elsewhere than the row before it led to.

    Args:
        notes: What an add noted of the next observations.
        kept: The next observations as they were before the add: first those of the newest rows.
        lanes: How many newest rows there are.
        observation: The field in the new rows, leaves `[B, ...]`.
        following: Their next observations, leaves `[B, ...]`.
    """
    for note in notes:
        if not isinstance(note, Comparison):
            continue
        place = np.asarray(note.place)
        rows = np.flatnonzero(place >= 0)
        place = place[rows]
        of_kept = place < lanes
        for number, (new, led_to) in enumerate(zip(observation, following, strict=True)):
            begins, of_batch = some_numbers(new)[rows], some_numbers(led_to)
            expected = np.empty_like(begins)
            expected[of_kept] = some_numbers(kept.read(place[of_kept], number))
            expected[~of_kept] = of_batch[place[~of_kept] - lanes]
            with np.errstate(invalid="ignore", over="ignore"):
                if not alike(begins, expected).all():
                    return True
    return False
