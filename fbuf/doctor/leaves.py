"""Figures of each field of the stored rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.checks.foreign import printable
from fbuf.doctor.chunks import chunks, row_bytes
from fbuf.doctor.opened import Part
from fbuf.storage.layout import Layout

_BYTES = 2**28
"""The most bytes to read of a leaf."""

_FEW = 2**10
"""The rows to read of a leaf, of any width."""


@dataclasses.dataclass
class Leaf:
    """The figures of a field, or of a leaf of a field.

    Attributes:
        dtype: Its dtype.
        shape: Its shape in a row.
        rows: The number of rows read.
        not_finite: The number of rows with NaN or an infinity.
        newest_bad: The slot of the newest such row, counted on over the shards; -1 without one.
        alike: Whether all rows are equal.
        zero: Whether all numbers are 0.
        least: The least finite number; 0 without one.
        most: The largest finite number; 0 without one.
        scale: The root mean square of all finite numbers but zeros; 0 without one.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int = 0
    not_finite: int = 0
    newest_bad: int = -1
    alike: bool = True
    zero: bool = True
    least: float = 0.0
    most: float = 0.0
    scale: float = 0.0
    _first: np.ndarray[Any, Any] | None = None
    _squares: float = 0.0
    _numbers: int = 0
    _others: int = 0

    def take(self, rows: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> None:
        """Add rows, `[B, ...]`, at int64 `[B]` places, to the figures."""
        values = rows.reshape(rows.shape[0], -1)
        if np.dtype(values.dtype).kind == "c":
            values = np.concatenate([values.real, values.imag], axis=1)
        if values.dtype.kind == "b" or values.dtype.itemsize <= 2:
            values = values.astype(np.float32)  # NumPy does not know bfloat16
        first = values[:1] if self._first is None else self._first
        good = np.isfinite(values)
        bad = np.flatnonzero(~good.all(axis=1))
        self.not_finite += bad.size
        if bad.size:
            self.newest_bad = int(places[bad[-1]])
        self.alike &= bool((values == first).all())
        numbers = values[good].astype(np.float64)
        if numbers.size:
            least, most = float(numbers.min()), float(numbers.max())
            self.least = min(self.least, least) if self._numbers else least
            self.most = max(self.most, most) if self._numbers else most
            self._numbers += numbers.size
            others = numbers[numbers != 0]
            with np.errstate(over="ignore"):
                self._squares += float(np.sum(others**2))
            self._others += others.size
            self.scale = math.sqrt(self._squares / self._others) if self._others else 0.0
        self.zero &= not (self._others or bad.size)
        self.rows += rows.shape[0]
        self._first = first

    def figures(self) -> dict[str, Any]:
        """Return the figures, in types of JSON."""
        scale = self.scale if math.isfinite(self.scale) else None
        return {
            "rows read": self.rows,
            "not finite": self.not_finite,
            "least": self.least,
            "most": self.most,
            "scale": scale,
            "alike": self.alike,
        }


def names(layout: Layout) -> list[str]:
    """Return the names of the leaves, with dots between keys; an item of one array has no name."""
    paths = [path for path, _ in jax.tree.leaves_with_path(layout.item)]
    return [printable(jax.tree_util.keystr(path, simple=True, separator=".")) for path in paths]


def of_rows(
    parts: Sequence[Part],
    live: Sequence[np.ndarray[Any, Any]],
    most: int,
    known: Mapping[int, Sequence[np.ndarray[Any, Any]]],
) -> dict[str, Leaf]:
    """Return the figures of each leaf, by its name.

    Args:
        parts: The buffer, or all shards of one.
        live: The slots of the rows of each part, each lane's oldest first.
        most: The most rows to read; of more, a sample from all over the buffer.
        known: The values of some leaves, by number, for each slot of each part. Such leaves are
            checked in all rows.
    """
    layout = parts[0].layout
    figures = [Leaf(field.dtype, field.shape) for field in layout.fields]
    others = [
        leaf for leaf in range(len(figures)) if leaf not in known and layout.fields[leaf].size
    ]
    narrow = [leaf for leaf in others if layout.fields[leaf].narrow]
    groups = [narrow, *([leaf] for leaf in others if not layout.fields[leaf].narrow)]
    for number, (part, slots) in enumerate(zip(parts, live, strict=True)):
        behind = number * part.state.capacity
        for leaf, values in known.items():
            if slots.size:
                figures[leaf].take(values[number][slots], slots + behind)
        for group in filter(None, groups):
            widest = max(row_bytes(layout.fields[leaf]) for leaf in group)
            count = min(most, max(_FEW, _BYTES // widest)) // len(parts)
            for some, arrays in chunks(part, group, _spread_out(slots, max(count, 1))):
                for leaf, array in zip(group, arrays, strict=True):
                    figures[leaf].take(array, some + behind)
    return dict(zip(names(layout), figures, strict=True))


def _spread_out(slots: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return a random sample of `count` slots, in order; or all slots, if there are no more."""
    if slots.size <= count:
        return slots
    # Evenly spaced rows could all belong to one environment.
    some = np.random.default_rng(0).choice(slots.size, count, replace=False, shuffle=False)
    return slots[np.sort(some)]
