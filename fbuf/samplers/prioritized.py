"""Prioritised sampling: rows in proportion to their priorities, with importance weights."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.core
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits, shards, weights
from fbuf.samplers.index import priority_index
from fbuf.samplers.index.priority_index import PriorityIndex
from fbuf.samplers.protocol.planned import Picked, Plan
from fbuf.samplers.protocol.sampler import Ask, Draw, Given, Origin, Scalar
from fbuf.samplers.protocol.windows import WindowedSampler
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ring import Ring, Span
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import Aggregate, Points
from fbuf.xla.across import smallest
from fbuf.xla.tie import tie

_FLOAT32 = jnp.finfo(jnp.float32)


@pytree
class PriorityTotals:
    """The totals of a shard.

    Attributes:
        total: The sum of all stored priorities.
        count: The number of rows that may be drawn.
        inverse: 1 / the smallest priority above 0; None where weights are divided by the largest in
            the batch.
    """

    total: jax.Array
    count: jax.Array
    inverse: jax.Array | None


@pytree
class PriorityPicks:
    """Draws in one shard: a uniform number a level, float32 `[B]` each, and the points of draws.

    `points` is None if draws are independent.
    """

    uniforms: list[jax.Array]
    points: Points | None


@dataclasses.dataclass(frozen=True)
class Prioritized(WindowedSampler):
    """Draw rows in proportion to `max(priority + eps, floor) ** alpha`, with replacement.

    The power is applied once, when a priority is stored, in float32. With `eps=0` and no floor, a
    row of priority 0 is never drawn until you give it another priority.

    Attributes:
        alpha: The power of priorities, at least 0. With 0 all rows are equally likely, with 1
            priorities count as they are. For a schedule, give `alpha` to `add` and
            `update_priority` instead, where it may be traced. It holds for the priorities that the
            call stores.
        beta: The power of importance weights, at least 0. With 0 they do not make up for the
            priorities, with 1 fully. For a schedule, give `beta` to `sample` instead, where it may
            be traced.
        eps: Added to every priority before the power, so that no row is lost. At least 0. A row
            without error is drawn about `(eps / error) ** alpha` times as often as one of that
            error: 1e-6 hardly ever, and 1e-2 now and then, where errors are about 1.
        floor: The smallest base of the power, at least 0. A smaller `priority +
            eps` counts as the floor. LAP has a floor of 1 (Fujimoto et al.), and then `eps` is of
            no use: give `eps=0`.
        new_priority: The priority of a row if you give `add` none. With `"largest"` it is the
            largest of the rows that may be drawn, before `add` overwrites rows. With
            `"largest_ever"` it is the largest ever stored, which is cheaper to keep, but forgets an
            outlier only at `fbuf.clear`. As long as that largest is 0, as in an empty buffer, a row
            gets 1, or `floor ** alpha` if that is more. These are priorities as they are stored,
            after the power.
        normalize: With `"batch"`, weights are divided by the largest in the batch. With `"buffer"`
            they are divided by the largest weight of any row of the buffer; these weights are
            smaller and vary less.
        window: The number of steps of one episode that must follow from a row, counting itself, for
            the row to be drawn; see `fbuf.Uniform`. A row keeps its priority while it cannot be
            drawn.
        stride: Draw every `stride`-th step of a lane. Must divide the length of a lane.
        first_only: Draw only first steps of episodes.
        strict: As for `fbuf.Uniform`.
        draws: With `"independent"`, each draw is by itself. With `"stratified"`, one draw is from
            each of `batch_size` equal shares of the total, in random order; this has less variance.

    Cost: O(B log N) time to add, sample and update B rows, O(B window log N) to remove them. A row
    takes 4.5 bytes with the defaults, 4.8 with `normalize="buffer"`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If a number is traced. A sampler is static; see `alpha` and `beta` above.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
        >>> state = fbuf.init(jnp.zeros(()), capacity=100, sampler=sampler)
        >>> state = fbuf.add(state, jnp.arange(3.0), priority=jnp.array([1.0, 0.0, 3.0]))
        >>> fbuf.sample(state, jax.random.key(0), 4, beta=1.0).probability
        Array([0.75, 0.25, 0.75, 0.75], dtype=float32)

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952;
        Fujimoto et al., An Equivalence between Loss Functions and Non-Uniform Sampling in
        Experience Replay, NeurIPS 2020, arXiv:2007.06049 (the floor).
    """

    alpha: float = 0.6
    _: dataclasses.KW_ONLY
    beta: float = 0.4
    eps: float = 1e-6
    floor: float = 0.0
    new_priority: Literal["largest", "largest_ever"] = "largest"
    normalize: Literal["batch", "buffer"] = "batch"
    draws: Literal["independent", "stratified"] = "independent"
    window: int = 1
    stride: int = 1
    first_only: bool = False
    strict: bool = True

    keeps_priorities: ClassVar[bool] = True
    largest_stats: ClassVar[frozenset[str]] = frozenset({"new_priority"})

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "eps", "floor"):
            value = getattr(self, name)
            if isinstance(value, jax.core.Tracer):
                raise TypeError(
                    f"fbuf.Prioritized: {name} is traced, but a sampler is static; give a "
                    "number here. For a schedule, pass alpha= to add and update_priority, and "
                    "beta= to sample"
                )
            check.number("Prioritized", name, value)
            object.__setattr__(self, name, float(value))
        for name, allowed in (
            ("new_priority", ("largest", "largest_ever")),
            ("normalize", ("batch", "buffer")),
            ("draws", ("independent", "stratified")),
        ):
            check.choice("Prioritized", name, getattr(self, name), allowed)
        self._check_window()

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.window > 1 or self.eps == self.floor == 0

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch."""
        return self.normalize == "batch"

    def init(self, ring: Ring) -> PriorityIndex:
        """Return an index without priorities."""
        self._check_lanes(ring)
        if self._first_priority > priority_index.largest_storable(ring):
            raise ValueError(
                f"fbuf.init: Prioritized(floor={self.floor!r}, alpha={self.alpha!r}) stores "
                f"{self._first_priority:.3g} for a row, and float32 cannot sum up as much of "
                f"{ring.capacity * ring.shards} rows; take a smaller floor"
            )
        aggregates = [Aggregate.SUM]
        if self.new_priority == "largest":
            aggregates.append(Aggregate.LARGEST)
        if self.normalize == "buffer":
            aggregates.append(Aggregate.LARGEST_INVERSE)
        ever = self.new_priority == "largest_ever"
        return priority_index.empty(ring, self.start_conditions, tuple(aggregates), ever)

    def add(self, index: PriorityIndex, ring: Ring, span: Span) -> tuple[PriorityIndex, jax.Array]:
        """Store the priorities of new rows; a bad priority becomes the default."""
        given = Given(span.priority, span.alpha)
        values, valid = self.values_of_new(index, ring, span.slots.shape, given)
        faults = bits_where(~valid & span.drawable, Fault.BAD_PRIORITY)
        return priority_index.add(index, ring, span, values, self.start_conditions), faults

    def values_of_new(
        self, index: PriorityIndex, ring: Ring, shape: tuple[int, ...], given: Given
    ) -> tuple[jax.Array, jax.Array]:
        """Return the values to store for new rows, and which priorities are valid: `[B]` each."""
        default = priority_index.default(index, self._first_priority)
        if given.priority is None:
            return jnp.broadcast_to(default, shape), jnp.ones(shape, bool)
        stored, valid = self._stored(given.priority, given.alpha, ring)
        return jnp.where(valid, stored, default), valid

    def update_priority(
        self, index: PriorityIndex, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[PriorityIndex, jax.Array]:
        """Store the valid priorities."""
        assert given.priority is not None
        values, valid = self._stored(given.priority, given.alpha, ring)
        faults = bits_where((slots < ring.capacity) & ~valid, Fault.BAD_PRIORITY)
        return priority_index.update(index, ring, slots, values, valid), faults

    def take_over(
        self, index: PriorityIndex, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[PriorityIndex, jax.Array]:
        """Store the priorities of another `Prioritized` that makes the same ones."""
        if isinstance(origin.sampler, Prioritized) and self._power == origin.sampler._power:
            index = priority_index.take_over(index, ring, slots, origin.index, origin.slots)
        return index, jnp.zeros(slots.shape, jnp.uint32)

    def remove(self, index: PriorityIndex, ring: Ring, slots: jax.Array) -> PriorityIndex:
        """Store 0, whatever the floor is, and deactivate starts whose windows held such a row."""
        return priority_index.remove(index, ring, slots, self.start_conditions)

    def retire(self, index: PriorityIndex, ring: Ring, slots: jax.Array) -> PriorityIndex:
        """Deactivate these starts alone."""
        return priority_index.retire(index, ring, slots)

    def can_sample(self, index: PriorityIndex, ring: Ring) -> jax.Array:
        """Return whether any stored priority is above 0."""
        if self.start_conditions.every_row and not self.may_draw_nothing:
            return ring.live() > 0  # reads no priority: the same for buffers whose rows differ
        return sum_tree.total(index.tree) > 0

    def largest_priority(self, index: PriorityIndex) -> jax.Array:
        """Return the largest priority of a drawable row, or ever; 0 without one."""
        return priority_index.largest(index)

    def with_largest_priority(self, index: PriorityIndex, largest: jax.Array) -> PriorityIndex:
        """Return the index with the maximum over all shards."""
        return dataclasses.replace(index, largest_of_shards=largest)

    def shard_totals(self, index: PriorityIndex, ring: Ring) -> PriorityTotals:
        """Return the sum of the stored values, and the number of rows."""
        inverse = None
        if self.normalize == "buffer":
            inverse = sum_tree.aggregate(index.tree, Aggregate.LARGEST_INVERSE)
        total = sum_tree.total(index.tree)
        return PriorityTotals(total, priority_index.count(index, ring), inverse)

    def plan(self, index: PriorityIndex, ring: Ring, totals: PriorityTotals, ask: Ask) -> Plan:
        """Choose shards by their totals."""
        key, batch_size = ask.key, ask.batch_size
        picks, total = sum_tree.picks(index.tree), totals.total
        if self.draws == "independent":
            uniforms = random_bits.uniforms_of_rows(key, picks, batch_size, total)
            return Plan(shards.by_total(total, key, batch_size), PriorityPicks(uniforms, None))
        order_key, next_key = random_bits.split(tie(key, total), 2)
        where, *uniforms = random_bits.uniforms_of_rows(next_key, 1 + picks, batch_size)
        share = jax.random.permutation(order_key, batch_size).astype(jnp.float32)
        places = jnp.minimum((share + where) / batch_size, 1 - 2.0**-24)
        shard, points = shards.by_point(total, key, places)
        return Plan(shard, PriorityPicks(uniforms, points))

    def pick(
        self, index: PriorityIndex, ring: Ring, picks: PriorityPicks
    ) -> tuple[jax.Array, jax.Array]:
        """Walk down the tree, and return the slots and their values."""
        if picks.points is None:
            return sum_tree.draw(index.tree, picks.uniforms)
        slots, value, _ = sum_tree.draw_stratified(index.tree, picks.points, picks.uniforms)
        return slots, value

    def weigh(self, totals: PriorityTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh rows by `probability ** -beta`."""
        total = shards.sum_of_totals(totals.total)
        mask = jnp.broadcast_to(total > 0, picked.slots.shape)
        # The number of rows and the total cancel out: the weight is that of the value alone.
        value, beta = jnp.where(mask, picked.aux, 1), self.beta if ask.beta is None else ask.beta
        inverse = totals.inverse
        if inverse is None:
            least = smallest(value.min(), picked.axes)
        else:
            least = 1 / _above_0(inverse.max())
        weight = jnp.minimum(weights.power_of_ratio(least, value, beta), 1)
        mean = total / jnp.maximum(shards.sum_of_counts(totals.count), 1)
        log_ratio = jnp.log(jnp.where(mask, mean, 1)) - jnp.log(value)
        return Draw(
            slots=picked.slots,
            probability=jnp.where(mask, value / _above_0(total), 0),
            weight=jnp.where(mask, weight, 0),
            log_weight=weights.exponent(beta) * log_ratio,
            mask=mask,
        )

    def probability(self, index: PriorityIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the values of rows, divided by the total."""
        total = sum_tree.total(index.tree)
        value = priority_index.of_slots(index, slots)
        return jnp.where(total > 0, value / _above_0(total), 0)

    def stats(self, index: PriorityIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the sum of the stored values, and the default of new rows."""
        counts = {} if index.num_starts is None else {"num_starts": index.num_starts}
        return {
            "priority_total": sum_tree.total(index.tree),
            "new_priority": priority_index.default(index, self._first_priority),
            **counts,
        }

    @property
    def _power(self) -> tuple[float, float, float]:
        """The constants of the formula for stored priorities."""
        return self.alpha, self.eps, self.floor

    @property
    def _first_priority(self) -> float:
        """The value for a row without a priority while no value is above 0."""
        try:
            return max(1.0, self.floor) ** self.alpha
        except OverflowError:
            return math.inf

    def _stored(
        self, priority: jax.Array, alpha: Scalar, ring: Ring
    ) -> tuple[jax.Array, jax.Array]:
        """Return the value to store for each priority, and whether the priority is valid."""
        base = jnp.maximum(priority + jnp.float32(self.eps), jnp.float32(self.floor))
        power = jnp.float32(self.alpha) if alpha is None else jnp.asarray(alpha, jnp.float32)
        # exp(alpha log p): XLA's pow is a scalar library call on CPU. A base above 0 stays so.
        raised = jnp.where(power == 1, base, jnp.exp(power * jnp.log(_above_0(base))))
        stored = jnp.where(base > 0, jnp.maximum(raised, float(_FLOAT32.tiny)), 0)
        valid = (power >= 0) & (power <= float(_FLOAT32.max))
        return stored, valid & (priority >= 0) & (stored <= priority_index.largest_storable(ring))


def _above_0(number: jax.Array) -> jax.Array:
    """Return the numbers above 0, and 1 in place of all others, whose results are unused."""
    return jnp.where(number > 0, number, 1)
