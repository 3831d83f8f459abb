"""Do what a buffer must do, in plain Python: lists, loops and floats, and a look at every row."""

from __future__ import annotations

import dataclasses
import math

from support import tags

BAD_PRIORITY, OUT_OF_RANGE, STALE, FOREIGN = 1, 2, 4, 512
NOT_FOLLOWED = 128 | 256
"""Faults of what the rows hold, and of a moment between two adds. The rows of most histories are
made up: no row begins where the row before led to. These faults have tests of their own."""


def told(fault):
    """The fault bits of a state that the oracle has, too."""
    return int(fault) & ~NOT_FOLLOWED


@dataclasses.dataclass
class Row:
    """A row, where `priority` is the value as stored."""

    item: int
    generation: int
    priority: float
    terminated: bool
    truncated: bool
    dummy: bool
    removed: bool = False
    cut: bool = False
    """The episode began before it, in rows that never came into this buffer."""

    @property
    def end(self):
        return self.terminated or self.truncated


class Oracle:
    """Every row of every lane since the last clear. Without environments there is one lane.

    `alpha`, `eps`, `floor` and `new_priority` are those of the sampler; without priorities they do
    not matter. Each of `shards` has the next lanes, and its slots follow those of the one before.
    """

    def __init__(
        self,
        length,
        envs=1,
        autoreset="same_step",
        alpha=1.0,
        eps=0.0,
        floor=0.0,
        new_priority="largest",
        shards=1,
        window=1,
        stride=1,
        first_only=False,
        strict=True,
    ):
        self.length, self.envs, self.autoreset = length, envs, autoreset
        self.shards, self.lanes_of_shard = shards, envs // shards
        self.alpha, self.eps, self.floor, self.new_priority = alpha, eps, floor, new_priority
        self.capacity = length * envs
        self.windows = window, stride, first_only, strict
        self.lanes: list[list[Row]] = [[] for _ in range(envs)]
        self.laps = [0] * envs
        self.resets = [False] * envs
        self.fault, self.largest_ever = 0, 0.0

    # An operation on a buffer.

    def add(self, items, terminated=None, truncated=None, priority=None, mask=None):
        """Rows `[steps, envs]`."""
        default = self.default()
        for lane, rows in enumerate(self.lanes):
            chosen = [n for n in range(len(items)) if mask is None or mask[n][lane]]
            for rank, step in enumerate(chosen):
                dummy = self.autoreset == "next_step" and self.resets[lane]
                kept = len(chosen) - rank <= self.length and not dummy
                stored = default
                if priority is not None:
                    given = float(priority[step][lane])
                    good = math.isfinite(given) and given >= 0
                    stored = self.power(given) if good else default
                    if kept and not good:
                        self.fault |= BAD_PRIORITY
                if kept:
                    self.largest_ever = max(self.largest_ever, stored)
                row = Row(
                    int(items[step][lane]),
                    self.generation(lane, len(rows)),
                    stored,
                    not dummy and terminated is not None and bool(terminated[step][lane]),
                    not dummy and truncated is not None and bool(truncated[step][lane]),
                    dummy,
                )
                rows.append(row)
                self.resets[lane] = row.end

    def end_episode(self, lanes):
        """Truncate what is open in some lanes, and forget that a reset is due."""
        for lane, rows in enumerate(self.lanes):
            if lanes[lane]:
                if rows and not rows[-1].dummy and not rows[-1].end:
                    rows[-1].truncated = True
                self.resets[lane] = False

    def extend(self, other):
        """The rows of another buffer, lane by lane or, where there is one lane, as episodes."""
        self.fault |= other.fault
        self.largest_ever = max(self.largest_ever, other.largest_ever)
        alike = self.envs == other.envs and self.autoreset == other.autoreset
        for lane in range(self.envs):
            new = other.kept(lane) if alike else [row for e in other.episodes() for row in e]
            if not new:
                continue
            if len(new) > self.length:
                new, left = new[-self.length :], new[-self.length - 1]
                new[0].cut |= not (left.end or left.dummy)
            self.end_episode([at == lane for at in range(self.envs)])
            self.lanes[lane] += [
                dataclasses.replace(row, generation=self.generation(lane, at))
                for at, row in enumerate(new, len(self.lanes[lane]))
            ]
            self.resets[lane] = alike and other.resets[lane]

    def generation(self, lane, at):
        return tags.generation(self.laps[lane] + at // self.length)

    def kept(self, lane):
        """Copies of the rows of a lane; before a full one nobody knows what was there."""
        there = self.there(lane)
        rows = [dataclasses.replace(self.lanes[lane][at]) for at in there]
        if rows and len(there) == self.length:
            rows[0].cut = True
        return rows

    def episodes(self):
        """Copies of all episodes, closed, in the order in which they ended; then by lane."""
        found = []
        for lane in range(self.envs):
            rows, episode = self.kept(lane), []
            for age, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
                if row.dummy:
                    continue
                episode.append(row)
                if row.end or age == 0:
                    row.truncated |= not row.end
                    found.append((-age, lane, episode))
                    episode = []
        return [e for *_, e in sorted(found, key=lambda f: f[:2]) if not all(r.removed for r in e)]

    def update_priority(self, ids, priority, mask=None):
        for row, given in zip(self.named(ids, mask), priority, strict=True):
            if row is None:
                continue
            if not math.isfinite(given) or given < 0:
                self.fault |= BAD_PRIORITY
            else:
                row.priority = self.power(given)
                self.largest_ever = max(self.largest_ever, row.priority)

    def remove(self, ids, mask=None):
        for row in self.named(ids, mask):
            if row is not None:
                row.removed = True

    def clear(self):
        self.laps = [
            lap + len(rows) // self.length + 1
            for lap, rows in zip(self.laps, self.lanes, strict=True)
        ]
        self.lanes = [[] for _ in range(self.envs)]
        self.fault, self.largest_ever = 0, 0.0

    # Rows, by where they are.

    def there(self, lane):
        """The numbers of the rows of a lane that have not been overwritten."""
        rows = self.lanes[lane]
        return range(max(0, len(rows) - self.length), len(rows))

    def slot(self, lane, at):
        shard, own = divmod(lane, self.lanes_of_shard)
        return (shard * self.length + at % self.length) * self.lanes_of_shard + own

    def place(self, slot):
        """The rows of the lane a slot is in, and the number of its row there, None without one."""
        row, own = divmod(slot, self.lanes_of_shard)
        shard, step = divmod(row, self.length)
        lane = shard * self.lanes_of_shard + own
        found = [at for at in self.there(lane) if at % self.length == step]
        return self.lanes[lane], found[0] if found else None

    def at(self, slot):
        """The row in a slot, None without one."""
        rows, number = self.place(slot)
        return None if number is None else rows[number]

    def stored(self):
        """Slots of the rows that can be found."""
        return [
            self.slot(lane, at)
            for lane, rows in enumerate(self.lanes)
            for at in self.there(lane)
            if not rows[at].removed and not rows[at].dummy
        ]

    def named(self, ids, mask=None):
        """The rows of ids `(slot, generation)`, None and a fault where there is none."""
        found = []
        for n, (slot, generation) in enumerate(ids):
            found.append(None)
            if slot == -1 or (mask is not None and not mask[n]):
                continue
            if not 0 <= slot < self.capacity:
                self.fault |= OUT_OF_RANGE
                continue
            row = self.at(slot)
            if row is None or row.removed or row.dummy or row.generation != generation:
                late = self.generation(0, len(self.lanes[0])) - generation
                self.fault |= STALE if late % 2**32 < 2**15 else FOREIGN
            else:
                found[-1] = row
        return found

    def newest(self, count):
        """Slots of the newest rows of environments that step together, whatever became of them.

        Each shard has as many of them as each other.
        """
        found = set()
        for first in range(0, self.envs, self.lanes_of_shard):
            lanes = range(first, first + self.lanes_of_shard)
            rows = sorted((at, lane) for lane in lanes for at in self.there(lane))
            found |= {self.slot(lane, at) for at, lane in rows[-(count // self.shards) :]}
        return found

    # The parts of a row that a view may read.

    def ahead(self, slot, steps, cross=False):
        """The rows from a slot on."""
        rows, at = self.place(slot)
        found = []
        for row in rows[at:]:
            if row.dummy and cross:
                continue
            if row.removed or row.dummy or len(found) == steps:
                break
            found.append(row)
            if row.end and not cross:
                break
        return found

    def back(self, slot, steps):
        """The rows up to a slot, no further back than its episode, the newest last."""
        rows, at = self.place(slot)
        found = [rows[at]]
        oldest = max(0, len(rows) - self.length)
        while len(found) < steps and at > oldest:
            at -= 1
            if rows[at].end or rows[at].removed or rows[at].dummy:
                break
            found.insert(0, rows[at])
        return found

    def neighbours(self, name, steps):
        """The names `(slot, generation)` of the rows around a named row, `(-1, 0)` for none."""
        slot, generation = name
        row = self.at(slot) if 0 <= slot < self.capacity else None
        if row is None or row.removed or row.dummy or row.generation != generation:
            return [(-1, 0)] * len(steps)
        rows, at = self.place(slot)
        lane = next(number for number, of in enumerate(self.lanes) if of is rows)
        before = len(self.back(slot, self.length)) - 1
        after = len(self.ahead(slot, self.length)) - 1
        return [
            (self.slot(lane, at + n), rows[at + n].generation) if -before <= n <= after else (-1, 0)
            for n in steps
        ]

    # The rows that a sampler may draw, and how often.

    def power(self, priority):
        base = max(priority + self.eps, self.floor)
        return base**self.alpha if base > 0 else 0.0

    def default(self):
        """Return the stored priority of a row that came without one."""
        largest = self.largest_ever
        if self.new_priority == "largest":
            starts = self.starts(*self.windows)
            largest = max((self.at(slot).priority for slot in starts), default=0.0)
        return largest if largest > 0 else max(1.0, self.floor**self.alpha)

    def runs(self, window, stride=1, first=False, strict=True):
        """The starts of each episode, in the order of time; where one is missing, there are two."""
        found = []
        for lane, rows in enumerate(self.lanes):
            run, last = [], None
            for at in self.there(lane):
                steps = rows[at : at + window]
                whole = len(steps) == window and not any(r.dummy or r.removed for r in steps)
                whole &= not any(row.end for row in steps[:-1])
                begins = at == 0 or rows[at - 1].end or rows[at - 1].dummy
                begins &= not rows[at].cut
                if begins and not strict:  # as much of it as there is
                    end = next((n + 1 for n, r in enumerate(steps) if r.end), len(steps))
                    whole = not any(r.dummy or r.removed for r in steps[:end])
                if not whole or at % self.length % stride or (first and not begins):
                    continue
                ended = last is not None and any(r.end or r.dummy for r in rows[last:at])
                if last is None or ended or at - last != stride:
                    run = []
                    found.append(run)
                run.append(self.slot(lane, at))
                last = at
        return found

    def starts(self, *options):
        """Slots of the starts."""
        return {slot for run in self.runs(*options) for slot in run}

    def evenly(self, slots):
        """Return the probability of each of some slots that are alike."""
        return dict.fromkeys(slots, 1 / max(len(slots), 1))

    def by_episode(self, *options):
        """Return the probability of each slot, where an episode is drawn first."""
        runs = self.runs(*options)
        return {slot: 1 / len(runs) / len(run) for run in runs for slot in run}

    def by_priority(self, starts):
        """Return the probability of each start, in proportion to the stored priorities."""
        values = {slot: self.at(slot).priority for slot in starts}
        total = sum(values.values())
        return {slot: value / total for slot, value in values.items() if value > 0}

    def mixed(self, ways):
        """Return each slot's probability by ways `(share, likely)`; empty ways drop."""
        whole = sum(share for share, likely in ways if likely)
        found = {}
        for share, likely in ways:
            for slot in likely if share else ():
                found[slot] = found.get(slot, 0) + share / whole * likely[slot]
        return found
