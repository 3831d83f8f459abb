"""Rows of a buffer, read some at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fbuf.doctor.opened import Part
from fbuf.storage.layout import Field

_BYTES = 2**25
"""The most bytes of a leaf to read at a time."""

_ROWS = 2**14
"""The most rows to read at a time."""


def row_bytes(field: Field) -> int:
    """Return the bytes that a leaf takes in a row."""
    return math.prod(field.shape) * field.dtype.itemsize


def chunks(
    part: Part, leaves: Sequence[int], slots: np.ndarray[Any, Any]
) -> Iterator[tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]]:
    """Yield some slots, and leaves of the rows there, as arrays of NumPy.

    Args:
        part: The buffer.
        leaves: The numbers of the leaves.
        slots: The slots of stored rows.
    """
    widest = max(row_bytes(part.layout.fields[leaf]) for leaf in leaves)
    step = max(1, min(_ROWS, _BYTES // max(widest, 1), part.state.capacity))
    for start in range(0, slots.size, step):
        some = slots[start : start + step]
        # One program serves all chunks, also the last one.
        padded = np.full(step, some[0], np.int32)
        padded[: some.size] = some
        yield some, [np.asarray(leaf)[: some.size] for leaf in part.read(padded, leaves)]
