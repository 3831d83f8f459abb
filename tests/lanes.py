"""Lanes and episodes in plain Python: every row ever written, and a look at all of them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Row:
    item: int
    end: bool
    dummy: bool
    removed: bool = False
    priority: float = 0.0


class Lanes:
    """Every row of every lane since the last clear, and a look at all of them."""

    def __init__(self, envs, length, autoreset):
        self.envs, self.length, self.autoreset = envs, length, autoreset
        self.clear()

    def clear(self):
        self.lanes = [[] for _ in range(self.envs)]

    def add(self, items, ends):
        for lane in range(self.envs):
            for step in range(items.shape[0]):
                rows = self.lanes[lane]
                dummy = self.autoreset == "next_step" and bool(rows) and rows[-1].end
                end = bool(ends[step, lane]) and not dummy
                rows.append(Row(int(items[step, lane]), end, dummy))

    def starts(self, window, stride, first):
        """Slots of the starts."""
        found = set()
        for lane, rows in enumerate(self.lanes):
            for at in range(max(0, len(rows) - self.length), len(rows)):
                steps = rows[at : at + window]
                whole = len(steps) == window and not any(r.dummy or r.removed for r in steps)
                whole &= not any(row.end for row in steps[:-1])
                begins = at == 0 or rows[at - 1].end or rows[at - 1].dummy
                if whole and at % self.length % stride == 0 and (begins or not first):
                    found.add(at % self.length * self.envs + lane)
        return found

    def remove(self, slots):
        for slot in slots:
            self.at(slot).removed = True

    def at(self, slot):
        """The row in a slot."""
        rows, step = self.lanes[slot % self.envs], slot // self.envs
        return rows[max(at for at in range(step, len(rows), self.length))]

    def stored(self):
        return [
            at % self.length * self.envs + lane
            for lane, rows in enumerate(self.lanes)
            for at in range(max(0, len(rows) - self.length), len(rows))
            if not rows[at].removed and not rows[at].dummy
        ]
