"""Draws by group: first a group, then one of its rows."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits, weights, wide
from fbuf.samplers.chance.wide import Wide
from fbuf.samplers.index import group_index
from fbuf.samplers.index.group_index import GroupIndex
from fbuf.samplers.protocol.planned import Picked, Plan
from fbuf.samplers.protocol.sampler import Ask, Draw
from fbuf.samplers.protocol.windows import WindowedSampler
from fbuf.storage.ring import Ring, Span

_LARGEST = 2**31 - 2**10
"""The most places of the tree."""

_LEAST = 2.0**-32
"""The least share. A smaller one would lose bits, down to none (`wide.of_shares`)."""


class GroupTotals(NamedTuple):
    """The totals of a shard: the starts of each group, int32 `[G]`."""

    counts: jax.Array


class GroupPicks(NamedTuple):
    """Draws in one shard: the group of each, and the rank of the start in it; int32 `[B]`."""

    groups: jax.Array
    ranks: jax.Array


@dataclasses.dataclass(frozen=True)
class Grouped(WindowedSampler):
    """Draw a group by given shares, then one of its rows, all equally likely.

    The group of a row is a field of the item: its task, its agent, whether its episode was a
    success. So a rare group is drawn as often as a frequent one. A group that has nothing to draw
    leaves its share to the others. The group of a window is that of its first row.

    A row whose field is no group, such as -1, is not drawn. Give it a group later with
    `fbuf.write`: the success of an episode is known at its end. `fbuf.write` moves rows from group
    to group at any time.

    Groups without number, such as the prompts of a language model, are episodes. Write the rows of
    one group after another, and end the episode behind them. Take `fbuf.Uniform(by="episode")`.

    Attributes:
        field: The name of the field with the group, an integer of at most 32 bits or a bool
            (`"a.b"` for a field in a field).
        groups: The number of groups, `G`; they are numbered from 0.
        shares: A share for each group, a tuple of numbers of at least 0. They are divided by the
            sum of those of the groups that have something to draw. None: all alike.
        window: As for `fbuf.Uniform`.
        stride: As for `fbuf.Uniform`.
        first_only: As for `fbuf.Uniform`.
        strict: As for `fbuf.Uniform`.

    Cost: O(B log N) to add, draw and write B rows, and O(G) for each batch of draws. A row takes 1
        byte, from 255 groups on 4, and 0.134 bytes for each group. Over a mesh, 4 bytes a group and
        shard are sent for a batch.

    Weights are 1; if you give `beta` to `fbuf.sample`, they make up for the sizes of groups.

    Raises:
        ValueError: If an argument is out of range, or if `groups` times the capacity passes 2**31.
            In `fbuf.init`, if the item has no such field.
        TypeError: If an argument has the wrong type. In `fbuf.init`, if the field is no integer.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"x": jnp.int32(0), "task": jnp.int32(0)}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Grouped("task", 2))
        >>> rows = {"x": jnp.arange(4, dtype=jnp.int32), "task": jnp.int32([0, 0, 0, 1])}
        >>> state = fbuf.add(state, rows)
        >>> fbuf.probability(state, fbuf.ids_at(state, jnp.arange(4)))
        Array([0.16666667, 0.16666667, 0.16666667, 0.5       ], dtype=float32)
    """

    field: str
    groups: int
    _: dataclasses.KW_ONLY
    shares: tuple[float, ...] | None = None
    window: int = 1
    stride: int = 1
    first_only: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        self._check_window()
        check.name("Grouped", "field", self.field)
        check.integer("Grouped", "groups", self.groups)
        if self.shares is not None:
            object.__setattr__(self, "shares", self._checked(self.shares))

    def _checked(self, shares: Any) -> tuple[float, ...]:
        """Return shares as a tuple of numbers, of which one is above 0."""
        if not isinstance(shares, tuple | list) or len(shares) != self.groups:
            raise ValueError(
                f"fbuf.Grouped: shares must be a tuple of {self.groups} numbers, one for each "
                f"group, got {shares!r}"
            )
        for share in shares:
            check.number("Grouped", "shares", share)
        whole = sum(shares)
        if not whole:
            raise ValueError("fbuf.Grouped: all shares are 0; give at least one of them")
        for share in shares:
            if 0 < share / whole < _LEAST:
                raise ValueError(
                    f"fbuf.Grouped: shares has {share!r}, of {whole!r} in all: hardly a draw would "
                    "ever take it; give 0, or a larger share"
                )
        return tuple(shares)

    # A property where other classes have a value: it follows from the arguments.
    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The field with the group."""
        return (self.field,)

    @property
    def follows_episodes(self) -> bool:
        """True: the ring must track each row's position in its episode, to tell starts."""
        return True

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return True

    def check_field(self, name: str, spec: jax.ShapeDtypeStruct) -> None:
        """Refuse a field that is no group."""
        kind = np.dtype(spec.dtype)
        if spec.shape or kind.kind not in "iub" or kind.itemsize > 4:
            raise TypeError(
                f"fbuf.init: Grouped(field={name!r}) must name one integer of at most 32 bits or a "
                f"bool, and the field is {spec.dtype}{list(spec.shape)}; store the group as "
                "jnp.int32"
            )

    def init(self, ring: Ring) -> GroupIndex:
        """Return an index without starts."""
        self._check_lanes(ring)
        if (self.groups + 1) * ring.capacity * ring.shards > _LARGEST:
            most = _LARGEST // (ring.capacity * ring.shards) - 1
            raise ValueError(
                f"fbuf.init: Grouped keeps {self.groups} groups of {ring.capacity * ring.shards} "
                f"rows, more than int32 counts; give at most {most} groups, or a smaller capacity"
            )
        return group_index.empty(ring, self.groups)

    def add(self, index: GroupIndex, ring: Ring, span: Span) -> tuple[GroupIndex, jax.Array]:
        """Index the new starts in their groups, and drop the overwritten ones."""
        groups = _as_int32(span.fields[self.field])
        found = group_index.add(index, ring, span, groups, self.start_conditions)
        return found, jnp.zeros_like(span.slots, jnp.uint32)

    def written(
        self, index: GroupIndex, ring: Ring, slots: jax.Array, fields: dict[str, jax.Array]
    ) -> GroupIndex:
        """Move rows to other groups."""
        return group_index.move(index, ring, slots, _as_int32(fields[self.field]))

    def remove(self, index: GroupIndex, ring: Ring, slots: jax.Array) -> GroupIndex:
        """Take out the starts of all windows with these rows."""
        return group_index.remove(index, ring, slots, self.start_conditions)

    def retire(self, index: GroupIndex, ring: Ring, slots: jax.Array) -> GroupIndex:
        """Take out these starts alone."""
        return group_index.retire(index, ring, slots)

    def can_sample(self, index: GroupIndex, ring: Ring) -> jax.Array:
        """Return whether a group of positive share has a start."""
        return (self.group_shares(index.counts[:-1]) > 0).any()

    def group_shares(self, counts: jax.Array) -> jax.Array:
        """Return the share of each group that has starts, 0 for others: float32 `[G]`.

        A subclass may compute other shares of the int32 `[G]` counts of starts.
        """
        given = (1.0,) * self.groups if self.shares is None else self.shares
        # Divided here, for in float32 the sum may be too large.
        shares = jnp.array([share / sum(given) for share in given], jnp.float32)
        return jnp.where(counts > 0, shares, 0)

    def shard_totals(self, index: GroupIndex, ring: Ring) -> GroupTotals:
        """Count the starts of each group."""
        return GroupTotals(index.counts[:-1])

    def plan(self, index: GroupIndex, ring: Ring, totals: GroupTotals, ask: Ask) -> Plan:
        """Choose a group for each draw, and one of its starts in all shards."""
        counts = totals.counts.T  # [G, S]
        group_key, rank_key = random_bits.split(ask.key, 2)
        of_group = jnp.sum(counts, axis=1, dtype=jnp.int32)
        group = chosen(self._shares(of_group), random_bits.bits(group_key, (3, ask.batch_size)))
        rank = random_bits.below(random_bits.bits(rank_key, (2, ask.batch_size)), of_group[group])
        if counts.shape[1] == 1:
            return Plan(jnp.zeros_like(rank), GroupPicks(group, rank))
        ends = jnp.cumsum(counts, axis=1, dtype=jnp.int32)[group]  # [B, S]
        shard = jnp.sum(rank[:, None] >= ends, axis=1, dtype=jnp.int32)
        shard = jnp.minimum(shard, counts.shape[1] - 1)
        before = jnp.take_along_axis(ends, shard[:, None], axis=1)[:, 0] - counts[group, shard]
        return Plan(shard, GroupPicks(group, rank - before))

    def pick(self, index: GroupIndex, ring: Ring, picks: GroupPicks) -> tuple[jax.Array, jax.Array]:
        """Return the starts of these ranks, and their groups."""
        ranks = jnp.minimum(picks.ranks, jnp.maximum(index.counts[picks.groups] - 1, 0))
        return group_index.select(index, ring, picks.groups, ranks), picks.groups

    def weigh(self, totals: GroupTotals, picked: Picked, ask: Ask) -> Draw:
        """Give starts weight 1, or with `beta` a weight by their probability."""
        counts = jnp.sum(totals.counts, axis=0, dtype=jnp.int32)
        each = self._likely(counts)
        total = jnp.sum(counts, dtype=jnp.int32).astype(jnp.float32)
        mask = jnp.broadcast_to(each.any(), picked.slots.shape)
        likely = each[picked.aux]
        power = 0.0 if ask.beta is None else weights.exponent(ask.beta)
        relative = jnp.where(mask, likely * total, 1)
        return weights.of_batch(picked.slots, likely, relative, mask, power, picked.axes)

    def probability(self, index: GroupIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the share of the group, divided by the number of its starts."""
        each = jnp.concatenate([self._likely(index.counts[:-1]), jnp.zeros(1, jnp.float32)])
        likely = each[group_index.group_of(index, slots)]
        return jnp.where(group_index.is_start(index, ring, slots), likely, 0)

    def stats(self, index: GroupIndex, ring: Ring) -> dict[str, jax.Array]:
        """Count the starts, and the starts without a group."""
        return {
            "num_starts": jnp.sum(index.counts, dtype=jnp.int32),
            "without_group": index.counts[-1],
        }

    def _likely(self, counts: jax.Array) -> jax.Array:
        """Return the probability of each start of a group: float32 `[G]`."""
        return self._shares(counts) / jnp.maximum(counts, 1).astype(jnp.float32)

    def _shares(self, counts: jax.Array) -> jax.Array:
        """Return the probability of each group: float32 `[G]`, all 0 if there is no start."""
        shares = self.group_shares(counts)
        whole = shares.sum()
        return shares / jnp.where(whole > 0, whole, 1)


def chosen(shares: jax.Array, words: jax.Array) -> jax.Array:
    """Return a group for each column of uint32 `[3, B]` random words, by float32 `[G]` shares."""
    ends = wide.cumsum(wide.of_shares(shares))
    point = wide.below(words, Wide(ends.high[-1], ends.low[-1]))
    return jnp.minimum(wide.first_above(ends, point), shares.shape[0] - 1)


def _as_int32(groups: jax.Array) -> jax.Array:
    """Return groups as int32; larger values of uint32 become negative, which is no group."""
    return groups.astype(jnp.int32)
