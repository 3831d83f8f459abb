"""The protocol of samplers: the interface between `fbuf.ops` and the files of this folder.

A sampler is a frozen, hashable dataclass, static under jit. It keeps an index, a pytree in
`State.index` that only the sampler looks into. To add a sampler, write one file with a subclass of
`Sampler`; nothing else changes. `docs/extending.md` shows one.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp

from fbuf.storage.ring import Ring, Span

Index = Any
Step = tuple[jax.Array, jax.Array]
"""The number of an epoch, and the place of the batch's first row in it, from 0. int32 scalars."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
    """What a sampler drew. `B` is the batch size.

    Attributes:
        slots: int32 `[B]`; in range, also where `mask` is False.
        probability: float32 `[B]`: how likely one draw is to be that slot.
        weight: float32 `[B]`; importance weights, at most 1.
        log_weight: float32 `[B]`: the logarithms of the weights before the division by the largest.
            0 for a slot that is as likely as under uniform sampling. Never NaN.
        mask: bool `[B]`: False where there was nothing to draw.
    """

    slots: jax.Array
    probability: jax.Array
    weight: jax.Array
    log_weight: jax.Array
    mask: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """Where each draw of a batch goes. `B` is the batch size.

    Attributes:
        shards: int32 `[B]`: the shard it is made in.
        picks: What the shard needs to know for it: a pytree, leaves `[..., B]`.
    """

    shards: jax.Array
    picks: Any


