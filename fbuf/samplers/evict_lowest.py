"""The rows of the highest priorities: a new row takes the place of the lowest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.index import priority_index, start_index, starts
from fbuf.samplers.index.start_index import StartIndex
from fbuf.samplers.prioritized import (
    Prioritized,
    PriorityIndex,
    PriorityPicks,
    PriorityTotals,
)
from fbuf.samplers.protocol.conditions import EVERY_ROW
from fbuf.samplers.protocol.placing import PlacingSampler
from fbuf.samplers.protocol.planned import Picked, Plan, PlannedSampler
from fbuf.samplers.protocol.sampler import Ask, Draw, Given, Sampler
from fbuf.samplers.protocol.wrapper import Wrapper
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree, sum_tree
from fbuf.trees.smallest import smallest
from fbuf.trees.sum_tree import Aggregate, SumTree
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.filled import zeros
from fbuf.xla.tie import tie
from fbuf.xla.varying import varying


@pytree
class EvictionIndex:
    """The priorities, and the slots of removed rows.

    Attributes:
        priorities: The index of the priorities.
        free: The slots of removed rows, which new rows take first.
        newest: int32 scalar; the slot of the newest row.
    """

    priorities: PriorityIndex
    free: StartIndex
    newest: jax.Array


# An attribute of one base class is a property of the other.
@dataclasses.dataclass(frozen=True)
class EvictLowest(  # pyright: ignore[reportIncompatibleVariableOverride]
    PlacingSampler, PlannedSampler, Wrapper
):
    """Keep the rows of the highest priorities: a full buffer evicts the lowest, not the oldest.

    A new row takes the slot of a removed row, or else that of the row with the lowest priority. If
    several rows are lowest, the next one behind the slot of the newest row goes. So rows of one
    priority are overwritten as in a ring. If its own priority is lower than the lowest one, the new
    row is not stored. The rows of a batch come one after another. Draws are those of
    `sampler`, and `fbuf.update_priority` changes what is lowest.

    Rows lie in no order of time: what `fbuf.Reservoir` says of environments, views and ids holds
    here, too. Over a mesh each shard evicts the lowest of its own rows. Draws come from all shards.

    Attributes:
        sampler: The priorities: a `fbuf.Prioritized` without a window. Its `eps` or its `floor` is
            above 0, so that no row has priority 0.

    Cost: O(B log N) to add B rows, one after another; else that of `fbuf.Prioritized`. A row takes
        4.8 bytes with the defaults, and 4 for the ids.

    Raises:
        TypeError: If `sampler` is no `fbuf.Prioritized`.
        ValueError: If `sampler` has a window, or if it allows a priority of 0. In `fbuf.init`, as
            for `fbuf.Reservoir`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=3, sampler=fbuf.EvictLowest())
        >>> priority = jnp.array([5.0, 1.0, 3.0, 4.0, 2.0])
        >>> state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32), priority=priority)
        >>> sorted(fbuf.rows(state).data.tolist())
        [0, 2, 3]
    """

    # Only this kind of sampler has a lowest priority.
    sampler: Prioritized = dataclasses.field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=Prioritized
    )

    largest_stats: ClassVar[frozenset[str]] = Prioritized.largest_stats
    smallest_stats: ClassVar[frozenset[str]] = frozenset({"lowest"})

    def __post_init__(self) -> None:
        given = self.sampler
        check.instance("EvictLowest", "sampler", given, Prioritized, "fbuf.Prioritized()")
        if given.window > 1 or given.stride > 1 or given.first_only:
            raise ValueError(
                "fbuf.EvictLowest: sampler draws windows, and rows lie in no order of time; leave "
                "window, stride and first_only out"
            )
        if given.may_draw_nothing:
            raise ValueError(
                "fbuf.EvictLowest: a row of priority 0 is no lowest one; give fbuf.Prioritized an "
                "eps or a floor above 0"
            )

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is."""
        return False

    @property
    def can_retire(self) -> bool:
        """Whether starts can be retired: their slots would be taken at once."""
        return False

    def inner(self, index: EvictionIndex) -> Iterator[tuple[Sampler, PriorityIndex]]:
        """Yield the sampler of the draws, and its index."""
        yield self.sampler, index.priorities

    def init(self, ring: Ring) -> EvictionIndex:
        """Return an index without priorities."""
        keeps = [Aggregate.SUM, Aggregate.LARGEST_INVERSE]
        ever = self.sampler.new_priority == "largest_ever"
        if not ever:
            keeps.insert(1, Aggregate.LARGEST)
        priorities = priority_index.empty(ring, EVERY_ROW, tuple(keeps), ever)
        free = StartIndex(bit_tree.empty(ring.capacity), zeros((), np.int32))
        return EvictionIndex(priorities, free, zeros((), np.int32))

    def place(
        self, index: EvictionIndex, ring: Ring, mask: jax.Array, given: Given
    ) -> tuple[EvictionIndex, jax.Array]:
        """Choose a slot for each row in turn, and give the slot the priority of the row."""
        values, _ = self.sampler.values_of_new(index.priorities, ring, mask.shape, given)

        def one(
            carry: tuple[SumTree, StartIndex, jax.Array, jax.Array],
            row: tuple[jax.Array, jax.Array],
        ) -> tuple[tuple[SumTree, StartIndex, jax.Array, jax.Array], jax.Array]:
            (tree, free, stored, newest), (value, meant) = carry, row
            has_room, any_free = stored < ring.capacity, start_index.total(free, ring) > 0
            behind = jnp.where(newest + 1 < ring.capacity, newest + 1, 0)
            lowest, least = smallest(tree, behind)
            hole = bit_tree.select(free.tree, varying(jnp.zeros(1, jnp.int32), stored))[0]
            slot = jnp.where(has_room, stored, jnp.where(any_free, hole, lowest))
            kept = meant & (has_room | any_free | (value >= least))
            fills = kept & ~has_room & any_free
            slot = tie(jnp.where(kept, slot, ring.capacity)[None], least, hole)
            free = start_index.retire(free, ring, jnp.where(fills, slot, ring.capacity))
            tree = sum_tree.write(tree, slot, value[None])
            newest = jnp.where(kept, slot[0], newest)
            return (tree, free, stored + (kept & has_room).astype(jnp.int32), newest), slot[0]

        carry = (index.priorities.tree, index.free, ring.stored[0], index.newest)
        (tree, free, _, newest), slots = lax.scan(one, carry, (values, mask))
        kept = slots < ring.capacity
        ever = index.priorities.largest_ever
        ever = None if ever is None else jnp.maximum(ever, jnp.where(kept, values, 0).max())
        priorities = dataclasses.replace(index.priorities, tree=tree, largest_ever=ever)
        # A later row of the batch may have taken the place of an earlier one.
        slots = jnp.where(last_of_each(slots), slots, ring.capacity)
        return EvictionIndex(priorities, free, newest), slots

    def add(self, index: EvictionIndex, ring: Ring, span: Span) -> tuple[EvictionIndex, jax.Array]:
        """Return the faults: the values are stored already."""
        shape, given = span.slots.shape, Given(span.priority, span.alpha)
        _, valid = self.sampler.values_of_new(index.priorities, ring, shape, given)
        priorities = dataclasses.replace(index.priorities, largest_of_shards=None)
        faults = bits_where(~valid & span.drawable, Fault.BAD_PRIORITY)
        return dataclasses.replace(index, priorities=priorities), faults

    def update_priority(
        self, index: EvictionIndex, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[EvictionIndex, jax.Array]:
        """Store the valid priorities."""
        changed = self.sampler.update_priority(index.priorities, ring, slots, given)
        return dataclasses.replace(index, priorities=changed[0]), changed[1]

    def remove(self, index: EvictionIndex, ring: Ring, slots: jax.Array) -> EvictionIndex:
        """Take the priorities out, and free the slots."""
        priorities = self.sampler.remove(index.priorities, ring, slots)
        freed, total = (slots < ring.capacity).astype(jnp.int32), index.free.total
        assert total is not None
        bits = bit_tree.change(index.free.tree, ring.clamp(slots), freed)
        free = StartIndex(bits, total + starts.int32_sum(freed))
        return dataclasses.replace(index, priorities=priorities, free=free)

    def can_sample(self, index: EvictionIndex, ring: Ring) -> jax.Array:
        """Return whether there is a row."""
        return self.sampler.can_sample(index.priorities, ring)

    def largest_priority(self, index: EvictionIndex) -> jax.Array:
        """Return the largest priority, now or ever."""
        return self.sampler.largest_priority(index.priorities)

    def with_largest_priority(self, index: EvictionIndex, largest: jax.Array) -> EvictionIndex:
        """Return the index with the maximum over all shards."""
        priorities = self.sampler.with_largest_priority(index.priorities, largest)
        return dataclasses.replace(index, priorities=priorities)

    def shard_totals(self, index: EvictionIndex, ring: Ring) -> PriorityTotals:
        """Return the sum of the stored values, and the number of rows."""
        return self.sampler.shard_totals(index.priorities, ring)

    def plan(self, index: EvictionIndex, ring: Ring, totals: PriorityTotals, ask: Ask) -> Plan:
        """Choose shards by their totals."""
        return self.sampler.plan(index.priorities, ring, totals, ask)

    def pick(
        self, index: EvictionIndex, ring: Ring, picks: PriorityPicks
    ) -> tuple[jax.Array, jax.Array]:
        """Find the rows and their values."""
        return self.sampler.pick(index.priorities, ring, picks)

    def weigh(self, totals: PriorityTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh rows by `probability ** -beta`."""
        return self.sampler.weigh(totals, picked, ask)

    def probability(self, index: EvictionIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the probability of each row."""
        return self.sampler.probability(index.priorities, ring, slots)

    def stats(self, index: EvictionIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the `stats` of the priorities, and the lowest stored priority."""
        lowest = sum_tree.aggregate(index.priorities.tree, Aggregate.LARGEST_INVERSE)
        lowest = jnp.where(lowest > 0, 1 / jnp.where(lowest > 0, lowest, 1), 0)
        return {"lowest": lowest} | self.sampler.stats(index.priorities, ring)
