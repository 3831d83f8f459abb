"""Check that new rows continue the rows before them, for rows on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fbuf.host.row_arrays import Rows
from fbuf.storage.deferred import Comparison, PendingWrite
from fbuf.storage.next_obs import alike, some_numbers

Leaves = list[np.ndarray[Any, Any]]


def differs(
    pending: Sequence[PendingWrite | Comparison],
    kept: Rows,
    lanes: int,
    observation: Leaves,
    following: Leaves,
) -> bool:
    """Tell whether a new row does not continue the row before it.

    Args:
        pending: The pending writes and comparisons of an add.
        kept: The kept next observations before the add: first those of the newest rows.
        lanes: The number of newest rows.
        observation: The field in the new rows, leaves `[B, ...]`.
        following: Their next observations, leaves `[B, ...]`.
    """
    for change in pending:
        if not isinstance(change, Comparison):
            continue
        place = np.asarray(change.place)
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
