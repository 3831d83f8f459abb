"""Limits on rows: the number of draws, the age in steps, and the version of the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import candidates
from fbuf.samplers.chance.candidates import Taken
from fbuf.samplers.index import lives, versions
from fbuf.samplers.index.lives import Lives
from fbuf.samplers.protocol.planned import Picked, Plan, PlannedSampler
from fbuf.samplers.protocol.sampler import Ask, Draw, Given, Origin, Sampler
from fbuf.samplers.protocol.wrapper import Wrapper
from fbuf.samplers.uniform import Uniform
from fbuf.storage.ring import Ring, Span
from fbuf.trees import bit_tree
from fbuf.xla.duplicates import earlier_of_each, last_of_each
from fbuf.xla.rows import read_rows


@pytree
class LimitedIndex:
    """The rows that may still be drawn, and the index of the sampler.

    Attributes:
        lives: The rows that may still be drawn.
        others: The index of the sampler.
    """

    lives: Lives
    others: Any


@pytree
class LimitedTotals:
    """The totals of a shard, and the candidates that a batch has taken.

    Attributes:
        others: The totals of the sampler.
        taken: The taken candidates; None where all are taken.
    """

    others: Any
    taken: Taken | None = None


# An attribute of one base class is a property of the other.
@dataclasses.dataclass(frozen=True)
class Limited(Wrapper, PlannedSampler):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Draw with another sampler, but no row more often, or at a higher age, than you allow.

    A row that has reached a limit is retired: it is not drawn again. It stays stored, so windows
    may still read it, and its id stays good for `fbuf.read` and `fbuf.write`. Without a window it
    has no priority any more: it does not count for `new_priority="largest"`.

    With `max_uses`, draw with `state, batch = fbuf.draw(state, key, batch_size)`, which counts. The
    limit also holds within a batch: draws are made one after another, each from the rows that are
    left. A batch looks at twice its size of candidates. It is masked behind the last one that was
    allowed, as it is when few rows are left. `fbuf.uses(state, ids)` says how often rows were
    drawn. To count alone, give a limit that is never reached.

    With `version`, `state = fbuf.expire(state, lowest)` retires rows whose version is lower, and
    rows of such a version that come later. So a learner drops the rows of policies that are too
    old. Rows are looked at in the order in which they were written. The search ends where 1,024
    rows in turn are all new enough. A stale row behind them is not drawn either, but it takes its
    share of the candidates, and of the probability. So the `probability` of the others is too low
    by this share: by 4 % if there are 44 such rows among 1,100. A later `fbuf.expire` retires them,
    once the rows before them are gone.

    Where rows move to a buffer with other limits, as by `fbuf.extend`, the new limits say which are
    retired. A row that is no longer retired has the priority of a row that was just added.

    Attributes:
        sampler: The sampler of the draws: any that draws with replacement, but for
            `fbuf.Uniform(by="episode")`. With `fbuf.FreshFirst`, leave `version` out.
        max_uses: How often a row may be drawn, at least 1. With windows it counts the starts.
        max_age: The number of newest steps of each environment that may be drawn, at least 1 and
            less than a lane has.
        version: The name of a field with the version of the policy that made the row, an integer of
            at most 32 bits.

    Cost: that of `sampler`, with twice the batch size, and O(log N) for each added and each retired
        row. 0.134 bytes a row, and 4 bytes each for uses and versions.

    Raises:
        ValueError: If no limit is given, or one is out of range, or if `sampler` cannot be limited.
            In `fbuf.init`, if `max_age` is below the window, or not below the length of a lane.
        TypeError: If an argument has the wrong type. In `fbuf.init`, if the version is no integer.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Limited(max_uses=1))
        >>> state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))
        >>> state, first = fbuf.draw(state, jax.random.key(0), 2)
        >>> state, second = fbuf.draw(state, jax.random.key(1), 2)
        >>> sorted([*first.data.tolist(), int(second.data[0])]), second.mask
        ([0, 1, 2], Array([ True, False], dtype=bool))

    References:
        Cassirer et al., arXiv:2102.04736 (Reverb: the most times that an item is sampled).
    """

    sampler: Sampler = dataclasses.field(default_factory=Uniform)
    _: dataclasses.KW_ONLY
    max_uses: int | None = None
    max_age: int | None = None
    version: str | None = None

    can_be_wrapped: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.instance("Limited", "sampler", self.sampler, Sampler, "fbuf.Uniform()")
        if self.max_uses is None and self.max_age is None and self.version is None:
            raise ValueError("fbuf.Limited: there is no limit; give max_uses, max_age or version")
        for name in ("max_uses", "max_age"):
            if getattr(self, name) is not None:
                check.integer("Limited", name, getattr(self, name))
        if self.version is not None:
            check.name("Limited", "version", self.version)
        given, name = self.sampler, type(self.sampler).__name__
        if isinstance(given, Limited):
            raise ValueError("fbuf.Limited: sampler is limited already; give one all limits")
        if given.is_queue or given.places or given.without_replacement or not given.can_retire:
            by = f"(by={given.by!r})" if isinstance(given, Uniform) else ""
            raise ValueError(
                f"fbuf.Limited: {name}{by} has an order, episodes or slots that a retired row "
                "would break; give fbuf.Uniform(), or another sampler of single rows or windows"
            )
        if given.notes_draws and self.version is not None:
            raise ValueError(
                f"fbuf.Limited: {name} counts its rows by their places in the batch, which stale "
                "versions would change; leave version out"
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
    def refuses_picks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a shard may refuse candidates; not by `max_age`: old rows are no candidates."""
        return self.max_uses is not None or self.version is not None

    @property
    def _planned(self) -> PlannedSampler:
        assert isinstance(self.sampler, PlannedSampler)
        return self.sampler

    # A property where other classes have a value: it follows from the arguments.
    @property
    def notes_draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether draws are counted."""
        return self.max_uses is not None or self.sampler.notes_draws

    # A property where other classes have a value: it follows from the arguments.
    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fields that the sampler reads, and the version."""
        own = () if self.version is None else (self.version,)
        return tuple(dict.fromkeys((*self.sampler.fields, *own)))

    @property
    def can_retire(self) -> bool:
        """Whether starts can be retired: only by the limits of this sampler."""
        return False

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw: all may be retired."""
        return True

    def check_field(self, name: str, spec: jax.ShapeDtypeStruct) -> None:
        """Check the version; have the sampler check its own fields."""
        if name in self.sampler.fields:
            self.sampler.check_field(name, spec)
        if name == self.version:
            versions.check_field(name, spec)

    def inner(self, index: LimitedIndex) -> Iterator[tuple[Sampler, Any]]:
        """Yield the sampler of the draws, and its index."""
        yield self.sampler, index.others

    def init(self, ring: Ring) -> LimitedIndex:
        """Return an index without starts."""
        if ring.shards > 1 and not isinstance(self.sampler, PlannedSampler):
            raise ValueError(
                f"fbuf.sharded.init: Limited({type(self.sampler).__name__}) cannot draw from "
                "shards; derive your sampler from fbuf.samplers.PlannedSampler"
            )
        if self.max_age is not None and self.max_age < self.window:
            raise ValueError(
                f"fbuf.init: Limited(max_age={self.max_age}) must be at least the window, "
                f"{self.window}: a row can be drawn once its window is complete"
            )
        if self.max_age is not None and self.max_age >= ring.lane_length:
            raise ValueError(
                f"fbuf.init: Limited(max_age={self.max_age}) must be less than a lane has, "
                f"{ring.lane_length} rows; leave it out: older rows are overwritten"
            )
        own = lives.empty(ring, self.max_uses is not None, self.version is not None)
        return LimitedIndex(own, self.sampler.init(ring))

    def add(self, index: LimitedIndex, ring: Ring, span: Span) -> tuple[LimitedIndex, jax.Array]:
        """Index the new rows, and retire rows that are now too old."""
        of_new = None if self.version is None else span.fields[self.version]
        own, change = lives.add(index.lives, ring, span, self.start_conditions, of_new)
        # Retired rows count as removed, also where they are overwritten.
        if self.start_conditions.every_row:
            span = dataclasses.replace(span, evicted=change.evicted)
        index = dataclasses.replace(index, lives=own)
        seen = self._seen(index, ring)
        others, faults = self.sampler.add(index.others, seen, span)
        index = dataclasses.replace(index, others=others)
        if self.max_age is not None:
            written = ring.clamp(span.slots)
            old = ring.later(written, -self.max_age)
            is_old = (span.slots < ring.capacity) & (ring.older(written) >= self.max_age)
            index = self._retired(index, ring, jnp.where(is_old, old, ring.capacity))
        if self.version is not None:  # a row may come from a policy that is too old already
            new = jnp.where(change.is_start, change.slots, ring.capacity)
            index = self._retired(index, ring, lives.stale(index.lives, ring, new))
        return index, faults

    def update_priority(
        self, index: LimitedIndex, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[LimitedIndex, jax.Array]:
        """Store the priorities for the sampler; a retired row no longer has a priority."""
        if self.start_conditions.every_row:
            is_live = bit_tree.read(index.lives.live.tree, ring.clamp(slots))
            slots = jnp.where(is_live, slots, ring.capacity)
        seen = self._seen(index, ring)
        others, faults = self.sampler.update_priority(index.others, seen, slots, given)
        return dataclasses.replace(index, others=others), faults

    def written(
        self, index: LimitedIndex, ring: Ring, slots: jax.Array, fields: dict[str, jax.Array]
    ) -> LimitedIndex:
        """Store changed versions, and have the sampler read its own fields."""
        if index.lives.versions is not None and self.version in fields:
            of_rows = versions.write(index.lives.versions, slots, fields[self.version])
            own = dataclasses.replace(index.lives, versions=of_rows)
            index = dataclasses.replace(index, lives=own)
            index = self._retired(index, ring, lives.stale(own, ring, slots))
        own = {name: fields[name] for name in self.sampler.fields if name in fields}
        if not own:
            return index
        others = self.sampler.written(index.others, self._seen(index, ring), slots, own)
        return dataclasses.replace(index, others=others)

    def take_over(
        self, index: LimitedIndex, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[LimitedIndex, jax.Array]:
        """Take over draw counts and the lowest version; the limits of this sampler retire rows."""
        other, old, old_slots = origin
        lost = None
        if isinstance(other, Limited):
            index = self._retired_anew(index, ring, slots, other, old, old_slots)
            origin = Origin(other.sampler, old.others, old_slots)
            if other.start_conditions.every_row:  # a retired row had lost its priority
                lost = lives.is_retired(old.lives, old_slots)
        if self.start_conditions.every_row:  # a row that this buffer retires has no priority
            gone = lives.is_retired(index.lives, ring.clamp(slots))
            slots = jnp.where(gone, ring.capacity, slots)
        seen, before = self._seen(index, ring), index.others
        others, faults = self.sampler.take_over(before, seen, slots, origin)
        if lost is not None and self.keeps_priorities:  # it is drawn as a row that was just added
            again = jnp.where(lost, slots, ring.capacity)
            own = Origin(self.sampler, before, ring.clamp(again))
            others, _ = self.sampler.take_over(others, seen, again, own)
        return dataclasses.replace(index, others=others), faults

    def _retired_anew(
        self,
        index: LimitedIndex,
        ring: Ring,
        slots: jax.Array,
        other: Limited,
        old: LimitedIndex,
        old_slots: jax.Array,
    ) -> LimitedIndex:
        """Retire moved rows beyond the limits of this sampler, whatever the old limits were."""
        own = lives.taken_over(index.lives, slots, old.lives, old_slots)
        if self.version is not None and self.version == other.version:
            own = lives.with_lowest(own, old.lives)
        index = dataclasses.replace(index, lives=own)
        window = self.start_conditions
        for start, there, before in lives.moved_starts(ring, slots, window, old.lives, old_slots):
            gone = jnp.zeros(slots.shape, bool)
            if self._is_as_strict_as(other):
                gone = lives.is_retired(old.lives, before)
                if other.max_uses is not None:  # rows that were used up there may be drawn
                    gone &= ~other._used_up(old, before)
            if self.max_uses is not None:
                gone |= self._used_up(index, start)
            index = self._retired(index, ring, jnp.where(gone & there, start, ring.capacity))
        return index

    def _is_as_strict_as(self, other: Limited) -> bool:
        """Return whether every row that was too old in the other buffer is too old in this one."""
        window, ages = self.start_conditions, (self.max_age, other.max_age)
        return (
            window == other.start_conditions
            and window.stride == 1  # else the starts are different rows than before
            and (ages[1] is None or (ages[0] is not None and ages[0] <= ages[1]))
            and other.version in (None, self.version)
        )

    def take_counts(self, index: LimitedIndex, other: Sampler, old: Any) -> LimitedIndex:
        """Have the sampler add the counts of the other buffer's sampler."""
        if not isinstance(other, Limited):
            return index
        others = self.sampler.take_counts(index.others, other.sampler, old.others)
        return dataclasses.replace(index, others=others)

    def resized(self, index: LimitedIndex, old: LimitedIndex) -> LimitedIndex:
        """Have the sampler count the rows that did not fit."""
        return dataclasses.replace(index, others=self.sampler.resized(index.others, old.others))

    def remove(self, index: LimitedIndex, ring: Ring, slots: jax.Array) -> LimitedIndex:
        """Take out the starts of all windows with these rows."""
        own = lives.remove(index.lives, ring, slots, self.start_conditions)
        index = dataclasses.replace(index, lives=own)
        others = self.sampler.remove(index.others, self._seen(index, ring), slots)
        return dataclasses.replace(index, others=others)

    def can_sample(self, index: LimitedIndex, ring: Ring) -> jax.Array:
        """Return whether the sampler has a row left."""
        return self.sampler.can_sample(index.others, self._seen(index, ring))

    def draw(self, index: LimitedIndex, ring: Ring, ask: Ask) -> Draw:
        """Draw candidates, and take the first allowed ones."""
        seen = self._seen(index, ring)
        drawn = self.sampler.draw(index.others, seen, self._candidates(ask))
        allowed = drawn.mask & self._still_allowed(index, drawn.slots, drawn.slots)
        taken = candidates.first(allowed, ask.batch_size)
        return candidates.of_draw(drawn, taken, self.weighs_by_batch)

    def shard_totals(self, index: LimitedIndex, ring: Ring) -> LimitedTotals:
        """Return the totals of the sampler."""
        return LimitedTotals(self._planned.shard_totals(index.others, self._seen(index, ring)))

    def plan(self, index: LimitedIndex, ring: Ring, totals: LimitedTotals, ask: Ask) -> Plan:
        """Plan the candidates."""
        return self._planned.plan(index.others, ring, totals.others, self._candidates(ask))

    def allowed(self, index: LimitedIndex, ring: Ring, picks: Any, own: jax.Array) -> jax.Array:
        """Return which candidates of a shard may be drawn, one after another."""
        slots, _ = self.pick(index, ring, picks)
        return self._still_allowed(index, slots, jnp.where(own, slots, ring.capacity))

    def settled(
        self, totals: LimitedTotals, plan: Plan, allowed: jax.Array, batch_size: int
    ) -> tuple[LimitedTotals, Plan]:
        """Take the first allowed candidates."""
        taken = candidates.first(allowed, batch_size)
        picks = candidates.pick_of(plan.picks, taken)
        return LimitedTotals(totals.others, taken), Plan(plan.shards[taken.places], picks)

    def pick(self, index: LimitedIndex, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Find the rows of the sampler's picks."""
        return self._planned.pick(index.others, self._seen(index, ring), picks)

    def weigh(self, totals: LimitedTotals, picked: Picked, ask: Ask) -> Draw:
        """Give the taken candidates the weights of the sampler."""
        taken = totals.taken
        if taken is None:
            return self._planned.weigh(totals.others, picked, ask)
        number = taken.places[picked.positions]
        drawn = self._planned.weigh(totals.others, picked._replace(positions=number), ask)
        there = picked.positions < taken.draws
        return candidates.masked(drawn, there, self.weighs_by_batch, picked.axes)

    def largest_priority(self, index: LimitedIndex) -> jax.Array | None:
        """Return the largest priority of the sampler."""
        return self._planned.largest_priority(index.others)

    def with_largest_priority(self, index: LimitedIndex, largest: jax.Array) -> LimitedIndex:
        """Return the index with the maximum over all shards."""
        others = self._planned.with_largest_priority(index.others, largest)
        return dataclasses.replace(index, others=others)

    def note(self, index: LimitedIndex, ring: Ring, draw: Draw) -> LimitedIndex:
        """Count the draws, and retire the rows that are used up."""
        if self.sampler.notes_draws:
            others = self.sampler.note(index.others, self._seen(index, ring), draw)
            index = dataclasses.replace(index, others=others)
        return self._counted(index, ring, draw.slots, draw.mask)

    def note_picks(
        self, index: LimitedIndex, ring: Ring, picks: Any, there: jax.Array
    ) -> LimitedIndex:
        """Count the draws of this shard, and retire the rows that are used up."""
        slots, _ = self.pick(index, ring, picks)
        if self.sampler.notes_draws:
            seen = self._seen(index, ring)
            others = self._planned.note_picks(index.others, seen, picks, there)
            index = dataclasses.replace(index, others=others)
        return self._counted(index, ring, slots, there)

    def expired(self, index: LimitedIndex, ring: Ring, lowest: jax.Array) -> LimitedIndex:
        """Retire the rows of versions below `lowest`, an int32 scalar, for ever."""
        of_rows = index.lives.versions
        assert of_rows is not None
        of_rows = versions.raised(of_rows, lowest)
        own = dataclasses.replace(index.lives, versions=of_rows)
        index = dataclasses.replace(index, lives=own)

        def stale(index: LimitedIndex) -> jax.Array:
            assert index.lives.versions is not None
            return versions.oldest_stale(index.lives.versions, index.lives.live, ring)

        def turn(carry: tuple[LimitedIndex, jax.Array]) -> tuple[LimitedIndex, jax.Array]:
            index = self._retired(carry[0], ring, carry[1])
            return index, stale(index)

        any_stale = lambda carry: (carry[1] < ring.capacity).any()
        return lax.while_loop(any_stale, turn, (index, stale(index)))[0]

    def probability(self, index: LimitedIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the probability of each row in the first draw of a batch; 0 for retired ones."""
        likely = self.sampler.probability(index.others, self._seen(index, ring), slots)
        return jnp.where(lives.may_be_drawn(index.lives, slots), likely, 0)

    def stats(self, index: LimitedIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the `stats` of the sampler, and the number of drawable starts."""
        total = index.lives.live.total
        assert total is not None
        found = {"live": total} | self.sampler.stats(index.others, self._seen(index, ring))
        if self.max_age is not None and "missed" in found:
            # No row is missed, in whatever chunks rows are added: a row is too old before it is
            # overwritten.
            found["missed"] = jnp.zeros_like(found["missed"])
        return found

    def _seen(self, index: LimitedIndex, ring: Ring) -> Ring:
        """Return the ring as the sampler sees it: retired rows count as removed."""
        if not self.start_conditions.every_row:
            return ring
        total = index.lives.live.total
        assert total is not None
        return dataclasses.replace(ring, removed=ring.count() - total)

    def _candidates(self, ask: Ask) -> Ask:
        """Return the arguments for drawing the candidates of a batch."""
        return ask._replace(batch_size=2 * ask.batch_size) if self.refuses_picks else ask

    def _still_allowed(
        self, index: LimitedIndex, slots: jax.Array, counted: jax.Array
    ) -> jax.Array:
        """Return a mask of draws within `max_uses`; earlier draws of a row in `counted` count."""
        allowed, uses = lives.may_be_drawn(index.lives, slots), index.lives.uses
        if uses is None or self.max_uses is None:
            return allowed
        return allowed & (read_rows(uses, slots) + earlier_of_each(counted) < self.max_uses)

    def _counted(
        self, index: LimitedIndex, ring: Ring, slots: jax.Array, drawn: jax.Array
    ) -> LimitedIndex:
        """Count draws of rows, and retire those that are used up."""
        if self.max_uses is None:
            return index
        index = dataclasses.replace(index, lives=lives.used(index.lives, slots, drawn))
        gone = drawn & self._used_up(index, slots)
        gone &= last_of_each(jnp.where(gone, slots, ring.capacity))
        return self._retired(index, ring, jnp.where(gone, slots, ring.capacity))

    def _used_up(self, index: LimitedIndex, slots: jax.Array) -> jax.Array:
        assert index.lives.uses is not None
        return read_rows(index.lives.uses, slots) >= jnp.int32(self.max_uses)

    def _retired(self, index: LimitedIndex, ring: Ring, slots: jax.Array) -> LimitedIndex:
        """Retire starts: int32 `[B]` distinct slots; `capacity` marks an unused entry."""
        own, slots = lives.retire(index.lives, ring, slots)
        index = dataclasses.replace(index, lives=own)
        others = self.sampler.retire(index.others, self._seen(index, ring), slots)
        return dataclasses.replace(index, others=others)
