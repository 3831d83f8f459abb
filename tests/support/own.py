"""A sampler and a view as users write them: each a class, with what `fbuf` offers for it alone."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fbuf.samplers import Draw, Plan, PlannedSampler, Sampler, Wrapper, random_bits, shards
from fbuf.storage.ring import REMOVED
from fbuf.trees import bit_tree
from fbuf.trees.bit_tree import BitTree
from fbuf.views import Reader, Reading, Request, View
from fbuf.xla.duplicates import last_of_each


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HotIndex:
    """Which rows are hot, and how many."""

    hot: BitTree
    count: jax.Array


@dataclasses.dataclass(frozen=True)
class Hot(Sampler):
    """Half of the draws are from all slots that are taken, half from rows whose last priority was
    above a threshold. A slot that was removed may come with `mask` False."""

    threshold: float = 1.0

    keeps_priorities: ClassVar[bool] = True

    def init(self, ring):
        return HotIndex(bit_tree.empty(ring.capacity), jnp.int32(0))

    def add(self, index, ring, span):
        given = jnp.ones(span.slots.shape) if span.priority is None else span.priority
        return self._set(index, ring, span.slots, (given > self.threshold) & span.drawable)

    def update_priority(self, index, ring, slots, given):
        slots = jnp.where(last_of_each(slots), slots, ring.capacity)
        return self._set(index, ring, slots, given.priority > self.threshold)

    def remove(self, index, ring, slots):
        return self._set(index, ring, slots, jnp.zeros(slots.shape, bool))[0]

    def take_over(self, index, ring, slots, origin):
        if not isinstance(origin.sampler, Hot):
            return super().take_over(index, ring, slots, origin)
        there = jnp.minimum(origin.slots, origin.index.hot.capacity - 1)
        return self._set(index, ring, slots, bit_tree.read(origin.index.hot, there))

    def can_sample(self, index, ring):
        return ring.live() > 0

    def draw(self, index, ring, ask):
        batch_size = ask.batch_size
        which, some, any_ = jax.random.split(ask.key, 3)
        from_hot = random_bits.uniforms(which, (batch_size,)) < self._share(index)
        ranks = random_bits.below(random_bits.bits(some, (2, batch_size)), index.count)
        anywhere = random_bits.below(random_bits.bits(any_, (2, batch_size)), ring.filled())
        slots = jnp.where(from_hot, bit_tree.select(index.hot, ranks), anywhere)
        mask = ring.holds(slots) & (ring.flags[slots] & REMOVED == 0)
        likely = jnp.where(mask, self.probability(index, ring, slots), 0)
        one = mask.astype(jnp.float32)
        return Draw(slots, likely, one, jnp.zeros_like(one), mask)

    def probability(self, index, ring, slots):
        share = self._share(index)
        hot = bit_tree.read(index.hot, slots).astype(jnp.float32) / jnp.maximum(
            index.count, 1
        ).astype(jnp.float32)
        return share * hot + (1 - share) / jnp.maximum(ring.filled(), 1).astype(jnp.float32)

    def stats(self, index, ring):
        return {"num_hot": index.count}

    def _share(self, index):
        return jnp.where(index.count > 0, 0.5, 0.0).astype(jnp.float32)

    def _set(self, index, ring, slots, hot):
        inside, named = ring.clamp(slots), slots < ring.capacity
        was = bit_tree.read(index.hot, inside)
        by = jnp.where(named, hot.astype(jnp.int32) - was.astype(jnp.int32), 0)
        changed = HotIndex(
            bit_tree.change(index.hot, inside, by), index.count + by.sum(dtype=jnp.int32)
        )
        return changed, jnp.zeros(slots.shape, jnp.uint32)


@dataclasses.dataclass(frozen=True)
class Newest(PlannedSampler):
    """The newest rows of all environments, each alike. It keeps nothing, and draws over a mesh."""

    steps: int = 2

    def init(self, ring):
        return ()

    def add(self, index, ring, span):
        return (), jnp.zeros(span.slots.shape, jnp.uint32)

    def remove(self, index, ring, slots):
        return ()

    def can_sample(self, index, ring):
        return self.shard_totals(index, ring) > 0

    def shard_totals(self, index, ring):
        return self._newest(ring)[1].sum(dtype=jnp.int32)

    def plan(self, index, ring, totals, ask):
        bits = random_bits.bits(ask.key, (2, ask.batch_size))
        return Plan(*shards.by_count(totals, ask.key, bits))

    def pick(self, index, ring, picks):
        slots, there = self._newest(ring)
        order = jnp.argsort(~there, stable=True)
        return slots[order[jnp.minimum(picks, slots.size - 1)]], None

    def weigh(self, totals, picked, ask):
        total = shards.sum_of_counts(totals)
        mask = jnp.broadcast_to(total > 0, picked.slots.shape)
        one = mask.astype(jnp.float32)
        return Draw(picked.slots, one / jnp.maximum(total, 1), one, jnp.zeros_like(one), mask)

    def probability(self, index, ring, slots):
        newest = (slots[:, None] == self._newest(ring)[0][None]).any(1)
        return jnp.where(newest, 1 / jnp.maximum(self.shard_totals(index, ring), 1), 0)

    def _newest(self, ring):
        """The slots of the newest rows of all environments, and which of them are there."""
        age = jnp.arange(min(self.steps, ring.lane_length), dtype=jnp.int32)[:, None]
        newest = ring.newest()
        any_, newest = newest < ring.capacity, ring.clamp(newest)
        slots = ring.later(newest[None], -age).reshape(-1)
        stored = (any_[None] & (age <= ring.older(newest)[None])).reshape(-1)
        return slots, stored & (ring.flags[slots] & REMOVED == 0)


@dataclasses.dataclass(frozen=True)
class Tempered(Wrapper):
    """Another sampler, but each draw is the likelier one of two: made around any sampler."""

    sampler: Sampler

    def draw(self, index, ring, ask):
        twice = self.sampler.draw(index, ring, ask._replace(batch_size=2 * ask.batch_size))
        first, second = (
            jax.tree.map(lambda leaf, part=part: leaf[part::2], twice) for part in (0, 1)
        )
        better = second.probability > first.probability
        slots = jnp.where(better, second.slots, first.slots)
        likely, one = self.probability(index, ring, slots), first.mask.astype(jnp.float32)
        return Draw(slots, jnp.where(first.mask, likely, 0), one, jnp.zeros_like(one), first.mask)

    def probability(self, index, ring, slots):
        """Return `F(p)**2 - F(<p)**2`, shared by the rows that are as likely."""
        everything = jnp.arange(ring.capacity, dtype=jnp.int32)
        each = jnp.where(
            ring.holds(everything), self.sampler.probability(index, ring, everything), 0
        )
        own = self.sampler.probability(index, ring, slots)
        alike = jnp.abs(each[None] - own[:, None]) < 1e-6
        same = jnp.where(alike, each[None], 0).sum(1)
        less = jnp.where(~alike & (each[None] < own[:, None]), each[None], 0).sum(1)
        share = (less + same) ** 2 - less**2
        # A slot may come first or second; of two that are alike the first is taken.
        return share * own / jnp.where(same > 0, same, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Surprise:
    """A row, and how far its reward is from that of the row before."""

    item: Any
    surprise: jax.Array


@dataclasses.dataclass(frozen=True)
class Surprising(View):
    """Return each drawn row with how much its reward differs from that of the row before."""

    reward: str = "reward"

    def request(self, reader: Reader, slots, key) -> Request:
        number = reader.number(self.reward, "reward")
        back = jnp.minimum(reader.ring.older(slots), 1)
        wanted = {
            "rows": reader.rows(slots),
            "rewards": reader.leaves(slots, [number]),
            "before": reader.leaves(reader.ring.later(slots, -back), [number]),
        }
        return Request(wanted, reader.flags(slots))

    def build(self, layout, rows, seen) -> Reading:
        (now,), (before,) = rows["rewards"], rows["before"]
        return Reading(Surprise(rows["rows"], now - before), seen)