class Sampler(abc.ABC):
    """Which rows may be drawn, and how likely each is.

    Every method gets the index, and the ring, which says which rows are there. Leave out slots
    equal to `ring.capacity`: they stand for no row.

    Attributes:
        window: How many steps of one episode must follow from a row, counting itself, for it to be
            drawn. If shorter episodes are drawn, too, say so with `min_window`.
        stride: What the length of a lane must be a multiple of.
        keeps_priorities: Whether `add` takes priorities, and `update_priority` may be called.
        in_order: Whether batches are numbered, so that `fbuf.sample` needs `step`. Such a sampler
            has a method `epoch_size`.
        reads_once: Whether rows are read once, by `fbuf.pop`, and not drawn. Such a sampler has
            methods `unread`, `space` and `popped`.
    """

    window: int = 1
    stride: int = 1
    keeps_priorities: ClassVar[bool] = False
    in_order: ClassVar[bool] = False
    reads_once: ClassVar[bool] = False

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is (`Span.in_episode`)."""
        return self.window > 1

    @property
    def min_window(self) -> int:
        """How many steps of its episode follow from every drawn row, counting itself."""
        return self.window

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.window > 1

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch."""
        return True

    @abc.abstractmethod
    def init(self, ring: Ring) -> Index:
        """The index of an empty buffer; raise `ValueError` if the sampler cannot serve it."""

    @abc.abstractmethod
    def add(
        self,
        index: Index,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: chex.Array | float | None,
    ) -> tuple[Index, jax.Array]:
        """Take note of the rows just written. Return the fault bits of each, uint32 `[B]`.

        `ring` is the ring with the rows in it. `priority` is float32 `[B]`, or None.
        """

    def update_priority(
        self,
        index: Index,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: chex.Array | float | None,
    ) -> tuple[Index, jax.Array]:
        """Change the priorities of stored rows. Return the fault bits of each, uint32 `[B]`.

        If a slot repeats, its last priority counts. Only called if `keeps_priorities` is True.
        """
        raise NotImplementedError

    def moved(
        self, index: Index, ring: Ring, slots: jax.Array, old: Index, old_slots: jax.Array
    ) -> tuple[Index, jax.Array]:
        """Take over what the index of another buffer keeps of rows that were just added from it.

        `fbuf.resize`, `fbuf.extend` and `fbuf.split` call it after `add`, and once without rows
        before all: what is kept of a buffer as a whole is known to `add` then. A sampler that finds
        all it needs in the ring has nothing to do. Return the fault bits of each row, too, uint32
        `[B]`.
        """
        return index, jnp.zeros(slots.shape, jnp.uint32)

    def takes_over(self, other: Sampler) -> bool:
        """Whether `moved` can read the index of a buffer with that sampler."""
        return self == other

    def room(self, index: Index, ring: Ring) -> jax.Array | None:
        """How many more steps each head may write: int32 `[heads]`; None is any number.

        `fbuf.add` leaves out what does not fit.
        """
        return None

    @abc.abstractmethod
    def remove(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Never draw these rows again; their flags say so already. No slot repeats."""

    @abc.abstractmethod
    def can_sample(self, index: Index, ring: Ring) -> jax.Array:
        """Whether there is a row to draw. bool scalar."""

    @abc.abstractmethod
    def draw(
        self,
        index: Index,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: chex.Array | float | None,
        step: Step | None,
    ) -> Draw:
        """Draw rows with replacement or, if `in_order` is True, those of an epoch from a place on.

        Mask what lies behind the end of the epoch.
        """

    @abc.abstractmethod
    def probability(self, index: Index, ring: Ring, slots: jax.Array) -> jax.Array:
        """How likely one draw is to be each of these stored rows: float32 `[B]`, like `slots`."""

    def epoch_size(self, index: Index, ring: Ring) -> jax.Array:
        """How many draws an epoch has: int32 scalar. Only called if `in_order` is True."""
        raise NotImplementedError

    def unread(self, index: Index, ring: Ring) -> jax.Array:
        """How many steps of each head are still to be read, its newest ones: int32 `[heads]`.

        This and the next two are only called if `reads_once` is True.
        """
        raise NotImplementedError

    def space(self, index: Index, ring: Ring) -> jax.Array:
        """How many more steps each head can write over rows that were read: int32 `[heads]`."""
        raise NotImplementedError

    def popped(self, index: Index, steps: jax.Array) -> Index:
        """Take note that the oldest unread steps of each head were read: int32 `[heads]`."""
        raise NotImplementedError

    def stats(self, index: Index, ring: Ring) -> dict[str, jax.Array]:
        """Figures for logging. Scalars."""
        return {}


class PlannedSampler(Sampler):
    """A sampler that draws from several buffers as from one: the shards of `fbuf.sharded`.

    A draw is planned, picked and weighed. To plan, only the masses of the shards are known, and
    every device plans alike. A pick is made in one shard, from what is stored there. Weights are
    computed where the batch lies, of what the picks have found. With one shard this is `draw`.

    Attributes:
        largest_stats: Which of the `stats` of several shards are the largest of them; all others
            are the sum.
    """

    largest_stats: ClassVar[frozenset[str]] = frozenset()

    def largest(self, index: Index) -> jax.Array | None:
        """What new rows need the largest of all shards of: a float32 scalar. None is nothing."""
        return None

    def told(self, index: Index, largest: jax.Array) -> Index:
        """The index, which has been told the largest of all shards; `add` forgets it again."""
        raise NotImplementedError

    @abc.abstractmethod
    def mass(self, index: Index, ring: Ring) -> Any:
        """What has to be known of a shard to plan and to weigh: a pytree of numeric scalars."""

    @abc.abstractmethod
    def plan(
        self,
        index: Index,
        ring: Ring,
        masses: Any,
        key: jax.Array,
        batch_size: int,
        step: Step | None,
    ) -> Plan:
        """Choose a shard for each draw.

        Args:
            index: Of any shard; its values are not used.
            ring: Of any shard; its values are not used.
            masses: Those of all shards, leaves `[S]`.
            key: As for `draw`.
            batch_size: As for `draw`.
            step: As for `draw`.
        """

    @abc.abstractmethod
    def pick(self, index: Index, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Make draws in one shard.

        Args:
            index: Of this shard.
            ring: Of this shard.
            picks: Those of a plan; any of them, leaves `[..., B]`. Some may be another shard's:
                what is found for these is not used, but must be in range.

        Returns:
            int32 `[B]` slots in range, and what `weigh` needs to know: a pytree, leaves `[B]`.
        """

    @abc.abstractmethod
    def weigh(
        self,
        masses: Any,
        slots: jax.Array,
        found: Any,
        numbers: jax.Array,
        beta: chex.Array | float | None,
        step: Step | None,
        axes: tuple[str, ...],
    ) -> Draw:
        """Weigh the draws of a batch, or those that one device has of it.

        Their mask depends on the masses, the numbers and the step alone.

        Args:
            masses: Those of all shards, leaves `[S]`.
            slots: int32 `[m]`.
            found: What `pick` has found, leaves `[m]`.
            numbers: int32 `[m]`: which draws of the batch these are.
            beta: As for `draw`.
            step: As for `draw`.
            axes: The axes of the mesh that the rest of the batch lies along.
        """

    def size_of_epoch(self, masses: Any) -> jax.Array:
        """How many draws an epoch has: int32 scalar. Only called if `in_order` is True."""
        raise NotImplementedError

    def epoch_size(self, index: Index, ring: Ring) -> jax.Array:
        """How many draws an epoch has, of this buffer alone."""
        return self.size_of_epoch(_of_one(self.mass(index, ring)))

    def draw(
        self,
        index: Index,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: chex.Array | float | None,
        step: Step | None,
    ) -> Draw:
        """Draw from this buffer alone."""
        masses = _of_one(self.mass(index, ring))
        plan = self.plan(index, ring, masses, key, batch_size, step)
        slots, found = self.pick(index, ring, plan.picks)
        numbers = jnp.arange(batch_size, dtype=jnp.int32)
        return self.weigh(masses, slots, found, numbers, beta, step, ())


def _of_one(mass: Any) -> Any:
    """The masses of all shards, where there is one."""
    return jax.tree.map(lambda leaf: leaf[None], mass)
