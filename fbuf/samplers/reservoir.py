"""A reservoir: every row that was ever added is as likely to be stored."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits, shards, weights, wide
from fbuf.samplers.chance.wide import Wide
from fbuf.samplers.index import start_index
from fbuf.samplers.index.start_index import StartIndex, StartPicks
from fbuf.samplers.protocol.conditions import EVERY_ROW
from fbuf.samplers.protocol.placing import PlacingSampler
from fbuf.samplers.protocol.planned import Picked, Plan, PlannedSampler
from fbuf.samplers.protocol.sampler import Ask, Draw, Given
from fbuf.storage.ring import Ring, Span
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.filled import zeros


@pytree
class ReservoirIndex:
    """The stored rows, and how many were added.

    Attributes:
        rows: The rows that have not been removed.
        added: uint32 `[2]`; the number of rows ever added, the high word first.
        shard: The number of this shard, for one `place`; otherwise None.
    """

    rows: StartIndex
    added: jax.Array
    shard: jax.Array | None = None


@pytree
class ReservoirTotals:
    """The totals of a shard.

    Attributes:
        rows: int32; the rows that are left.
        meant: float32; the number of added rows that the stored rows represent.
    """

    rows: jax.Array
    meant: jax.Array


@dataclasses.dataclass(frozen=True)
class Reservoir(PlacingSampler, PlannedSampler):
    """Keep each row that was ever added with the same probability, and draw each kept row alike.

    After `t` rows the buffer holds a random `capacity` of them. Each row is there with the
    probability `capacity / t`. So one learns the average over all of training: the average policy
    of NFSP, or the average strategy of deep CFR. From a ring one learns the average over the newest
    rows, which is another one.

    Rows lie in no order of time. So there are no environments and episodes, and a view reads single
    rows. `fbuf.rows` shows them in the order of slots. An id names a row until another row takes
    its place, as always.

    Over a mesh each shard is a reservoir of the rows that were added there. A shard is drawn in
    proportion to the number of those rows. So each row that was ever added to any shard is as
    likely to be drawn. A mask may give the shards different numbers of rows.

    Attributes:
        seed: The seed of the choice which rows to keep, an int. Buffers with one seed, such as the
            members under `vmap`, make the same choice for their own rows.

    Cost: O(B log N) to add B rows, O(B) to draw them; 0.134 bytes a row, and 4 for the ids.

    Raises:
        TypeError: If `seed` is no int.
        ValueError: In `fbuf.init`, with `num_envs`, `next_of` or `autoreset="next_step"`. When
            traced, if a view reads several rows, and in functions that need the order of rows.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=100, sampler=fbuf.Reservoir())
        >>> for start in range(0, 1000, 50):
        ...     state = fbuf.add(state, jnp.arange(start, start + 50, dtype=jnp.int32))
        >>> int(fbuf.size(state)), bool(400 < fbuf.rows(state).data.mean() < 600)
        (100, True)

    References:
        Vitter, Random Sampling with a Reservoir, TOMS 11, 1985 (algorithm R); Heinrich and Silver,
        arXiv:1603.01121 (NFSP); Brown et al., Deep Counterfactual Regret Minimization,
        arXiv:1811.00164.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check.integer("Reservoir", "seed", self.seed, largest=2**32 - 1, smallest=0)

    def init(self, ring: Ring) -> ReservoirIndex:
        """Return an index without rows."""
        return ReservoirIndex(start_index.empty(ring, EVERY_ROW), zeros(2, np.uint32))

    def place(
        self, index: ReservoirIndex, ring: Ring, mask: jax.Array, given: Given
    ) -> tuple[ReservoirIndex, jax.Array]:
        """Choose slots: free ones first, then a random number below the number of rows so far."""
        batch = mask.shape[0]
        rank = jnp.cumsum(mask, dtype=jnp.uint32)  # of each row, from 1
        so_far = wide.plus(Wide(index.added[0], index.added[1]), rank)
        # After a `clear`, the choices are different ones.
        key = random_bits.fold_in(jax.random.key(self.seed), ring.lap[0], *index.added)
        if index.shard is not None:
            key = random_bits.fold_in(key, index.shard)
        drawn = wide.below(random_bits.bits(key, (3, batch)), so_far)
        fits = (drawn.high == 0) & (drawn.low < ring.capacity)
        is_free = (so_far.high == 0) & (so_far.low <= ring.capacity)
        slots = jnp.where(is_free, so_far.low - 1, jnp.where(fits, drawn.low, ring.capacity))
        slots = jnp.where(mask, slots.astype(jnp.int32), ring.capacity)
        # The last of several rows for a slot is kept, as if they had come one by one.
        slots = jnp.where(last_of_each(slots), slots, ring.capacity)
        added = wide.plus(Wide(index.added[0], index.added[1]), rank[-1])
        return ReservoirIndex(index.rows, jnp.stack([added.high, added.low])), slots

    def of_shard(self, index: ReservoirIndex, number: jax.Array) -> ReservoirIndex:
        """Return the index with the number of the shard, which makes its choices differ."""
        return dataclasses.replace(index, shard=number)

    def add(
        self, index: ReservoirIndex, ring: Ring, span: Span
    ) -> tuple[ReservoirIndex, jax.Array]:
        """Index the new rows, and drop the replaced ones."""
        rows, _ = start_index.add(index.rows, ring, span, EVERY_ROW)
        return dataclasses.replace(index, rows=rows), jnp.zeros_like(span.slots, jnp.uint32)

    def remove(self, index: ReservoirIndex, ring: Ring, slots: jax.Array) -> ReservoirIndex:
        """Take out rows; new rows may take their slots, like any others."""
        rows, _ = start_index.remove(index.rows, ring, slots, EVERY_ROW)
        return dataclasses.replace(index, rows=rows)

    def can_sample(self, index: ReservoirIndex, ring: Ring) -> jax.Array:
        """Return whether there is a row."""
        return ring.live() > 0

    def shard_totals(self, index: ReservoirIndex, ring: Ring) -> ReservoirTotals:
        """Count the stored rows, and the added rows that they represent."""
        rows = ring.live()
        return ReservoirTotals(rows, rows.astype(jnp.float32) * _stands_for(index, ring))

    def plan(self, index: ReservoirIndex, ring: Ring, totals: ReservoirTotals, ask: Ask) -> Plan:
        """Choose a shard by its number of added rows, and one of its stored rows."""
        if totals.rows.shape[0] == 1:
            return start_index.plan(index.rows, ring, totals.rows, ask)
        shard = shards.by_total(totals.meant, ask.key, ask.batch_size)
        words = random_bits.bits(ask.key, (2, ask.batch_size), totals.rows)
        return Plan(shard, StartPicks(random_bits.below(words, totals.rows[shard]), None))

    def pick(
        self, index: ReservoirIndex, ring: Ring, picks: StartPicks
    ) -> tuple[jax.Array, jax.Array]:
        """Find the rows, and the number of added rows that each represents."""
        slots = start_index.pick(index.rows, ring, picks)
        return slots, jnp.broadcast_to(_stands_for(index, ring), slots.shape)

    def weigh(self, totals: ReservoirTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh all rows by 1."""
        mask = jnp.broadcast_to((totals.rows > 0).any(), picked.slots.shape)
        if totals.rows.shape[0] == 1:
            likely = _likely(totals.rows[0])
        else:
            total = shards.sum_of_totals(totals.meant)
            likely = picked.aux / jnp.where(total > 0, total, 1)
        return weights.equal(picked.slots, jnp.where(mask, likely, 0), mask)

    def probability(self, index: ReservoirIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return 1 / rows."""
        return jnp.where(start_index.is_start(index.rows, ring, slots), _likely(ring.live()), 0)

    def stats(self, index: ReservoirIndex, ring: Ring) -> dict[str, jax.Array]:
        """Count the rows that were ever added, as float32."""
        return {"added": wide.as_float(Wide(index.added[0], index.added[1]))}


def _likely(total: jax.Array) -> jax.Array:
    return 1 / jnp.maximum(total, 1).astype(jnp.float32)


def _stands_for(index: ReservoirIndex, ring: Ring) -> jax.Array:
    """Return the number of added rows that each stored row represents: a float32 scalar."""
    added = wide.as_float(Wide(index.added[0], index.added[1]))
    return added / jnp.maximum(ring.stored[0], 1).astype(jnp.float32)
