"""What a buffer must do, in plain Python: lists, loops and floats."""

from __future__ import annotations

import dataclasses
import math

BAD_PRIORITY, OUT_OF_RANGE, STALE = 1, 2, 4


@dataclasses.dataclass
class Row:
    item: int
    generation: int
    stored: float = 1.0
    terminated: bool = False
    truncated: bool = False
    removed: bool = False


class Oracle:
    """One ring of rows; `alpha` None stands for uniform sampling."""

    def __init__(self, capacity, alpha=None, eps=0.0, new_priority="largest"):
        self.capacity, self.alpha, self.eps, self.policy = capacity, alpha, eps, new_priority
        self.rows: list[Row | None] = [None] * capacity
        self.head = self.lap = self.fault = 0
        self.largest_ever = 0.0

    def power(self, priority):
        base = priority + self.eps
        return base**self.alpha if base > 0 else 0.0

    def default(self):
        live = [r.stored for r in self.rows if r and not r.removed]
        largest = max(live, default=0.0) if self.policy == "largest" else self.largest_ever
        return largest if largest > 0 else 1.0

    def add(self, items, terminated=None, truncated=None, priority=None, mask=None):
        default, count = self.default(), len(items)
        chosen = [i for i in range(count) if mask is None or mask[i]]
        kept = chosen[max(len(chosen) - self.capacity, 0) :]
        for i in chosen:
            stored = default
            if priority is not None:
                good = math.isfinite(priority[i]) and priority[i] >= 0
                stored = self.power(priority[i]) if good else default
                if not good and i in kept:
                    self.fault |= BAD_PRIORITY
            if i in kept:
                self.largest_ever = max(self.largest_ever, stored)
            self.rows[self.head] = Row(
                items[i],
                self.lap,
                stored,
                bool(terminated is not None and terminated[i]),
                bool(truncated is not None and truncated[i]),
            )
            self.head += 1
            if self.head == self.capacity:
                self.head, self.lap = 0, self.lap + 1

    def find(self, slot, generation):
        """The row, or None and the fault to set."""
        if slot == -1:
            return None, 0
        if not 0 <= slot < self.capacity:
            return None, OUT_OF_RANGE
        row = self.rows[slot]
        if row is None or row.removed or row.generation != generation:
            return None, STALE
        return row, 0

    def update_priority(self, ids, priority, mask=None):
        for i, (slot, generation) in enumerate(ids):
            if mask is not None and not mask[i]:
                continue
            row, fault = self.find(slot, generation)
            self.fault |= fault
            if row is None:
                continue
            if not math.isfinite(priority[i]) or priority[i] < 0:
                self.fault |= BAD_PRIORITY
            else:
                row.stored = self.power(priority[i])
                self.largest_ever = max(self.largest_ever, row.stored)

    def remove(self, ids, mask=None):
        found = []
        for i, (slot, generation) in enumerate(ids):
            if mask is None or mask[i]:
                row, fault = self.find(slot, generation)
                self.fault |= fault
                found += [row] if row else []
        for row in found:
            row.removed = True

    def clear(self):
        self.rows = [None] * self.capacity
        self.head, self.lap, self.fault, self.largest_ever = 0, self.lap + 1, 0, 0.0

    def values(self):
        """What each slot is drawn in proportion to."""
        live = [r if r and not r.removed else None for r in self.rows]
        return [0.0 if r is None else (1.0 if self.alpha is None else r.stored) for r in live]

    def size(self):
        return sum(1 for r in self.rows if r and not r.removed)
