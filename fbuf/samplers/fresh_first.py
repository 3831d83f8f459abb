"""Fresh rows first: each new row is drawn once, soon after it was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits
from fbuf.samplers.index import fresh_order, start_index, starts
from fbuf.samplers.index.start_index import StartIndex
from fbuf.samplers.limited import Limited
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import Picked, Plan, PlannedSampler
from fbuf.samplers.protocol.sampler import Ask, Draw, Given, Origin, Sampler
from fbuf.samplers.protocol.wrapper import Wrapper
from fbuf.samplers.uniform import Uniform
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.xla.across import largest
from fbuf.xla.filled import zeros

_TURN = 3
"""The number folded into the key of a batch for the shard that comes first; see `shards`."""


@pytree
class FreshIndex:
    """The fresh starts, and the index of the sampler of all other draws.

    Attributes:
        fresh: The starts that were in no batch yet, also those of incomplete windows.
        missed: int32 scalar; the number of starts that were overwritten before any batch had them.
        others: The index of the other sampler.
        lanes: The number of lanes of the buffer; static.
    """

    fresh: StartIndex
    missed: jax.Array
    others: Any
    lanes: int = dataclasses.field(metadata={"static": True})


@pytree
class FreshTotals:
    """The totals of a shard: the number of fresh starts, and the totals of the sampler."""

    fresh: jax.Array
    others: Any


@pytree
class FreshPicks:
    """Draws in one shard.

    Attributes:
        fresh: bool `[B]`; True for a draw of a fresh start.
        ranks: int32 `[B]`; the rank of each among the fresh starts of the shard, 0 the oldest.
        others: The picks of the other sampler, for every draw.
    """

    fresh: jax.Array
    ranks: jax.Array
    others: Any


# An attribute of one base class is a property of the other.
@dataclasses.dataclass(frozen=True)
class FreshFirst(Wrapper, PlannedSampler):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Draw each new row, or window, once soon after it was written; all else as another sampler.

    A batch begins with the oldest rows that no batch had yet, as many as there are. The other draws
    are those of `sampler`. So a row that was just written is learned from at once, and not after
    some thousand steps, or never. With one batch for each step of the environment, the newest row
    is in every batch (combined experience replay).

    A row is older, the more rows its own environment has written since. Rows of one age go by the
    number of the environment. Where environments step together, that is the order of time. With
    `lockstep=False` they have no common clock: first comes the row that its environment would
    overwrite first. The rows of an environment that stands still do not grow older.

    Draw with `state, batch = fbuf.draw(state, key, batch_size)`, which keeps count of the fresh
    rows. `fbuf.sample` would return the same fresh rows again, and is refused.

    With a `window` in `sampler`, a window is fresh as soon as its last row is written. Its age is
    that of its first row. Each row begins a window, so there are as many as rows. With `every`,
    fewer are fresh: those that do not overlap, say. With `strict=False` in `sampler`, the first
    window of an episode may be short. It is fresh once it is complete, or its episode has ended:
    by a flag, by `fbuf.end_episode`, or in `fbuf.load`.

    Each row is fresh, whatever `sampler` says of it. So is a row of priority 0 with `eps=0.0`, and
    a row of no group, or of a group with share 0. Leave out rows that no batch may have, by `mask`
    of `fbuf.add`.

    A fresh row has `probability` 1. Its weight is that of a row drawn uniformly, because every row
    is fresh once. The weights of the other draws are those of `sampler`, and all are divided by the
    largest in the batch, whatever `normalize` says.

    Fresh rows, or windows, that are overwritten before a batch had them are counted:
    `fbuf.stats(state)["missed"]`, up to 2**31 - 1. The count does not depend on how many rows each
    `fbuf.add` has. `"fresh"` says how many wait. So draw at least as many rows as you add. Rows
    that `fbuf.remove` takes out, or that `fbuf.Limited` retires, are not counted.

    In `fbuf.extend`, rows that a batch had in the other buffer are not fresh, if both samplers are
    `fbuf.FreshFirst` with the same windows. Else all its rows are. Its count of missed rows is
    added. A row that does not fit is not counted.

    Attributes:
        sampler: The sampler of the other draws: any but `fbuf.Fifo` and `fbuf.Shuffled`.
        most: The most fresh rows in a batch, at least 1; more wait for the next batch. None is the
            batch size.
        every: Only rows, or windows, that begin at every `every`-th step of a lane are fresh. It
            must divide the length of a lane, and be a multiple of the stride of `sampler`. With
            the length of the window, no two fresh windows overlap. None is the stride of `sampler`.

    Cost: that of `sampler`, and O(log N) for each added row and each fresh draw; 0.134 bytes a row.
        With `lockstep=False`, a batch of B looks up some B + 2 sqrt(B) num_envs rows, and sorts
        them. With `strict=False`, it looks at the open episode of each environment, too. Over a
        mesh every shard gives a like number of fresh rows, if it has as many.

    Raises:
        ValueError: If `most` is below 1, if `every` does not fit, or if `sampler` has an order of
            its own. When traced, if you call `fbuf.sample`.
        TypeError: If `sampler` is no sampler.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.FreshFirst())
        >>> state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))
        >>> state, batch = fbuf.draw(state, jax.random.key(0), 2)
        >>> batch.data
        Array([0, 1], dtype=int32)
        >>> state, batch = fbuf.draw(state, jax.random.key(1), 4)
        >>> int(batch.data[0]), batch.probability
        (2, Array([1.        , 0.33333334, 0.33333334, 0.33333334], dtype=float32))

    References:
        Hafner et al., Mastering Diverse Domains through World Models, arXiv:2301.04104 (the online
        queue); Zhang and Sutton, A Deeper Look at Experience Replay, arXiv:1712.01275 (combined
        experience replay).
    """

    sampler: Sampler = dataclasses.field(default_factory=Uniform)
    _: dataclasses.KW_ONLY
    most: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        check.instance("FreshFirst", "sampler", self.sampler, Sampler, "fbuf.Uniform()")
        if self.most is not None:
            check.integer("FreshFirst", "most", self.most)
        inner = self.sampler
        if isinstance(inner, Limited):
            raise ValueError(
                "fbuf.FreshFirst: fresh rows would pass the limits of fbuf.Limited; put the limits "
                "outside: fbuf.Limited(fbuf.FreshFirst(...), ...)"
            )
        if inner.is_queue or inner.places or inner.without_replacement or inner.notes_draws:
            raise ValueError(
                f"fbuf.FreshFirst: {type(inner).__name__} has an order, slots or a count of "
                "its own, which fresh rows would break; give fbuf.Uniform(), or another sampler "
                "that draws with replacement"
            )
        if self.every is not None:
            check.integer("FreshFirst", "every", self.every)
            if self.every % inner.stride:
                raise ValueError(
                    f"fbuf.FreshFirst: every={self.every} must be a multiple of the sampler's "
                    f"stride, {inner.stride}; leave it out, or give the sampler another stride"
                )

    # A property where other classes have a value: it follows from the arguments.
    @property
    def largest_stats(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The `largest_stats` of the wrapped sampler."""
        return self._planned.largest_stats

    # A property where other classes have a value: it follows from the arguments.
    @property
    def smallest_stats(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The `smallest_stats` of the wrapped sampler."""
        return self._planned.smallest_stats

    # A property where other classes have a value: it follows from the arguments.
    @property
    def stride(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps between fresh starts: a lane must be a multiple of them."""
        return self.sampler.stride if self.every is None else self.every

    @property
    def _fresh_window(self) -> Window:
        """The conditions for a row to be fresh."""
        return dataclasses.replace(self.start_conditions, stride=self.stride)

    @property
    def _planned(self) -> PlannedSampler:
        assert isinstance(self.sampler, PlannedSampler)
        return self.sampler

    # A property where other classes have a value: it follows from the arguments.
    @property
    def notes_draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether draws are remembered: always."""
        return True

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch: always."""
        return True

    def inner(self, index: FreshIndex) -> Iterator[tuple[Sampler, Any]]:
        """Yield the sampler of the draws, and its index."""
        yield self.sampler, index.others

    def init(self, ring: Ring) -> FreshIndex:
        """Return an index without starts."""
        if ring.shards > 1 and not isinstance(self.sampler, PlannedSampler):
            raise ValueError(
                f"fbuf.sharded.init: FreshFirst({type(self.sampler).__name__}) cannot draw from "
                "shards; derive your sampler from fbuf.samplers.PlannedSampler"
            )
        if self.every is not None and ring.lane_length % self.every:
            raise ValueError(
                f"fbuf.init: FreshFirst(every={self.every}) must divide the length of a lane, "
                f"{ring.lane_length} rows; take another capacity, or another number of steps"
            )
        fresh = fresh_order.empty(ring)
        return FreshIndex(fresh, zeros((), np.int32), self.sampler.init(ring), ring.lanes)

    def add(self, index: FreshIndex, ring: Ring, span: Span) -> tuple[FreshIndex, jax.Array]:
        """Mark the new starts as fresh, and count the fresh ones that were overwritten."""
        window = self._fresh_window
        fresh, change = start_index.add(index.fresh, ring, span, window)
        lost = starts.int32_sum(change.evicted) + starts.overwritten_at_once(ring, span, window)
        others, faults = self.sampler.add(index.others, ring, span)
        missed = _counted(index.missed, lost)
        return dataclasses.replace(index, fresh=fresh, missed=missed, others=others), faults

    def update_priority(
        self, index: FreshIndex, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[FreshIndex, jax.Array]:
        """Store the priorities for the sampler."""
        others, faults = self.sampler.update_priority(index.others, ring, slots, given)
        return dataclasses.replace(index, others=others), faults

    def written(
        self, index: FreshIndex, ring: Ring, slots: jax.Array, fields: dict[str, jax.Array]
    ) -> FreshIndex:
        """Have the sampler look at changed fields."""
        others = self.sampler.written(index.others, ring, slots, fields)
        return dataclasses.replace(index, others=others)

    def take_over(
        self, index: FreshIndex, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[FreshIndex, jax.Array]:
        """Have the sampler take over; a start that was in a batch there is not fresh here."""
        other, old, old_slots = origin
        if not isinstance(other, FreshFirst):
            return index, jnp.zeros(slots.shape, jnp.uint32)
        inner = Origin(other.sampler, old.others, old_slots)
        others, faults = self.sampler.take_over(index.others, ring, slots, inner)
        fresh, window = index.fresh, self._fresh_window
        if not _alike(window, other._fresh_window):  # its batches had other windows
            return dataclasses.replace(index, others=others), faults
        for earlier, found, there in starts.of_moved_rows(ring, slots, window):
            # A stride may begin at other steps now. A start then stands for the last old one.
            into = (old_slots // old.lanes - earlier) % other.stride
            before = (old_slots - (earlier + into) * old.lanes) % old.fresh.tree.capacity
            waits = bit_tree.read(old.fresh.tree, start_index.place(old.fresh, before, old.lanes))
            had = start_index.is_start(fresh, ring, found) & ~waits
            fresh = start_index.retire(fresh, ring, jnp.where(had & there, found, ring.capacity))
        return dataclasses.replace(index, fresh=fresh, others=others), faults

    def take_counts(self, index: FreshIndex, other: Sampler, old: Any) -> FreshIndex:
        """Add the missed starts of another buffer to those of this one."""
        if not isinstance(other, FreshFirst):
            return index
        return dataclasses.replace(index, missed=_counted(index.missed, old.missed))

    def resized(self, index: FreshIndex, old: FreshIndex) -> FreshIndex:
        """Count the fresh starts that did not fit as missed."""
        left = jnp.maximum(_starts(old) - _starts(index), 0)
        others = self.sampler.resized(index.others, old.others)
        return dataclasses.replace(index, missed=_counted(index.missed, left), others=others)

    def remove(self, index: FreshIndex, ring: Ring, slots: jax.Array) -> FreshIndex:
        """Take out the starts of all windows with these rows; they do not count as missed."""
        fresh, _ = start_index.remove(index.fresh, ring, slots, self._fresh_window)
        others = self.sampler.remove(index.others, ring, slots)
        return dataclasses.replace(index, fresh=fresh, others=others)

    def retire(self, index: FreshIndex, ring: Ring, slots: jax.Array) -> FreshIndex:
        """Take out these starts alone; they do not count as missed."""
        fresh = start_index.retire(index.fresh, ring, slots)
        return dataclasses.replace(
            index, fresh=fresh, others=self.sampler.retire(index.others, ring, slots)
        )

    def can_sample(self, index: FreshIndex, ring: Ring) -> jax.Array:
        """Return whether there is a fresh start, or another row to draw."""
        if self.start_conditions.every_row and not self.may_draw_nothing:
            return ring.live() > 0
        return (self._count(index, ring) > 0) | self.sampler.can_sample(index.others, ring)

    def draw(self, index: FreshIndex, ring: Ring, ask: Ask) -> Draw:
        """Draw from this buffer alone."""
        if isinstance(self.sampler, PlannedSampler):
            return PlannedSampler.draw(self, index, ring, ask)
        drawn = self.sampler.draw(index.others, ring, ask)
        position = jnp.arange(ask.batch_size, dtype=jnp.int32)
        is_fresh = position < self._in_batch(self._count(index, ring)[None], ask.batch_size)
        found = self._oldest(index, ring, is_fresh, position)
        slots = jnp.where(is_fresh, found, drawn.slots)
        return _together(drawn, slots, is_fresh, ())

    def note(self, index: FreshIndex, ring: Ring, draw: Draw) -> FreshIndex:
        """Mark the fresh starts of a batch as drawn."""
        size = draw.slots.shape[0]
        position = jnp.arange(size, dtype=jnp.int32)
        is_fresh = position < self._in_batch(self._count(index, ring)[None], size)
        return self._served(index, ring, draw.slots, is_fresh & draw.mask)

    def note_picks(
        self, index: FreshIndex, ring: Ring, picks: FreshPicks, there: jax.Array
    ) -> FreshIndex:
        """Mark the fresh starts of this shard in a batch as drawn."""
        served = picks.fresh & there
        slots = self._oldest(index, ring, served, picks.ranks)
        return self._served(index, ring, slots, served)

    def shard_totals(self, index: FreshIndex, ring: Ring) -> FreshTotals:
        """Count the fresh starts."""
        others = self._planned.shard_totals(index.others, ring)
        return FreshTotals(self._count(index, ring), others)

    def plan(self, index: FreshIndex, ring: Ring, totals: FreshTotals, ask: Ask) -> Plan:
        """Plan the fresh draws, and all draws of the sampler."""
        others = self._planned.plan(index.others, ring, totals.others, ask)
        turn = random_bits.fold_in(ask.key, _TURN)
        given = _dealt(totals.fresh, self._in_batch(totals.fresh, ask.batch_size), turn)
        position = jnp.arange(ask.batch_size, dtype=jnp.int32)
        ends = jnp.cumsum(given, dtype=jnp.int32)
        shard = jnp.sum(position[:, None] >= ends[None], axis=1, dtype=jnp.int32)
        is_fresh = shard < given.shape[0]
        shard = jnp.minimum(shard, given.shape[0] - 1)
        ranks = position - (ends - given)[shard]
        picks = FreshPicks(is_fresh, jnp.where(is_fresh, ranks, 0), others.picks)
        return Plan(jnp.where(is_fresh, shard, others.shards), picks)

    def pick(self, index: FreshIndex, ring: Ring, picks: FreshPicks) -> tuple[jax.Array, Any]:
        """Find the fresh starts, and the draws of the sampler."""
        slots, aux = self._planned.pick(index.others, ring, picks.others)
        found = self._oldest(index, ring, picks.fresh, picks.ranks)
        return jnp.where(picks.fresh, found, slots), aux

    def weigh(self, totals: FreshTotals, picked: Picked, ask: Ask) -> Draw:
        """Give fresh starts the weight of uniform draws, and other draws that of the sampler."""
        drawn = self._planned.weigh(totals.others, picked, ask)
        # Positions in the batch are below its size, so the size itself need not be known.
        is_fresh = picked.positions < self._in_batch(totals.fresh, None)
        return _together(drawn, picked.slots, is_fresh, picked.axes)

    def largest_priority(self, index: FreshIndex) -> jax.Array | None:
        """Return the largest priority of the sampler."""
        return self._planned.largest_priority(index.others)

    def with_largest_priority(self, index: FreshIndex, largest: jax.Array) -> FreshIndex:
        """Return the index with the maximum over all shards."""
        others = self._planned.with_largest_priority(index.others, largest)
        return dataclasses.replace(index, others=others)

    def probability(self, index: FreshIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the probability of each row in one draw of the sampler."""
        return self.sampler.probability(index.others, ring, slots)

    def stats(self, index: FreshIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the `stats` of the sampler, and the numbers of fresh and of missed starts."""
        own = {"fresh": self._count(index, ring), "missed": index.missed}
        return own | self.sampler.stats(index.others, ring)

    def _count(self, index: FreshIndex, ring: Ring) -> jax.Array:
        """Count the fresh starts: int32 scalar."""
        return fresh_order.count(index.fresh, ring, self._fresh_window)

    def _in_batch(self, counts: jax.Array, batch_size: int | None) -> jax.Array:
        """Return the number of fresh starts in a batch, by `[S]` counts of shards: int32 scalar."""
        limits = [limit for limit in (self.most, batch_size) if limit is not None]
        # With the limit first, the sum over shards stays an int32.
        most = min(limits) if limits else jnp.iinfo(jnp.int32).max // counts.shape[0]
        return jnp.minimum(jnp.sum(jnp.minimum(counts, most), dtype=jnp.int32), most)

    def _oldest(
        self, index: FreshIndex, ring: Ring, wanted: jax.Array, ranks: jax.Array
    ) -> jax.Array:
        """Return the slots of fresh starts by rank, 0 the oldest; any slot if not `wanted`."""
        return fresh_order.oldest(index.fresh, ring, self._fresh_window, wanted, ranks)

    def _served(
        self, index: FreshIndex, ring: Ring, slots: jax.Array, served: jax.Array
    ) -> FreshIndex:
        """Mark these distinct starts as drawn."""
        fresh = start_index.retire(index.fresh, ring, jnp.where(served, slots, ring.capacity))
        return dataclasses.replace(index, fresh=fresh)


def _starts(index: FreshIndex) -> jax.Array:
    """Count the starts that were in no batch yet, also those of incomplete windows."""
    assert index.fresh.total is not None
    return index.fresh.total


def _alike(one: Window, other: Window) -> bool:
    """Tell whether the same rows begin windows in two buffers, whatever their strides."""
    return dataclasses.replace(one, stride=1) == dataclasses.replace(other, stride=1)


def _counted(missed: jax.Array, more: jax.Array) -> jax.Array:
    """Return the sum of two counts, at most the largest int32."""
    total = missed.astype(jnp.uint32) + more.astype(jnp.uint32)
    return jnp.minimum(total, jnp.iinfo(jnp.int32).max).astype(jnp.int32)


def _dealt(counts: jax.Array, total: jax.Array, key: jax.Array) -> jax.Array:
    """Deal a number of fresh starts out to shards that have `[S]` of them: int32 `[S]`.

    All shards give equally many, if they have them. The rest comes from the shards after a random
    one, so that no shard waits for ever.
    """
    number = counts.shape[0]
    if number == 1:
        return total[None]
    first = random_bits.below(random_bits.bits(key, (2, 1), counts), jnp.int32(number))[0]
    counts = jnp.roll(counts, -first)
    equal = jnp.minimum(counts, total // number)
    spare = jnp.minimum(counts - equal, total)
    left = total - jnp.sum(equal, dtype=jnp.int32)
    before = jnp.cumsum(spare, dtype=jnp.int32) - spare
    return jnp.roll(equal + jnp.clip(left - before, 0, spare), first)


def _together(drawn: Draw, slots: jax.Array, fresh: jax.Array, axes: tuple[str, ...]) -> Draw:
    """Return the draws of the sampler with fresh starts among them."""
    mask = drawn.mask | fresh
    log_weight = jnp.where(fresh, 0, drawn.log_weight)
    # No infinity: `jax_debug_infs` would report it.
    most = jnp.where(mask, log_weight, jnp.finfo(jnp.float32).min).max()
    most = largest(most, axes)
    weight = jnp.where(mask, jnp.exp(jnp.where(mask, log_weight, most) - most), 0)
    probability = jnp.where(fresh, 1, drawn.probability)
    return Draw(slots, probability, weight, log_weight, mask)
