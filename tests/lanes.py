"""Lanes and episodes in plain Python: every row ever written, and a look at all of them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Row:
    """A row. It is the dummy of a reset, or it may end an episode."""

    item: int
    end: bool
    dummy: bool
    terminated: bool = False
    removed: bool = False
    priority: float = 0.0

    @property
    def truncated(self):
        return self.end and not self.terminated


class Lanes:
    """Every row of every lane since the last clear, and a look at all of them."""

    def __init__(self, envs, length, autoreset):
        self.envs, self.length, self.autoreset = envs, length, autoreset
        self.clear()

    def clear(self):
        self.lanes = [[] for _ in range(self.envs)]
        self.resets = [False] * self.envs

    def add(self, items, ends, terminated=None, mask=None, priority=None):
        """Rows `[steps, envs]`; of an end not said to be terminated, it is truncated."""
        for lane, rows in enumerate(self.lanes):
            for step in range(items.shape[0]):
                if mask is not None and not mask[step, lane]:
                    continue
                dummy = self.autoreset == "next_step" and self.resets[lane]
                end = bool(ends[step, lane]) and not dummy
                by_itself = end and terminated is not None and bool(terminated[step, lane])
                rows.append(Row(int(items[step, lane]), end, dummy, by_itself))
                if priority is not None:
                    rows[-1].priority = float(priority[step, lane])
                self.resets[lane] = end

    def end_episode(self, lanes):
        """Truncate what is open in some lanes, and forget that a reset is due."""
        for lane, rows in enumerate(self.lanes):
            if lanes[lane]:
                if rows and not rows[-1].dummy:
                    rows[-1].end = True
                self.resets[lane] = False

    def there(self, lane):
        """The numbers of the rows of a lane that have not been overwritten."""
        rows = self.lanes[lane]
        return range(max(0, len(rows) - self.length), len(rows))

    def slot(self, lane, at):
        return at % self.length * self.envs + lane

    def starts(self, window, stride=1, first=False):
        """Slots of the starts."""
        return {slot for run in self.runs(window, stride, first) for slot in run}

    def runs(self, window, stride=1, first=False):
        """The starts of each episode, in the order of time; where one is missing, there are two."""
        found = []
        for lane, rows in enumerate(self.lanes):
            run, last = [], None
            for at in self.there(lane):
                steps = rows[at : at + window]
                whole = len(steps) == window and not any(r.dummy or r.removed for r in steps)
                whole &= not any(row.end for row in steps[:-1])
                begins = at == 0 or rows[at - 1].end or rows[at - 1].dummy
                if not whole or at % self.length % stride or (first and not begins):
                    continue
                ended = last is not None and any(r.end or r.dummy for r in rows[last:at])
                if last is None or ended or at - last != stride:
                    run = []
                    found.append(run)
                run.append(self.slot(lane, at))
                last = at
        return found

    def newest(self, count):
        """Slots of the newest rows of environments that step together, whatever became of them."""
        rows = [
            (at, lane, self.slot(lane, at)) for lane in range(self.envs) for at in self.there(lane)
        ]
        return {slot for _, _, slot in sorted(rows)[-count:]}

    def remove(self, slots):
        for slot in slots:
            self.at(slot).removed = True

    def place(self, slot):
        """The rows of the lane a slot is in, and the number of its row there."""
        rows, step = self.lanes[slot % self.envs], slot // self.envs
        return rows, max(at for at in range(step, len(rows), self.length))

    def at(self, slot):
        """The row in a slot."""
        rows, number = self.place(slot)
        return rows[number]

    def stored(self):
        """Slots of the rows that can be found."""
        return [
            self.slot(lane, at)
            for lane, rows in enumerate(self.lanes)
            for at in self.there(lane)
            if not rows[at].removed and not rows[at].dummy
        ]
