"""Planned samplers: they draw from the shards of `fbuf.sharded` as from one buffer."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.samplers.protocol.sampler import Ask, Draw, Index, Sampler
from fbuf.storage.ring import Ring
from fbuf.xla.platform import computed

_MANY = 2**13
"""The least draws for which a GPU saves more time than one more kernel takes: see `computed`."""


@pytree
class Plan:
    """The shard of each draw of a batch. `B` is the batch size.

    Attributes:
        shards: int32 `[B]`: the shard that makes the draw.
        picks: The data that the shard needs for it: a pytree, leaves `[..., B]`.
    """

    shards: jax.Array
    picks: Any


class Picked(NamedTuple):
    """The picks of a batch, or those of one device's part of the batch: `m` of them.

    Attributes:
        slots: int32 `[m]`.
        aux: The auxiliary values from `pick`, leaves `[m]`.
        positions: int32 `[m]`: the positions of these draws in the batch.
        axes: The axes of the mesh that the rest of the batch lies along.
    """

    slots: jax.Array
    aux: Any
    positions: jax.Array
    axes: tuple[str, ...] = ()


class PlannedSampler(Sampler):
    """Draw from several buffers as from one: the shards of `fbuf.sharded`.

    A batch is planned, picked and weighed. The plan needs only the totals of the shards, and every
    device makes the same plan. A pick is made in one shard, from the rows there. Weights are
    computed where the batch lies, from the auxiliary values of the picks. With one shard this is
    `draw`.

    Attributes:
        largest_stats: The names of the `stats` that are the maximum over the shards.
        smallest_stats: The names of the `stats` that are the minimum; all others are the sum.
        refuses_picks: Whether a shard may refuse picks. A plan then has more picks than draws.
    """

    largest_stats: ClassVar[frozenset[str]] = frozenset()
    smallest_stats: ClassVar[frozenset[str]] = frozenset()
    refuses_picks: ClassVar[bool] = False

    def of_shard(self, index: Index, number: jax.Array) -> Index:
        """Return the index with the number of the shard, an int32 scalar, for the next `place`."""
        return index

    def largest_priority(self, index: Index) -> jax.Array | None:
        """Return a value whose maximum over all shards new rows need: a float32 scalar, or None."""
        return None

    def with_largest_priority(self, index: Index, largest: jax.Array) -> Index:
        """Return the index with the maximum over all shards, for the next `add` or `stats`."""
        raise NotImplementedError

    @abc.abstractmethod
    def shard_totals(self, index: Index, ring: Ring) -> Any:
        """Return the totals of a shard, for plans and weights: a pytree of numeric arrays."""

    @abc.abstractmethod
    def plan(self, index: Index, ring: Ring, totals: Any, ask: Ask) -> Plan:
        """Choose a shard for each draw.

        Args:
            index: The index of any shard; its values are not used.
            ring: The ring of any shard; its values are not used.
            totals: The totals of all shards, leaves `[S, ...]`.
            ask: As for `draw`.
        """

    def allowed(self, index: Index, ring: Ring, picks: Any, own: jax.Array) -> jax.Array:
        """Return a mask of the picks that a shard allows: bool `[C]`.

        Only called if `refuses_picks`.

        Args:
            index: The index of this shard.
            ring: The ring of this shard.
            picks: All picks of the plan, leaves `[..., C]`.
            own: bool `[C]`; the picks of this shard. Other entries of the result are ignored.
        """
        raise NotImplementedError

    def settled(
        self, totals: Any, plan: Plan, allowed: jax.Array, batch_size: int
    ) -> tuple[Any, Plan]:
        """Return the plan of a batch, after all shards have checked the picks.

        Only called if `refuses_picks`. The totals for `weigh` may get more leaves, of any shape.

        Args:
            totals: The totals of all shards, leaves `[S, ...]`.
            plan: The plan, of `C` picks.
            allowed: bool `[C]`.
            batch_size: `B`, the number of draws.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def pick(self, index: Index, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Make draws in one shard.

        Args:
            index: The index of this shard.
            ring: The ring of this shard.
            picks: Any picks of a plan, leaves `[..., B]`. Some may be another shard's: the results
                for these are not used, but the slots must be in range.

        Returns:
            int32 `[B]` slots in range, and auxiliary values for `weigh`: a pytree, leaves `[B]`.
        """

    @abc.abstractmethod
    def weigh(self, totals: Any, picked: Picked, ask: Ask) -> Draw:
        """Weigh the draws of a batch, or one device's part of them.

        Their mask depends on the totals, the positions and the step alone.

        Args:
            totals: The totals of all shards, leaves `[S, ...]`.
            picked: The picks.
            ask: As for `draw`.
        """

    def note_picks(self, index: Index, ring: Ring, picks: Any, there: jax.Array) -> Index:
        """Return the index of one shard after a batch was drawn. Only called if `notes_draws`.

        Args:
            index: The index of this shard.
            ring: The ring of this shard.
            picks: All picks of the plan, leaves `[..., B]`.
            there: bool `[B]`; the picks of this shard that became draws of the batch.
        """
        raise NotImplementedError

    def size_of_epoch(self, totals: Any) -> jax.Array:
        """Count the draws of an epoch: int32 scalar. Only called if `without_replacement`."""
        raise NotImplementedError

    def epoch_size(self, index: Index, ring: Ring) -> jax.Array:
        """Count the draws of an epoch of this buffer alone."""
        return self.size_of_epoch(self.only_totals(index, ring))

    def draw(self, index: Index, ring: Ring, ask: Ask) -> Draw:
        """Draw from this buffer alone."""
        totals = self.only_totals(index, ring)
        plan = self.plan(index, ring, totals, ask)
        found = self.pick(index, ring, plan.picks)
        slots, aux = computed(found) if ask.batch_size >= _MANY else found
        positions = jnp.arange(ask.batch_size, dtype=jnp.int32)
        return self.weigh(totals, Picked(slots, aux, positions), ask)

    def only_totals(self, index: Index, ring: Ring) -> Any:
        """Return the totals of this buffer as the only shard: leaves `[1]`."""
        return jax.tree.map(lambda leaf: leaf[None], self.shard_totals(index, ring))
