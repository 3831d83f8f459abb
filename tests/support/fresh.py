"""Which starts no batch had yet, in plain Python: a list beside a buffer and its oracle."""

from __future__ import annotations

import jax
import numpy as np


class Fresh:
    """Mixed into a `Pair` whose sampler is a `fbuf.FreshFirst`.

    A start is `(lane, number of its row in the lane)`. `waiting` has the fresh ones, oldest first.
    """

    def __init__(self, *args, **options):
        self.known, self.waiting, self.missed, self.served = set(), [], 0, 0
        super().__init__(*args, **options)

    # Every change of the buffer, and what it does to fresh starts.

    def add(self, *args, **options):
        before = [len(rows) for rows in self.oracle.lanes]
        super().add(*args, **options)
        self.changed()
        added = [len(rows) - n for rows, n in zip(self.oracle.lanes, before, strict=True)]
        length, lanes = self.oracle.length, len(added) // self.shards
        heads = np.array(added).reshape(-1, lanes if self.whole_steps else 1)
        self.missed += int(np.maximum(heads.sum(1) - length * heads.shape[1], 0).sum())

    def remove(self, *args, **options):
        super().remove(*args, **options)
        self.changed()

    def clear(self):
        super().clear()
        self.known, self.waiting, self.missed, self.served = set(), [], 0, 0

    def resize(self, length):
        waiting, behind = len(self.waiting), super().resize(length)
        moved = lambda starts: [(lane, at - behind[lane]) for lane, at in starts]
        there = {self.start(slot) for slot in self.starts()}
        self.waiting = [start for start in moved(self.waiting) if start in there]
        self.known = {start for start in moved(self.known) if start[1] >= 0} | there
        self.missed += waiting - len(self.waiting)
        self.served = 0
        return behind

    def changed(self):
        """Find the new starts, and those that are none any more."""
        starts = {self.start(slot) for slot in self.starts(self.sampler.every)}
        for start in self.waiting:
            self.missed += start not in starts and self.is_gone(start)
        self.waiting = [start for start in self.waiting if start in starts]
        self.waiting += sorted(starts - self.known, key=lambda start: start[::-1])
        self.waiting.sort(key=lambda start: start[::-1])
        self.known |= starts

    def starts(self, stride=None):
        """Slots of the rows that the other sampler may draw, or of another stride."""
        given = self.sampler.sampler
        stride = stride or given.stride
        return self.oracle.starts(given.window, stride, given.first_only, given.strict)

    def start(self, slot):
        rows, at = self.oracle.place(slot)
        return next(n for n, lane in enumerate(self.oracle.lanes) if lane is rows), at

    def is_gone(self, start):
        lane, at = start
        return at not in self.oracle.there(lane)

    # Batches.

    def expected(self, batch_size):
        """The slots of the fresh draws of the next batch, where there is one shard."""
        slots = [self.oracle.slot(*start) for start in self.waiting]
        if len(slots) and not (self.one_lane or self.whole_steps):  # the turn goes around
            slots = sorted(slots, key=lambda slot: (slot < self.served, slot))
        return slots[: self.limit(batch_size)]

    def limit(self, batch_size):
        return min(len(self.waiting), batch_size, self.sampler.most or batch_size)

    def drawn(self, slots):
        """These fresh starts were drawn."""
        self.waiting = [w for w in self.waiting if self.oracle.slot(*w) not in slots]
        self.served = slots[-1] + 1 if slots else self.served

    def share(self):
        """Return the probability of each slot in one of the other draws."""
        if self.per is None:
            return self.oracle.evenly(self.starts())
        return self.oracle.by_priority(self.starts())

    def agree(self, batch, stats, beta):
        """A batch, and figures from before it, are what the lists say."""
        batch = jax.tree.map(np.asarray, batch)
        slots, size = batch.ids.slot.tolist(), len(batch.mask)
        assert (int(stats["fresh"]), int(stats["missed"])) == (len(self.waiting), self.missed)
        number = self.limit(size)
        if self.shards == 1:
            assert slots[:number] == self.expected(size)
        else:
            self.agree_over_shards(slots[:number])
        share, count = self.share(), len(self.starts())
        assert batch.mask.tolist() == [True] * number + [bool(share)] * (size - number)
        likely = np.array([1.0] * number + [share.get(slot, 0) for slot in slots[number:]])
        np.testing.assert_allclose(batch.probability, likely, rtol=1e-5)
        relative = np.where(np.arange(size) < number, 1, likely * count)
        power = 0 if self.per is None else beta
        weight = np.where(batch.mask, np.where(batch.mask, relative, 1) ** -power, 0)
        np.testing.assert_allclose(batch.weight, weight / max(weight.max(), 1e-30), rtol=1e-4)
        for at, slot in enumerate(slots):
            if batch.mask[at]:
                row = self.oracle.at(slot)
                assert (batch.data[at], batch.ids.generation[at]) == (row.item, row.generation)
        self.drawn(slots[:number])

    def agree_over_shards(self, slots):
        """All shards give as many, if they have them, and each its oldest ones."""
        own = self.oracle.capacity // self.shards
        for shard in range(self.shards):
            waiting = [self.oracle.slot(*start) for start in self.waiting]
            waiting = [slot for slot in waiting if slot // own == shard]
            given = [slot for slot in slots if slot // own == shard]
            assert len(given) >= min(len(waiting), len(slots) // self.shards)
            if self.whole_steps or self.one_lane:
                assert given == waiting[: len(given)]
            assert set(given) <= set(waiting)
