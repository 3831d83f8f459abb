"""The oracle of `fbuf.testing`, with the laws of the samplers of fbuf, and over shards."""

from __future__ import annotations

from fbuf import testing
from support.tags import new_tag

NOT_FOLLOWED = 128 | 256
"""Faults of what the rows hold, and of a moment between two adds. The rows of most histories are
made up: no row begins where the row before led to. These faults have tests of their own."""


def told(fault):
    """The fault bits of a state that the oracle has, too."""
    return int(fault) & ~NOT_FOLLOWED


class Oracle(testing.Oracle):
    """Every row of every lane since the last clear. Without environments there is one lane.

    `alpha`, `eps`, `floor` and `new_priority` are those of the sampler; without priorities they do
    not matter. Priorities are kept as they are stored. Each of `shards` has the next lanes, and its
    slots follow those of the one before.
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
        super().__init__(length, envs, autoreset, tag=new_tag())
        self.shards, self.lanes_of_shard = shards, envs // shards
        self.alpha, self.eps, self.floor, self.new_priority = alpha, eps, floor, new_priority
        self.windows = window, stride, first_only, strict
        self.largest_ever = 0.0

    def clear(self):
        super().clear()
        self.largest_ever = 0.0

    def extend(self, other):
        super().extend(other)
        self.largest_ever = max(self.largest_ever, other.largest_ever)

    def remember(self, priority):
        self.largest_ever = max(self.largest_ever, priority)

    # Rows, by where they are.

    def slot(self, lane, at):
        shard, own = divmod(lane, self.lanes_of_shard)
        return (shard * self.length + at % self.length) * self.lanes_of_shard + own

    def place(self, slot):
        row, own = divmod(slot, self.lanes_of_shard)
        shard, step = divmod(row, self.length)
        lane = shard * self.lanes_of_shard + own
        return self.lanes[lane], self.in_lane(lane, step)

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
