"""Which windows no batch had yet, in plain Python: a list beside a buffer and its oracle."""

from __future__ import annotations

import jax
import numpy as np

import fbuf


class Fresh:
    """Mixed into a `Pair` whose sampler is a `fbuf.FreshFirst`, or one with a highest age.

    A start is `(lane, number of its row in the lane)`. Every start since the last clear is known,
    also of rows that are gone. `waiting` has those that no batch had, and that may still be drawn.
    """

    def __init__(self, shape, sampler, *args, **options):
        self.first = sampler.sampler if isinstance(sampler, fbuf.Limited) else sampler
        self.max_age = getattr(sampler, "max_age", None)
        self.known, self.waiting, self.missed = set(), [], 0
        super().__init__(shape, sampler, *args, **options)

    # Every change of the buffer, and what it does to fresh starts.

    def add(self, *args, **options):
        super().add(*args, **options)
        self.changed()

    def end(self, rng):
        super().end(rng)
        self.changed()

    def load(self, state, ends):
        """This state was saved and loaded, and its open episodes were ended."""
        self.state = state
        if ends:
            self.oracle.end_episode([True] * self.oracle.envs)
            self.changed()

    def remove(self, *args, **options):
        super().remove(*args, **options)
        self.changed()

    def clear(self):
        super().clear()
        self.known, self.waiting, self.missed = set(), [], 0

    def resize(self, length):
        waiting, behind = self.waiting, super().resize(length)
        moved = lambda starts: [(lane, at - behind[lane]) for lane, at in starts]
        self.waiting = [start for start in moved(waiting) if start[1] >= 0]
        self.missed += len(waiting) - len(self.waiting)
        self.known = {start for start in moved(self.known) if start[1] >= 0}
        self.known |= set(self.complete())  # those that no batch will have, as in the old buffer
        self.changed()
        return behind

    def extend(self, other):
        """The rows of another such pair come in; a row is known by its item."""
        item = lambda pair, start: pair.oracle.lanes[start[0]][start[1]].number
        had = {item(other, start) for start in other.known - set(other.waiting)}
        before = [len(rows) for rows in self.oracle.lanes]
        self.state = fbuf.extend(self.state, other.state)
        self.oracle.extend(other.oracle)
        self.missed += other.missed
        for lane, at in self.complete():
            if at >= before[lane] and item(self, (lane, at)) in had:
                self.known.add((lane, at))
        self.changed()

    def changed(self):
        """Find the new starts, and those that are none any more."""
        starts = set(self.complete())
        self.waiting += starts - self.known
        self.known |= starts
        if self.max_age is not None:  # it is retired, and none is there to be overwritten
            self.waiting = [start for start in self.waiting if self.age(start) < self.max_age]
        gone = [start for start in self.waiting if self.age(start) >= self.oracle.length]
        self.missed += len(gone)
        self.waiting = [start for start in self.waiting if start in starts and start not in gone]
        self.waiting.sort(key=lambda start: (-self.age(start), start[0]))

    def complete(self):
        """List every start whose window is complete, or whose episode has ended; by every row."""
        given = self.first.sampler
        stride = self.first.every or given.stride
        for lane, rows in enumerate(self.oracle.lanes):
            for at, row in enumerate(rows):
                if at % self.oracle.length % stride:
                    continue
                begins = (at == 0 or rows[at - 1].end or rows[at - 1].dummy) and not row.cut
                if given.first_only and not begins:
                    continue
                steps = rows[at : at + given.window]
                end = next((n + 1 for n, step in enumerate(steps) if step.end), None)
                whole = len(steps) == given.window and end in (None, given.window)
                if not whole and not (begins and not given.strict and end is not None):
                    continue
                if not any(step.removed or step.dummy for step in steps[:end]):
                    yield lane, at

    def age(self, start):
        """The number of rows that its environment has written since."""
        return len(self.oracle.lanes[start[0]]) - 1 - start[1]

    # Batches.

    def limit(self, batch_size):
        return min(len(self.waiting), batch_size, self.first.most or batch_size)

    def drawn(self, slots):
        """These fresh starts were drawn."""
        self.waiting = [w for w in self.waiting if self.oracle.slot(*w) not in slots]

    def others(self):
        """Slots of the rows that the other sampler may draw."""
        given = self.first.sampler
        slots = self.oracle.starts(given.window, given.stride, given.first_only, given.strict)
        if self.max_age is None:
            return slots
        return {slot for slot in slots if self.age(self.start(slot)) < self.max_age}

    def start(self, slot):
        rows, at = self.oracle.place(slot)
        return next(n for n, lane in enumerate(self.oracle.lanes) if lane is rows), at

    def share(self):
        """Return the probability of each slot in one of the other draws."""
        if self.per is None:
            return self.oracle.evenly(self.others())
        return self.oracle.by_priority(self.others())

    def agree(self, batch, stats, beta):
        """A batch, and figures from before it, are what the lists say."""
        batch = jax.tree.map(np.asarray, batch)
        slots, size = batch.ids.slot.tolist(), len(batch.mask)
        assert (int(stats["fresh"]), int(stats["missed"])) == (len(self.waiting), self.counted())
        number = self.limit(size)
        self.agree_on_order(slots[:number])
        share, count = self.share(), len(self.others())
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
                assert (batch.data[at], batch.ids.generation[at]) == (row.number, row.generation)
        self.drawn(slots[:number])

    def counted(self):
        """Return what `stats` counts as missed."""
        return self.missed if self.max_age is None else 0

    def agree_on_order(self, slots):
        """All shards give as many, if they have them, and each its oldest ones."""
        own = self.oracle.capacity // self.shards
        for shard in range(self.shards):
            waiting = [self.oracle.slot(*start) for start in self.waiting]
            waiting = [slot for slot in waiting if slot // own == shard]
            given = [slot for slot in slots if slot // own == shard]
            assert len(given) >= min(len(waiting), len(slots) // self.shards)
            assert given == waiting[: len(given)]
