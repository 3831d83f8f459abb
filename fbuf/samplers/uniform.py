"""Uniform sampling: of rows, of windows, or of episodes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import shards, weights
from fbuf.samplers.index import segments, start_index
from fbuf.samplers.index.segments import Segments
from fbuf.samplers.index.start_index import StartIndex
from fbuf.samplers.protocol.conditions import Window
from fbuf.samplers.protocol.planned import Picked, Plan
from fbuf.samplers.protocol.sampler import Ask, Draw
from fbuf.samplers.protocol.windows import WindowedSampler
from fbuf.storage.ring import Ring, Span


@pytree
class UniformIndex:
    """The index of `Uniform`: starts, and segments, which are None unless episodes are drawn."""

    starts: StartIndex
    segments: Segments | None


@pytree
class UniformTotals:
    """The int32 totals of a shard: starts, and segments, which are None unless by episode."""

    starts: jax.Array
    segments: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Uniform(WindowedSampler):
    """Draw every row, or every window, with the same probability, with replacement.

    With `window=n` a draw takes only starts: rows from which `n` steps of one episode follow,
    counting the row itself. No draw is rejected, cut short or moved, and all starts are
    equally likely. With `by="episode"` a draw takes an episode first, all equally likely among
    those that have a start, and then one of its starts. An open episode counts with the starts it
    has so far.

    The index has one bit a row and counts above the bits: 0.134 bytes a row, and three times that
    by episode. Without a window, and as long as nothing is removed, a draw does not read it.

    Attributes:
        window: The number of steps of one episode that must follow from a row, counting itself, for
            the row to be drawn. From 1 to the length of a lane.
        by: With `"start"`, all starts are equally likely. With `"episode"`, all episodes are
            equally likely, and all starts within one. A removed row splits an episode into two.
            Weights are 1; if you give `beta` to `fbuf.sample`, they make up for the lengths of
            episodes.
        stride: Draw every `stride`-th step of a lane. Must divide the length of a lane.
        first_only: Draw only first steps of episodes.
        strict: With False, the first row of every episode can be drawn, too, even of a short one.
            Read it with a view that marks the stored steps, such as
            `fbuf.Sequence(window, boundary="pad")`.

    Cost: adding B rows takes O(B log N). Drawing B rows takes O(B), or O(B log N) with a window, by
    episode, after a removal, and on a GPU. Removing B rows takes O(B window log N).

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If `window` or `stride` is not an int, or if `first_only` or `strict` is not a
            bool.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> fbuf.init(jnp.zeros(3), capacity=100, sampler=fbuf.Uniform(window=4)).sampler
        Uniform(window=4, by='start', stride=1, first_only=False, strict=True)
    """

    window: int = 1
    _: dataclasses.KW_ONLY
    by: Literal["start", "episode"] = "start"
    stride: int = 1
    first_only: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        self._check_window()
        check.choice(type(self).__name__, "by", self.by, ("start", "episode"))

    @property
    def start_conditions(self) -> Window:
        """The conditions for a row to be drawn: the options."""
        return dataclasses.replace(super().start_conditions, by_episode=self.by == "episode")

    def init(self, ring: Ring) -> UniformIndex:
        """Return an index without starts."""
        self._check_lanes(ring)
        in_segments = segments.empty(ring) if self.by == "episode" else None
        return UniformIndex(start_index.empty(ring, self.start_conditions), in_segments)

    def add(self, index: UniformIndex, ring: Ring, span: Span) -> tuple[UniformIndex, jax.Array]:
        """Index the new starts, and drop the overwritten ones."""
        found, change = start_index.add(index.starts, ring, span, self.start_conditions)
        in_segments = index.segments
        if in_segments is not None:
            in_segments, found = segments.add(
                in_segments, found, ring, span, self.start_conditions, change
            )
        return UniformIndex(found, in_segments), jnp.zeros_like(span.slots, jnp.uint32)

    def remove(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> UniformIndex:
        """Take out the starts of all windows with these rows."""
        found, lost = start_index.remove(index.starts, ring, slots, self.start_conditions)
        in_segments = index.segments
        if in_segments is not None:
            in_segments, found = segments.remove(
                in_segments, found, ring, lost, self.start_conditions
            )
        return UniformIndex(found, in_segments)

    @property
    def can_retire(self) -> bool:
        """Whether starts can be retired: by episode, a retired start would split the episode."""
        return self.by == "start"

    def retire(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> UniformIndex:
        """Take out these starts alone."""
        return dataclasses.replace(index, starts=start_index.retire(index.starts, ring, slots))

    def can_sample(self, index: UniformIndex, ring: Ring) -> jax.Array:
        """Whether there is a start."""
        return start_index.total(index.starts, ring) > 0

    def shard_totals(self, index: UniformIndex, ring: Ring) -> UniformTotals:
        """Count the starts and the segments."""
        segments = None if index.segments is None else index.segments.count
        return UniformTotals(start_index.total(index.starts, ring), segments)

    def plan(self, index: UniformIndex, ring: Ring, totals: UniformTotals, ask: Ask) -> Plan:
        """Choose a start, or an episode."""
        if totals.segments is None:
            return start_index.plan(index.starts, ring, totals.starts, ask)
        return segments.plan(totals.segments, ask)

    def pick(self, index: UniformIndex, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Find the start; by episode, also count the starts of its segment."""
        if index.segments is None:
            return start_index.pick(index.starts, ring, picks), None
        return segments.pick(index.segments, index.starts, ring, picks, self.start_conditions)

    def weigh(self, totals: UniformTotals, picked: Picked, ask: Ask) -> Draw:
        """Weigh starts by 1 whatever `beta` is; by episode, by their probability."""
        slots, aux = picked.slots, picked.aux
        total = shards.sum_of_counts(totals.starts)
        # The mask must not depend on the ranks. Else masked values would compute the ranks again
        # for every number of a batch.
        mask = jnp.broadcast_to(total > 0, slots.shape)
        if totals.segments is None or aux is None:
            return weights.equal(slots, jnp.where(mask, 1 / jnp.where(mask, total, 1), 0), mask)
        each = _inverse_probability(totals.segments, aux)
        power = 0.0 if ask.beta is None else weights.exponent(ask.beta)
        relative = jnp.where(mask, total / each, 1)
        return weights.of_batch(slots, 1 / each, relative, mask, power, picked.axes)

    def probability(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return 1 / starts; by episode, 1 / (episodes x starts of the episode)."""
        drawn = start_index.is_start(index.starts, ring, slots)
        total = jnp.maximum(start_index.total(index.starts, ring), 1).astype(jnp.float32)
        if index.segments is not None:
            length = segments.lengths(index.segments, ring, slots, self.start_conditions)
            total = _inverse_probability(index.segments.count[None], length)
        return jnp.where(drawn, 1 / total, 0)

    def stats(self, index: UniformIndex, ring: Ring) -> dict[str, jax.Array]:
        """Count the starts, if there is a window; by episode, also the episodes with a start."""
        counts = {} if index.starts.total is None else {"num_starts": index.starts.total}
        if index.segments is not None:
            counts["num_episodes"] = index.segments.count
        return counts


def _inverse_probability(counts: jax.Array, length: jax.Array) -> jax.Array:
    """Return 1 / the probability of a start in a segment of this length: float32 `[B]`."""
    return jnp.maximum(shards.sum_of_counts(counts), 1) * length.astype(jnp.float32)
