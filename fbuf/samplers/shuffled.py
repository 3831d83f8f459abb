"""Shuffled sampling: without replacement, epoch by epoch."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fbuf.samplers.chance import permutation, random_bits, shards, weights
from fbuf.samplers.chance.wide import Wide
from fbuf.samplers.index import segments, start_index
from fbuf.samplers.index.start_index import StartIndex
from fbuf.samplers.protocol.planned import Picked, Plan
from fbuf.samplers.protocol.sampler import Ask, Draw
from fbuf.samplers.uniform import Uniform, UniformIndex, UniformTotals
from fbuf.storage.ring import Ring
from fbuf.xla.tie import tie


@dataclasses.dataclass(frozen=True)
class Shuffled(Uniform):
    """Draw every row, or every window, once before any is drawn again, in random order.

    `fbuf.sample(state, key, batch_size, step=i)` returns the i-th batch. `n` rows make an epoch of
    `ceil(n / batch_size)` batches; the last one is masked where nothing is left. Use one key for
    the whole run, and count `step` up. Key and epoch choose the order, which is never stored: to
    resume a run, go on with the next `i`.

    You may write rows meanwhile. A batch never holds a row twice. A row that becomes drawable
    during an epoch, or ceases to be, makes at most two other rows come twice or not at all. There
    are exceptions. The whole order changes when the number of used slots passes a power of two. It
    also changes at every write while fewer than an eighth of the slots are starts. The number of an
    epoch is `step // ceil(n / batch_size)`, so a growing buffer begins a new epoch now and then. In
    a full ring without a window the order is one of slots: writing does not change it.

    With `by="episode"` an epoch has every episode once, with one start of the episode, each alike.
    The whole order changes when the number of episodes does.

    Batches of several sizes can share an epoch: give `step=(epoch, first)`, and count `first` up by
    the sizes. `fbuf.stats(state)["epoch_size"]` says how many draws an epoch has.

    Attributes:
        window: As for `fbuf.Uniform`.
        by: `"start"`: every start once. `"episode"`: every episode once.
        stride: As for `fbuf.Uniform`.
        first_only: As for `fbuf.Uniform`.
        strict: As for `fbuf.Uniform`.

    Cost: that of `fbuf.Uniform`, and O(B) for the order; 0.134 bytes a row, three times that by
    episode.

    Raises:
        ValueError: If an argument is out of range. When traced, if you do not give `step` to
            `fbuf.sample`, or give it priorities.
        TypeError: As `fbuf.Uniform`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Shuffled())
        >>> state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
        >>> key = jax.random.key(0)
        >>> batches = [fbuf.sample(state, key, 2, step=i) for i in range(3)]
        >>> sorted(int(x) for b in batches for x, there in zip(b.data, b.mask) if there)
        [0, 1, 2, 3, 4]

    References:
        Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
    """

    without_replacement: ClassVar[bool] = True

    def plan(self, index: UniformIndex, ring: Ring, totals: UniformTotals, ask: Ask) -> Plan:
        """Choose the next starts of the epoch."""
        assert ask.step is not None
        counts = self._counts(totals)
        total = jnp.sum(counts, dtype=jnp.int32)
        count = jnp.maximum(total, 1)
        epoch, first = ask.step
        number = jnp.arange(ask.batch_size, dtype=jnp.int32)
        # Numbers behind the end become the last one, to stay in range.
        ranks = first + jnp.minimum(number, count - first - 1)
        key = random_bits.fold_in(ask.key, epoch)
        if totals.segments is None and counts.shape[0] == 1:
            slots = _permuted(index.starts, ring, key, ranks, total)
            return Plan(jnp.zeros_like(slots), slots)
        order_key, bits = key, None
        if totals.segments is not None:
            order_key, start_key = random_bits.split(tie(key, counts), 2)
            start_key = random_bits.fold_in(start_key, first)
            bits = random_bits.bits(start_key, (2, ask.batch_size))
        ranks = permutation.permute(order_key, ranks, count, lambda s: jnp.ones_like(s, bool))
        if counts.shape[0] == 1:
            shard = jnp.zeros_like(ranks)
        else:
            low = ranks.astype(jnp.uint32)
            shard, ranks = shards.of_rank(counts, Wide(jnp.zeros_like(low), low))
        return Plan(shard, ranks if bits is None else segments.SegmentPicks(ranks, bits))

    def pick(self, index: UniformIndex, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Find the start of a rank; in one shard the plan has the slots already."""
        if index.segments is not None:
            return super().pick(index, ring, picks)
        if ring.shards == 1:
            return picks, None
        return start_index.select(index.starts, ring, picks), None

    def weigh(self, totals: UniformTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh rows by 1 whatever `beta` is; mask draws behind the end of the epoch."""
        assert ask.step is not None
        total = self.size_of_epoch(totals)
        count = jnp.maximum(total, 1)
        mask = (picked.positions < count - ask.step[1]) & (total > 0)
        each = count.astype(jnp.float32)
        if picked.aux is not None:
            each = each * picked.aux.astype(jnp.float32)
        return weights.equal(picked.slots, jnp.where(mask, 1 / each, 0), mask)

    def size_of_epoch(self, totals: UniformTotals) -> jax.Array:
        """Count the starts, or the episodes."""
        return jnp.sum(self._counts(totals), dtype=jnp.int32)

    def _counts(self, totals: UniformTotals) -> jax.Array:
        return totals.starts if totals.segments is None else totals.segments


def _permuted(
    index: StartIndex, ring: Ring, key: jax.Array, ranks: jax.Array, total: jax.Array
) -> jax.Array:
    """Return the starts at given places of an epoch: int32 `[B]` slots."""
    # Slots are permuted, because the rank of a start changes with any other start. Where few slots
    # are starts, a walk from slot to slot would take long: there ranks are permuted.
    taken = ring.filled()
    sparse = total < taken // 8
    given = jnp.where(sparse, ranks, start_index.select(index, ring, ranks))

    def inside(found: jax.Array) -> jax.Array:
        return sparse | start_index.is_start(index, ring, found) | (total == 0)

    count = jnp.maximum(jnp.where(sparse, total, taken), 1)
    found = permutation.permute(key, jnp.minimum(given, count - 1), count, inside)
    ranked = start_index.select(index, ring, jnp.where(sparse, found, 0))
    return jnp.where(sparse, ranked, found)
