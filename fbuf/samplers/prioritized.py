"""Prioritised sampling: rows in proportion to their priorities, with importance weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import chex
import jax
import jax.core
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers import random_bits, shards, starts
from fbuf.samplers.protocol import Draw, Plan, PlannedSampler, Sampler, Step
from fbuf.samplers.starts import Window
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ring import Ring, Span
from fbuf.trees import sum_tree
from fbuf.trees.sum_tree import Aggregate, Positions, SumTree
from fbuf.xla.across import smallest
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.tie import tie

_SMALLEST = float(jnp.finfo(jnp.float32).tiny)
_LARGEST = float(jnp.finfo(jnp.float32).max)
_ROOTS: dict[float, Callable[[jax.Array], jax.Array]] = {
    0.0: jnp.ones_like,
    0.5: jnp.sqrt,
    1.0: lambda value: value,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PriorityIndex:
    """What `Prioritized` keeps: the tree of stored priorities.

    `largest_ever` is the largest priority ever stored; None where new rows do not get it.
    `num_starts` counts the rows a window may start at; None where that is every row. `of_all` is
    the largest of all shards, while rows are added to one; otherwise None.
    """

    tree: SumTree
    largest_ever: jax.Array | None
    num_starts: jax.Array | None
    of_all: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PriorityMass:
    """What there is to draw from.

    `total` is the sum of all stored priorities, of `count` rows. `inverse` is 1 / the smallest
    above 0; None where weights are divided by the largest in the batch.
    """

    total: jax.Array
    count: jax.Array
    inverse: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Picks:
    """Draws in one shard: a uniform number a level, float32 `[picks, B]`, and where they begin.

    `positions` is None if draws are independent.
    """

    uniforms: jax.Array
    positions: Positions | None


@dataclasses.dataclass(frozen=True)
class Prioritized(PlannedSampler):
    """Draw rows in proportion to `(priority + eps) ** alpha`, with replacement.

    The power is applied once, when a priority is stored, in float32. With `eps=0`, a row of
    priority 0 is never drawn until you give it another priority.

    Attributes:
        alpha: How much priorities matter: with 0 all rows are equally likely, with 1 priorities
            count as they are. At least 0. For a schedule, give `alpha` to `add` and
            `update_priority` instead, where it may be traced; it holds for the priorities that this
            call stores.
        beta: How far importance weights make up for the priorities: 0 not at all, 1 fully. At least
            0. For a schedule, give `beta` to `sample` instead, where it may be traced.
        eps: Added to every priority before the power, so that no row is lost. At least 0.
        new_priority: What a row gets if you give `add` no priority. `"largest"`: the largest in the
            buffer now. `"largest_ever"`: the largest ever stored, which is cheaper to keep, but
            forgets an outlier only at `fbuf.clear`. As long as that largest is 0, as in an empty
            buffer, a row gets 1. These are priorities as they are stored, after the power.
        normalize: `"batch"`: weights are divided by the largest in the batch. `"buffer"`: by the
            largest that any row of the buffer would have; these weights are smaller and vary less.
        window: How many steps of one episode must follow from a row, counting itself, for it to be
            drawn; see `fbuf.Uniform`. A row keeps its priority while it cannot be drawn.
        stride: Draw every `stride`-th step of a lane. Must divide the length of a lane.
        first_only: Draw only first steps of episodes.
        strict: As for `fbuf.Uniform`.
        draws: `"independent"`: each draw by itself. `"stratified"`: one draw from each of
            `batch_size` equal shares of the total, in random order; this has less variance.

    Cost: O(B log N) time to add, sample and update B rows, O(B window log N) to remove them;
    4.5 bytes a row with the defaults, 4.8 with `normalize="buffer"`.

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
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952.
    """

    alpha: float = 0.6
    _: dataclasses.KW_ONLY
    beta: float = 0.4
    eps: float = 1e-6
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
        for name in ("alpha", "beta", "eps"):
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
        starts.check_options("Prioritized", self.window, self.stride, self.first_only, self.strict)

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return not self._window.every_row

    @property
    def min_window(self) -> int:
        """How many steps of its episode follow from every drawn row, counting itself."""
        return self.window if self.strict else 1

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.window > 1 or self.eps == 0

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch."""
        return self.normalize == "batch"

    @property
    def _window(self) -> Window:
        return Window(self.window, self.stride, self.first_only, strict=self.strict)

    def init(self, ring: Ring) -> PriorityIndex:
        """No priority stored."""
        keeps = [Aggregate.SUM]
        if self.new_priority == "largest":
            keeps.append(Aggregate.LARGEST)
        if self.normalize == "buffer":
            keeps.append(Aggregate.LARGEST_INVERSE)
        starts.check_lanes("Prioritized", ring, self._window)
        # A row that is no start keeps its priority with a minus sign; where there is none it is -0.
        tree = sum_tree.empty(ring.capacity, tuple(keeps), dormant=not self._window.every_row)
        num_starts = None if self._window.every_row else jnp.int32(0)
        largest = jnp.float32(0) if self.new_priority == "largest_ever" else None
        return PriorityIndex(tree, largest, num_starts)

    def add(
        self,
        index: PriorityIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: chex.Array | float | None,
    ) -> tuple[PriorityIndex, jax.Array]:
        """Store the priorities of new rows; those that cannot be right get the default."""
        default = self._default(index)
        if priority is None:
            new = jnp.broadcast_to(default, span.slots.shape)
            faults = jnp.zeros_like(span.slots, jnp.uint32)
        else:
            stored, valid = self._stored(priority, alpha, ring)
            new = jnp.where(valid, stored, default)
            faults = bits_where(~valid & span.drawable, Fault.BAD_PRIORITY)
        new = jnp.where(span.drawable, new, 0)
        largest_ever = self._largest_ever(index, new, span.drawable)
        if index.num_starts is None:
            tree = self._written(index.tree, ring, span, new, None)
            return PriorityIndex(tree, largest_ever, None), faults
        kept = span.slots < ring.capacity
        before = sum_tree.values(index.tree, jnp.minimum(span.slots, ring.capacity - 1))
        evicted = kept & _is_start(before)
        slots, is_start = starts.completed(ring, span, self._window)
        woken = jnp.where(is_start, slots, ring.capacity)
        # What is overwritten has been read by then.
        span = dataclasses.replace(span, slots=tie(span.slots, before))
        tree = self._written(index.tree, ring, span, -new, woken)
        change = jnp.sum(is_start, dtype=jnp.int32) - jnp.sum(evicted, dtype=jnp.int32)
        return PriorityIndex(tree, largest_ever, index.num_starts + change), faults

    def update_priority(
        self,
        index: PriorityIndex,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: chex.Array | float | None,
    ) -> tuple[PriorityIndex, jax.Array]:
        """Store the priorities that can be right."""
        capacity = index.tree.capacity
        new, valid = self._stored(priority, alpha, ring)
        named = slots < capacity
        slots = jnp.where(valid, slots, capacity)
        signed = new
        if not self._window.every_row:
            old = sum_tree.values(index.tree, jnp.minimum(slots, capacity - 1))
            signed = jnp.where(jnp.signbit(old), -new, new)
        tree = sum_tree.write(index.tree, slots, signed)
        faults = bits_where(named & ~valid, Fault.BAD_PRIORITY)
        largest_ever = self._largest_ever(index, new, named & valid)
        return PriorityIndex(tree, largest_ever, index.num_starts), faults

    def moved(
        self,
        index: PriorityIndex,
        ring: Ring,
        slots: jax.Array,
        old: PriorityIndex,
        old_slots: jax.Array,
    ) -> tuple[PriorityIndex, jax.Array]:
        """Store what the other buffer has stored."""
        value = jnp.abs(sum_tree.values(old.tree, old_slots))
        value = jnp.minimum(value, _most(ring))
        if not self._window.every_row:
            mine = sum_tree.values(index.tree, jnp.minimum(slots, ring.capacity - 1))
            value = jnp.where(jnp.signbit(mine), -value, value)
        tree = sum_tree.write(index.tree, slots, value)
        largest = index.largest_ever
        if largest is not None:
            largest = jnp.maximum(largest, self.largest(old))
        moved = PriorityIndex(tree, largest, index.num_starts)
        return moved, jnp.zeros(slots.shape, jnp.uint32)

    def takes_over(self, other: Sampler) -> bool:
        """Whether the other one stores the same value for a priority."""
        alike = isinstance(other, Prioritized)
        return alike and (self.alpha, self.eps) == (other.alpha, other.eps)

    def remove(self, index: PriorityIndex, ring: Ring, slots: jax.Array) -> PriorityIndex:
        """Store 0, whatever `eps` is; rows whose windows held one of these sleep from now on."""
        new, total = jnp.zeros(slots.shape, jnp.float32), index.num_starts
        if total is not None:
            found = starts.containing(ring, slots, self._window)
            old = sum_tree.values(index.tree, jnp.minimum(found, ring.capacity - 1))
            lost = last_of_each(found) & (found < ring.capacity) & _is_start(old)
            total -= jnp.sum(lost, dtype=jnp.int32)
            # Of two values for a slot the last one counts: that of a removed row is 0.
            slots, new = jnp.concatenate([found, slots]), jnp.concatenate([-jnp.abs(old), -new])
        tree = sum_tree.write(index.tree, slots, new)
        return PriorityIndex(tree, index.largest_ever, total)

    def can_sample(self, index: PriorityIndex, ring: Ring) -> jax.Array:
        """Whether any stored priority is above 0."""
        return sum_tree.total(index.tree) > 0

    def largest(self, index: PriorityIndex) -> jax.Array:
        """The largest priority, now or ever; 0 if there is none."""
        if index.largest_ever is not None:
            return index.largest_ever
        return sum_tree.aggregate(index.tree, Aggregate.LARGEST)

    def told(self, index: PriorityIndex, largest: jax.Array) -> PriorityIndex:
        """The index, for the next add."""
        return dataclasses.replace(index, of_all=largest)

    def mass(self, index: PriorityIndex, ring: Ring) -> PriorityMass:
        """The total of what is stored, and of how many rows."""
        inverse = None
        if self.normalize == "buffer":
            inverse = sum_tree.aggregate(index.tree, Aggregate.LARGEST_INVERSE)
        return PriorityMass(sum_tree.total(index.tree), self.count(index, ring), inverse)

    def plan(
        self,
        index: PriorityIndex,
        ring: Ring,
        masses: PriorityMass,
        key: jax.Array,
        batch_size: int,
        step: Step | None,
    ) -> Plan:
        """Choose shards by their totals."""
        tree, totals = index.tree, masses.total
        if self.draws == "independent":
            shape = (sum_tree.picks(tree), batch_size)
            uniforms = random_bits.uniforms(key, shape, totals)
            return Plan(shards.by_total(totals, key, batch_size), Picks(uniforms, None))
        order_key, next_key = jax.random.split(tie(key, totals))
        shape = (1 + sum_tree.picks(tree), batch_size)
        where, *uniforms = random_bits.uniforms(next_key, shape)
        share = jax.random.permutation(order_key, batch_size).astype(jnp.float32)
        places = jnp.minimum((share + where) / batch_size, 1 - 2.0**-24)
        shard, positions = shards.by_position(totals, key, places)
        return Plan(shard, Picks(jnp.stack(uniforms), positions))

    def pick(self, index: PriorityIndex, ring: Ring, picks: Picks) -> tuple[jax.Array, jax.Array]:
        """Walk down the tree. What is found is the value."""
        if picks.positions is None:
            return sum_tree.draw(index.tree, picks.uniforms)
        slots, value, _ = sum_tree.draw_stratified(index.tree, picks.positions, picks.uniforms)
        return slots, value

    def weigh(
        self,
        masses: PriorityMass,
        slots: jax.Array,
        found: jax.Array,
        numbers: jax.Array,
        beta: chex.Array | float | None,
        step: Step | None,
        axes: tuple[str, ...],
    ) -> Draw:
        """Weigh rows by `probability ** -beta`."""
        total = shards.sum_of_totals(masses.total)
        mask = jnp.broadcast_to(total > 0, slots.shape)
        # The number of rows and the total cancel out: the weight is that of the value alone.
        value, beta = jnp.where(mask, found, 1), self.beta if beta is None else beta
        inverse = masses.inverse
        least = smallest(value.min(), axes) if inverse is None else 1 / _above_0(inverse.max())
        weight = jnp.where(mask, jnp.minimum(_weight(value, least, beta), 1), 0)
        mean = total / jnp.maximum(shards.sum_of_counts(masses.count), 1)
        return Draw(
            slots=slots,
            probability=jnp.where(mask, value / _above_0(total), 0),
            weight=weight,
            log_weight=starts.power(beta) * (jnp.log(jnp.where(mask, mean, 1)) - jnp.log(value)),
            mask=mask,
        )

    def probability(self, index: PriorityIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Its part of the total."""
        total = sum_tree.total(index.tree)
        value = jnp.maximum(sum_tree.values(index.tree, slots), 0)
        return jnp.where(total > 0, value / _above_0(total), 0)

    def count(self, index: PriorityIndex, ring: Ring) -> jax.Array:
        """How many rows there are to be drawn, those of priority 0 included. int32 scalar."""
        return ring.count() - ring.removed if index.num_starts is None else index.num_starts

    def stats(self, index: PriorityIndex, ring: Ring) -> dict[str, jax.Array]:
        """The total of what is stored, and the largest."""
        found = {} if index.num_starts is None else {"num_starts": index.num_starts}
        return {
            "priority_total": sum_tree.total(index.tree),
            "new_priority": self._default(index),
            **found,
        }

    def _default(self, index: PriorityIndex) -> jax.Array:
        """What a row without a priority gets, as stored."""
        largest = self.largest(index) if index.of_all is None else index.of_all
        return jnp.where(largest > 0, largest, 1)

    def _stored(
        self, priority: jax.Array, alpha: chex.Array | float | None, ring: Ring
    ) -> tuple[jax.Array, jax.Array]:
        """What is stored for each priority, and whether it can be right."""
        base = priority + jnp.float32(self.eps)
        power = jnp.float32(self.alpha) if alpha is None else jnp.asarray(alpha, jnp.float32)
        # exp(alpha log p): XLA's pow is a scalar library call on CPU. What is above 0 stays so.
        raised = jnp.where(power == 1, base, jnp.exp(power * jnp.log(_above_0(base))))
        raised = jnp.maximum(raised, _SMALLEST)
        stored = jnp.where(base > 0, raised, 0)
        possible = (power >= 0) & (power <= _LARGEST)
        return stored, possible & (priority >= 0) & (stored <= _most(ring))

    def _written(
        self, tree: SumTree, ring: Ring, span: Span, new: jax.Array, woken: jax.Array | None
    ) -> SumTree:
        """The tree with the values of the rows of an add, and the starts that it has woken."""
        if ring.heads == 1:
            return sum_tree.write_span(tree, span, new, woken)
        return sum_tree.write(tree, span.slots, new, woken)

    def _largest_ever(
        self, index: PriorityIndex, new: jax.Array, written: jax.Array
    ) -> jax.Array | None:
        if index.largest_ever is None:
            return None
        return jnp.maximum(index.largest_ever, jnp.where(written, new, 0).max())


def _weight(value: jax.Array, smallest: jax.Array, beta: chex.Array | float) -> jax.Array:
    """`(smallest / value) ** beta`; of some static exponents without a logarithm."""
    root = _ROOTS.get(beta) if isinstance(beta, float) else None
    if root is not None:
        return root(smallest) / root(value)
    return jnp.exp(starts.power(beta) * (jnp.log(smallest) - jnp.log(value)))


def _above_0(number: jax.Array) -> jax.Array:
    """Numbers, and 1 for those that are not above 0: what they give is not used."""
    return jnp.where(number > 0, number, 1)


def _most(ring: Ring) -> float:
    """The largest value that can be stored: so that no sum overflows, nor that of all shards."""
    return float(jnp.finfo(jnp.float32).max) / (2 * ring.capacity * ring.shards)


def _is_start(value: jax.Array) -> jax.Array:
    """Whether a stored row is a start: others keep their value with a minus sign."""
    return ~jnp.signbit(value)
