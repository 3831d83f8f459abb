"""Uniform sampling: of rows, of windows, or of episodes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers import segments, shards, start_index, starts
from fbuf.samplers.protocol import Draw, Plan, PlannedSampler, Step
from fbuf.samplers.segments import Segments
from fbuf.samplers.start_index import StartIndex
from fbuf.samplers.starts import Window
from fbuf.storage.ring import Ring, Span
from fbuf.xla.across import largest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UniformIndex:
    """What `Uniform` keeps: the starts; and their segments, None unless episodes are drawn."""

    starts: StartIndex
    segments: Segments | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UniformMass:
    """What there is to draw from: starts; and segments, None unless episodes are drawn. int32."""

    starts: jax.Array
    segments: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Uniform(PlannedSampler):
    """Draw every row, or every window, with the same probability, with replacement.

    With `window=n` only rows are drawn from which `n` steps of one episode follow, counting the row
    itself. These rows are the starts. No draw is rejected, cut short or moved, and all starts are
    equally likely. With `by="episode"` a draw takes an episode first, all equally likely among
    those that have a start, and then one of its starts. An open episode counts with the starts it
    has so far.

    The index has one bit a row and counts above the bits: 0.134 bytes a row, and three times that
    by episode. Without a window, and as long as nothing is removed, a draw does not look at it.

    Attributes:
        window: How many steps of one episode must follow from a row, counting itself, for it to be
            drawn. From 1 to the length of a lane.
        by: `"start"`: all starts are equally likely. `"episode"`: all episodes are equally likely,
            and all starts within one. A removed row splits an episode into two. Weights are 1; if
            you give `beta` to `fbuf.sample`, they make up for the lengths of episodes.
        stride: Draw every `stride`-th step of a lane. Must divide the length of a lane.
        first_only: Draw only first steps of episodes.
        strict: With False, the first row of every episode can be drawn, too, however many rows
            follow it. Read it with a view that says what is there, such as
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
        name = type(self).__name__
        starts.check_options(name, self.window, self.stride, self.first_only, self.strict)
        check.choice(name, "by", self.by, ("start", "episode"))

    @property
    def min_window(self) -> int:
        """How many steps of its episode follow from every drawn row, counting itself."""
        return self.window if self.strict else 1

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return not self._window.every_row

    @property
    def _window(self) -> Window:
        by_episode = self.by == "episode"
        return Window(self.window, self.stride, self.first_only, by_episode, self.strict)

    def init(self, ring: Ring) -> UniformIndex:
        """No start."""
        starts.check_lanes(type(self).__name__, ring, self._window)
        in_segments = segments.empty(ring) if self.by == "episode" else None
        return UniformIndex(start_index.empty(ring, self._window), in_segments)

    def add(
        self,
        index: UniformIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: chex.Array | float | None,
    ) -> tuple[UniformIndex, jax.Array]:
        """Count the starts there are now, and those that made way."""
        found, change = start_index.add(index.starts, ring, span, self._window)
        in_segments = index.segments
        if in_segments is not None:
            in_segments, found = segments.add(in_segments, found, ring, span, self._window, change)
        return UniformIndex(found, in_segments), jnp.zeros_like(span.slots, jnp.uint32)

    def remove(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> UniformIndex:
        """Take out the starts of all windows with these rows."""
        found, lost = start_index.remove(index.starts, ring, slots, self._window)
        in_segments = index.segments
        if in_segments is not None:
            in_segments, found = segments.remove(in_segments, found, ring, lost, self._window)
        return UniformIndex(found, in_segments)

    def can_sample(self, index: UniformIndex, ring: Ring) -> jax.Array:
        """Whether there is a start."""
        return start_index.total(index.starts, ring) > 0

    def mass(self, index: UniformIndex, ring: Ring) -> UniformMass:
        """How many starts there are, and how many segments."""
        segments = None if index.segments is None else index.segments.count
        return UniformMass(start_index.total(index.starts, ring), segments)

    def plan(
        self,
        index: UniformIndex,
        ring: Ring,
        masses: UniformMass,
        key: jax.Array,
        batch_size: int,
        step: Step | None,
    ) -> Plan:
        """Choose a start, or an episode."""
        if masses.segments is None:
            return start_index.plan(index.starts, ring, masses.starts, key, batch_size)
        return segments.plan(masses.segments, key, batch_size)

    def pick(self, index: UniformIndex, ring: Ring, picks: Any) -> tuple[jax.Array, Any]:
        """Find the start; by episode, also how many starts its segment has."""
        if index.segments is None:
            return start_index.pick(index.starts, ring, picks), None
        return segments.pick(index.segments, index.starts, ring, picks, self._window)

    def weigh(
        self,
        masses: UniformMass,
        slots: jax.Array,
        found: jax.Array | None,
        numbers: jax.Array,
        beta: chex.Array | float | None,
        step: Step | None,
        axes: tuple[str, ...],
    ) -> Draw:
        """By start weights are 1 whatever `beta` is."""
        total = shards.sum_of_counts(masses.starts)
        # Not of the ranks: what is masked by them would compute them anew, for every number of a
        # batch.
        mask = jnp.broadcast_to(total > 0, slots.shape)
        if masses.segments is None or found is None:
            likely = jnp.where(mask, 1 / jnp.where(mask, total, 1), 0)
            one = mask.astype(jnp.float32)
            return Draw(slots, likely, one, jnp.zeros_like(one), mask)
        each = _number_of_alike(masses.segments, found)
        power = 0.0 if beta is None else starts.power(beta)
        relative = jnp.where(mask, total, 1) / each
        log_weight = jnp.where(mask, -power * jnp.log(relative), 0)
        weight = jnp.where(mask, jnp.exp(log_weight - largest(log_weight.max(), axes)), 0)
        return Draw(slots, jnp.where(mask, 1 / each, 0), weight, log_weight, mask)

    def probability(self, index: UniformIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """One of as many as there are; by episode, of as many as if all had the same length."""
        drawn = start_index.is_start(index.starts, slots)
        total = jnp.maximum(start_index.total(index.starts, ring), 1).astype(jnp.float32)
        if index.segments is not None:
            length = segments.lengths(index.segments, ring, slots, self._window)
            total = _number_of_alike(index.segments.count[None], length)
        return jnp.where(drawn, 1 / total, 0)

    def stats(self, index: UniformIndex, ring: Ring) -> dict[str, jax.Array]:
        """With a window how many starts there are, and by episode how many episodes with one."""
        found = {} if index.starts.total is None else {"num_starts": index.starts.total}
        return found if index.segments is None else {**found, "num_episodes": index.segments.count}


def _number_of_alike(counts: jax.Array, length: jax.Array) -> jax.Array:
    """The inverse of the probability of a start in a segment of this length: float32 `[B]`."""
    return jnp.maximum(shards.sum_of_counts(counts), 1) * length.astype(jnp.float32)
