"""A mixture of samplers: some draws uniform, some by priority, some from the newest rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits, shards, weights
from fbuf.samplers.index import start_index
from fbuf.samplers.index.start_index import StartIndex
from fbuf.samplers.prioritized import Prioritized, PriorityIndex, PriorityTotals
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import Picked, Plan
from fbuf.samplers.protocol.sampler import Ask, Draw, Given, Origin, Sampler
from fbuf.samplers.protocol.windows import WindowedSampler
from fbuf.storage.ring import Ring, Span
from fbuf.trees import sum_tree


@pytree
class MixedIndex:
    """The index of `Mixture`: the starts, and their priorities."""

    starts: StartIndex
    priorities: PriorityIndex


@pytree
class MixedTotals:
    """The totals of a shard: of starts, of recent starts, and of priorities."""

    starts: jax.Array
    recent: jax.Array
    priorities: PriorityTotals


@pytree
class MixedPicks:
    """Draws in one shard: the way of each draw, and its rank or picks in every way."""

    which: jax.Array
    uniform: jax.Array
    recent: jax.Array
    by_priority: Any


@pytree
class Odds:
    """The stored priorities of drawn rows, float32, and a mask of the recent rows, bool."""

    value: jax.Array
    recent: jax.Array


@dataclasses.dataclass(frozen=True)
class Mixture(WindowedSampler):
    """Draw each row in a way chosen by chance: uniformly, by priority, or from the newest rows.

    The probability of a row is that of all three ways together, so importance weights are right for
    every draw. They are `(N * probability) ** -beta`, divided by the largest in the batch. A way
    that has nothing to draw from leaves its share to the others.

    Attributes:
        uniform: The share of uniform draws. Shares are at least 0, and are divided by their sum.
        prioritized: The share of draws by priority.
        recent: The share of uniform draws from the newest `recent_rows` rows. The buffer must have
            `lockstep=True`.
        recent_rows: The number of recent rows, of all environments together. Over a mesh each
            shard has an equal part of them, its newest rows.
        priorities: The sampler of the draws by priority. Its `window`, `stride` and `first_only`
            hold for all three ways. Its `beta` holds for the weights, and its `draws` for the draws
            by priority. Its `normalize` changes nothing here.

    Cost: that of `fbuf.Prioritized` and `fbuf.Uniform` together, whatever the shares; 4.7 bytes a
    row, 4.9 with `fbuf.Prioritized(normalize="buffer")`.

    Raises:
        ValueError: If a share is negative or not finite, or if float32 makes it 0 beside the other
            shares. If all shares are 0, or if `recent_rows` is below 1.
        TypeError: If `priorities` is not a `fbuf.Prioritized`, or if a share is not a number.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> sampler = fbuf.Mixture(uniform=0.5, recent=0.5, prioritized=0.0, recent_rows=2)
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=sampler)
        >>> state = fbuf.add(state, jnp.arange(4, dtype=jnp.int32))
        >>> batch = fbuf.sample(state, jax.random.key(0), 4)
        >>> batch.data, batch.probability
        (Array([3, 0, 2, 1], dtype=int32), Array([0.375, 0.125, 0.375, 0.125], dtype=float32))

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952; Zhang and Sutton,
        A Deeper Look at Experience Replay, arXiv:1712.01275 (the newest row in every batch).
    """

    uniform: float = 0.5
    _: dataclasses.KW_ONLY
    prioritized: float = 0.5
    recent: float = 0.0
    recent_rows: int = 1000
    priorities: Prioritized = dataclasses.field(default_factory=Prioritized)

    keeps_priorities: ClassVar[bool] = True
    largest_stats: ClassVar[frozenset[str]] = Prioritized.largest_stats

    def __post_init__(self) -> None:
        for name in ("uniform", "prioritized", "recent"):
            check.number("Mixture", name, getattr(self, name))
        if self._sum_of_shares == 0:
            raise ValueError("fbuf.Mixture: all shares are 0; give at least one of them")
        for name in ("uniform", "prioritized", "recent"):
            share = getattr(self, name)
            if share and not check.is_float32(share / self._sum_of_shares):
                raise ValueError(
                    f"fbuf.Mixture: {name} is {share!r}, of {self._sum_of_shares!r} in all: "
                    "float32 makes it 0; give 0, or a larger share"
                )
        check.integer("Mixture", "recent_rows", self.recent_rows)
        check.instance("Mixture", "priorities", self.priorities, Prioritized, "fbuf.Prioritized()")

    # Properties, where other samplers have fields: they are for reading only.
    @property
    def window(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The window of the priorities."""
        return self.priorities.window

    @property
    def stride(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The stride of the priorities."""
        return self.priorities.stride

    @property
    def _sum_of_shares(self) -> float:
        return self.uniform + self.prioritized + self.recent

    @property
    def start_conditions(self) -> Window:
        """The conditions of the priorities."""
        return self.priorities.start_conditions

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        by_priority_alone = self.uniform == self.recent == 0
        return self.window > 1 or (by_priority_alone and self.priorities.may_draw_nothing)

    def inner(self, index: MixedIndex) -> Iterator[tuple[Sampler, Any]]:
        """Yield the sampler of the draws by priority, and its index."""
        yield self.priorities, index.priorities

    def init(self, ring: Ring) -> MixedIndex:
        """Return an index without starts and priorities."""
        if self.recent and ring.heads > 1:
            raise ValueError(
                "fbuf.init: Mixture(recent=...) is for environments that step together; make the "
                "buffer with lockstep=True, or leave recent out"
            )
        if self.recent and self.recent_rows % ring.shards:
            raise ValueError(
                f"fbuf.Mixture: recent_rows must be a multiple of the {ring.shards} shards, for "
                f"each has as many recent rows, got {self.recent_rows}; take "
                f"{-(-self.recent_rows // ring.shards) * ring.shards}, or another number of shards"
            )
        priorities = self.priorities.init(ring)
        return MixedIndex(start_index.empty(ring, self.start_conditions), priorities)

    def add(self, index: MixedIndex, ring: Ring, span: Span) -> tuple[MixedIndex, jax.Array]:
        """Index the new starts, and store the priorities."""
        found, _ = start_index.add(index.starts, ring, span, self.start_conditions)
        priorities, faults = self.priorities.add(index.priorities, ring, span)
        return MixedIndex(found, priorities), faults

    def update_priority(
        self, index: MixedIndex, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[MixedIndex, jax.Array]:
        """Store the valid priorities."""
        priorities, faults = self.priorities.update_priority(index.priorities, ring, slots, given)
        return MixedIndex(index.starts, priorities), faults

    def take_over(
        self, index: MixedIndex, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[MixedIndex, jax.Array]:
        """Store the priorities of another `Mixture` that makes the same ones."""
        if not isinstance(origin.sampler, Mixture):
            return index, jnp.zeros(slots.shape, jnp.uint32)
        origin = Origin(origin.sampler.priorities, origin.index.priorities, origin.slots)
        priorities, faults = self.priorities.take_over(index.priorities, ring, slots, origin)
        return MixedIndex(index.starts, priorities), faults

    def remove(self, index: MixedIndex, ring: Ring, slots: jax.Array) -> MixedIndex:
        """Take out the starts of all windows with these rows, and their priorities."""
        found, _ = start_index.remove(index.starts, ring, slots, self.start_conditions)
        return MixedIndex(found, self.priorities.remove(index.priorities, ring, slots))

    def retire(self, index: MixedIndex, ring: Ring, slots: jax.Array) -> MixedIndex:
        """Take out these starts alone, in all ways."""
        found = start_index.retire(index.starts, ring, slots)
        return MixedIndex(found, self.priorities.retire(index.priorities, ring, slots))

    def can_sample(self, index: MixedIndex, ring: Ring) -> jax.Array:
        """Return whether any way of positive share can draw a row."""
        if self.start_conditions.every_row and not self.may_draw_nothing:
            return ring.live() > 0
        return self._shares(self.only_totals(index, ring)).any()

    def largest_priority(self, index: MixedIndex) -> jax.Array:
        """Return the largest priority."""
        return self.priorities.largest_priority(index.priorities)

    def with_largest_priority(self, index: MixedIndex, largest: jax.Array) -> MixedIndex:
        """Return the index with the maximum over all shards."""
        priorities = self.priorities.with_largest_priority(index.priorities, largest)
        return MixedIndex(index.starts, priorities)

    def shard_totals(self, index: MixedIndex, ring: Ring) -> MixedTotals:
        """Count the starts and the recent starts, and sum up the priorities."""
        total = start_index.total(index.starts, ring)
        recent = self._newest(index, ring, total)[1]
        return MixedTotals(total, recent, self.priorities.shard_totals(index.priorities, ring))

    def plan(self, index: MixedIndex, ring: Ring, totals: MixedTotals, ask: Ask) -> Plan:
        """Plan a draw in each of the three ways, and choose one of these for each draw."""
        batch_size = ask.batch_size
        which_key, rank_key, recent_key, priority_key = random_bits.split(ask.key, 4)
        shares = self._shares(totals)
        bounds = jnp.cumsum(shares)
        point = random_bits.uniforms(which_key, (batch_size,)) * bounds[2]
        which = jnp.sum(point[:, None] >= bounds[None, :2], axis=1, dtype=jnp.int32)
        # Rounding must not choose a way without a share.
        which = jnp.where(shares[which] > 0, which, jnp.argmax(shares).astype(jnp.int32))

        def ranks(key: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
            return shards.by_count(counts, key, random_bits.bits(key, (2, batch_size)))

        uniform, recent = ranks(rank_key, totals.starts), ranks(recent_key, totals.recent)
        by_priority = self.priorities.plan(
            index.priorities, ring, totals.priorities, ask._replace(key=priority_key)
        )
        shard = jnp.where(which == 2, recent[0], uniform[0])
        return Plan(
            jnp.where(which == 1, by_priority.shards, shard),
            MixedPicks(which, uniform[1], recent[1], by_priority.picks),
        )

    def pick(self, index: MixedIndex, ring: Ring, picks: MixedPicks) -> tuple[jax.Array, Odds]:
        """Find the row of each draw in its way, and the data for its probability in all ways."""
        total = start_index.total(index.starts, ring)
        oldest, _ = self._newest(index, ring, total)
        recent = start_index.around(oldest, picks.recent, total)
        ranks = jnp.where(picks.which == 2, recent, picks.uniform)
        by_rank = start_index.select(index.starts, ring, ranks)
        by_priority, _ = self.priorities.pick(index.priorities, ring, picks.by_priority)
        slots = jnp.where(picks.which == 1, by_priority, by_rank)
        return slots, self._odds(index, ring, slots)

    def weigh(self, totals: MixedTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh rows by the probability that all three ways give them together."""
        shares = self._shares(totals)
        whole = jnp.cumsum(shares)[2]
        mask = jnp.broadcast_to(whole > 0, picked.slots.shape)
        likely = _likely(totals, picked.aux, shares / jnp.where(whole > 0, whole, 1))
        power = weights.exponent(self.priorities.beta if ask.beta is None else ask.beta)
        relative = jnp.where(mask, likely * shards.sum_of_counts(totals.starts), 1)
        return weights.of_batch(picked.slots, likely, relative, mask, power, picked.axes)

    def probability(self, index: MixedIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the sum of the probabilities in the three ways."""
        totals = self.only_totals(index, ring)
        shares = self._shares(totals)
        whole = shares.sum()
        odds = self._odds(index, ring, slots)
        likely = _likely(totals, odds, shares / jnp.where(whole > 0, whole, 1))
        return jnp.where(start_index.is_start(index.starts, ring, slots), likely, 0)

    def stats(self, index: MixedIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the `stats` of the priorities."""
        return self.priorities.stats(index.priorities, ring)

    def _shares(self, totals: MixedTotals) -> jax.Array:
        """Return the shares of the ways, 0 for a way without a row to draw: float32 `[3]`."""
        by_priority = totals.priorities.total
        drawable = jnp.stack([(of > 0).any() for of in (totals.starts, by_priority, totals.recent)])
        given = [self.uniform, self.prioritized, self.recent]
        # Divided here, for in float32 the sum may be too large.
        shares = jnp.array([share / self._sum_of_shares for share in given], jnp.float32)
        return jnp.where(drawable, shares, 0)

    def _newest(
        self, index: MixedIndex, ring: Ring, total: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the rank of the oldest start among the newest rows, and count these starts."""
        if not self.recent:
            return jnp.int32(0), jnp.int32(0)
        stored, head = ring.stored[0], ring.head[0]
        rows = jnp.minimum(stored, self.recent_rows // ring.shards)
        begin = jnp.where(head >= rows, head - rows, head - rows + ring.capacity)
        edges = start_index.rank(index.starts, jnp.stack([begin, head]))
        before, up_to = edges[0], edges[1]
        wraps = head < rows
        return before, jnp.where(wraps, total - before + up_to, up_to - before)

    def _odds(self, index: MixedIndex, ring: Ring, slots: jax.Array) -> Odds:
        """Return the values that determine the probabilities of rows."""
        value = jnp.maximum(sum_tree.values(index.priorities.tree, slots), 0)
        steps = ring.newer(slots) * ring.lanes + (ring.lanes - 1 - slots % ring.lanes)
        return Odds(value, steps < self.recent_rows // ring.shards)


def _likely(totals: MixedTotals, odds: Odds, shares: jax.Array) -> jax.Array:
    """Return the probability of rows in all ways together; `[3]` shares must sum to 1."""
    among_all = shares[0] / jnp.maximum(shards.sum_of_counts(totals.starts), 1)
    total = shards.sum_of_totals(totals.priorities.total)
    by_priority = shares[1] * jnp.where(total > 0, odds.value / jnp.where(total > 0, total, 1), 0)
    newest = shares[2] / jnp.maximum(shards.sum_of_counts(totals.recent), 1)
    return among_all + by_priority + jnp.where(odds.recent, newest, 0)
