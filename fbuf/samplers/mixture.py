"""A mixture of samplers: some draws uniform, some by priority, some from the newest rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _check, _ring
from fbuf._ring import Ring, Span
from fbuf.samplers import _bits, _start_index, _starts
from fbuf.samplers._protocol import Draw
from fbuf.samplers._start_index import StartIndex
from fbuf.samplers._starts import Window
from fbuf.samplers.prioritized import Prioritized, PriorityIndex
from fbuf.trees import mark_tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixedIndex:
    """What `Mixture` keeps: the starts, and their priorities."""

    starts: StartIndex
    priorities: PriorityIndex


@dataclasses.dataclass(frozen=True)
class Mixture:
    """For each draw choose by chance how it is drawn: uniformly, by priority, or from the newest.

    The probability of a row is the sum of what each of the three gives it, so importance weights
    are right for all draws alike: `(N * probability) ** -beta`, divided by the largest in the
    batch. What has nothing to draw from is left out, and the others take its share.

    Attributes:
        uniform: The share of draws from all rows alike. Shares are at least 0, and divided by their
            sum.
        prioritized: The share of draws by priority.
        recent: The share of draws from the newest `recent_rows` rows, each alike. Needs
            environments that step together.
        recent_rows: How many these are, those of all environments together.
        priorities: How the draws by priority are made, and what `window`, `stride` and `starts` are
            for all of them. Of its options `normalize` and `draws` do not matter here.

    Cost: as `fbuf.Prioritized` and `fbuf.Uniform` together, whatever the shares; 4.7 bytes a row.

    Raises:
        ValueError: If a share is negative or not finite, or all are 0, or `recent_rows` is below 1.
        TypeError: If `priorities` is no `fbuf.Prioritized`, or a number is none.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> sampler = fbuf.Mixture(uniform=0.5, recent=0.5, prioritized=0.0, recent_rows=2)
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=sampler)
        >>> state = fbuf.add(state, jnp.arange(4, dtype=jnp.int32))
        >>> batch = fbuf.sample(state, jax.random.key(0), 4)
        >>> batch.data, batch.probability
        (Array([3, 0, 2, 1], dtype=int32), Array([0.375, 0.125, 0.375, 0.125], dtype=float32))

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952; Zhang and Sutton,
        A Deeper Look at Experience Replay, arXiv:1712.01275 (the newest row in every batch).
    """

    uniform: float = 0.5
    prioritized: float = 0.5
    recent: float = 0.0
    recent_rows: int = 1000
    priorities: Prioritized = dataclasses.field(default_factory=Prioritized)

    def __post_init__(self) -> None:
        for name in ("uniform", "prioritized", "recent"):
            share: Any = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float):
                raise TypeError(f"fbuf.Mixture: {name} must be a Python number, got {share!r}")
            if not (math.isfinite(share) and share >= 0):
                raise ValueError(f"fbuf.Mixture: {name} must be at least 0, got {share}")
        if self.uniform + self.prioritized + self.recent == 0:
            raise ValueError("fbuf.Mixture: all shares are 0; give at least one of them")
        _check.positive_int("Mixture", "recent_rows", self.recent_rows, 2**31 - 1)
        given: Any = self.priorities
        if not isinstance(given, Prioritized):
            raise TypeError(
                f"fbuf.Mixture: priorities must be a fbuf.Prioritized, got {given!r}; a class has "
                "to be called"
            )

    @property
    def window(self) -> int:
        """How many steps must follow from a row, see `fbuf.Uniform`."""
        return self.priorities.window

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return self.priorities.follows_episodes

    @property
    def _window(self) -> Window:
        given = self.priorities
        return Window(given.window, given.stride, given.starts == "first")

    def init(self, ring: Ring) -> MixedIndex:
        """No start, and no priority."""
        if self.recent and ring.heads > 1:
            raise ValueError(
                "fbuf.init: Mixture(recent=...) draws from the newest rows of environments that "
                "step together; leave recent out, or make the buffer with lockstep=True"
            )
        priorities = self.priorities.init(ring)
        return MixedIndex(_start_index.empty(ring, self._window), priorities)

    def add(
        self,
        index: MixedIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[MixedIndex, jax.Array]:
        """Count the starts there are now, and store the priorities."""
        starts, _ = _start_index.add(index.starts, ring, span, self._window)
        priorities, faults = self.priorities.add(index.priorities, ring, span, priority, alpha)
        return MixedIndex(starts, priorities), faults

    def update_priority(
        self,
        index: MixedIndex,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[MixedIndex, jax.Array]:
        """Store the priorities that can be right."""
        given = index.priorities
        priorities, faults = self.priorities.update_priority(given, ring, slots, priority, alpha)
        return MixedIndex(index.starts, priorities), faults

    def remove(self, index: MixedIndex, ring: Ring, slots: jax.Array) -> MixedIndex:
        """Take out the starts of all windows with these rows, and their priorities."""
        starts, _ = _start_index.remove(index.starts, ring, slots, self._window)
        return MixedIndex(starts, self.priorities.remove(index.priorities, ring, slots))

    def clear(self, index: MixedIndex, ring: Ring) -> MixedIndex:
        """No start, and no priority."""
        starts = _start_index.clear(index.starts, ring)
        return MixedIndex(starts, self.priorities.clear(index.priorities, ring))

    def can_sample(self, index: MixedIndex, ring: Ring) -> jax.Array:
        """Whether one of those with a share has something to draw from."""
        total = _start_index.total(index.starts, ring)
        return self._shares(index, ring, total, self._newest(index, ring, total)[1]).any()

    def draw(
        self,
        index: MixedIndex,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
        step: jax.Array | int | None,
    ) -> Draw:
        """Draw in all three ways, and choose for each draw."""
        _starts.no_step(step, "Mixture")
        which_key, rank_key, recent_key, priority_key = jax.random.split(key, 4)
        total = _start_index.total(index.starts, ring)
        oldest, count = self._newest(index, ring, total)
        shares = self._shares(index, ring, total, count)
        bounds = jnp.cumsum(shares)
        point = _bits.uniforms(which_key, (batch_size,)) * bounds[2]
        which = jnp.sum(point[:, None] >= bounds[:2], axis=1, dtype=jnp.int32)
        # Rounding must not choose what has no share.
        which = jnp.where(shares[which] > 0, which, jnp.argmax(shares).astype(jnp.int32))
        uniform = _bits.ranks(rank_key, batch_size, total)
        recent = _around(oldest, _bits.ranks(recent_key, batch_size, count), total)
        ranks = jnp.where(which == 2, recent, uniform)
        found = _start_index.select(index.starts, ring, ranks)
        by_priority = self.priorities.draw(
            index.priorities, ring, priority_key, batch_size, None, None
        )
        slots = jnp.where(which == 1, by_priority.slots, found)
        mask = jnp.broadcast_to(bounds[2] > 0, (batch_size,))
        likely = self._probability(index, ring, slots, shares / bounds[2], total, count)
        power = _starts.power(self.priorities.beta if beta is None else beta)
        relative = jnp.where(mask, likely * total.astype(jnp.float32), 1)
        log_weight = -power * jnp.log(relative)
        weight = jnp.exp(log_weight - log_weight.max())
        return Draw(
            slots=slots,
            probability=jnp.where(mask, likely, 0),
            weight=jnp.where(mask, weight, 0),
            log_weight=log_weight,
            mask=mask,
        )

    def stats(self, index: MixedIndex, ring: Ring) -> dict[str, jax.Array]:
        """Those of the priorities."""
        return self.priorities.stats(index.priorities, ring)

    def _shares(
        self, index: MixedIndex, ring: Ring, total: jax.Array, recent: jax.Array
    ) -> jax.Array:
        """The shares of those that have something to draw from: float32 `[3]`."""
        by_priority = self.priorities.can_sample(index.priorities, ring)
        there = jnp.stack([total > 0, by_priority, recent > 0])
        given = jnp.array([self.uniform, self.prioritized, self.recent], jnp.float32)
        return jnp.where(there, given, 0)

    def _newest(
        self, index: MixedIndex, ring: Ring, total: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The rank of the oldest start among the newest rows, and how many of them are starts."""
        if not self.recent:
            return jnp.int32(0), jnp.int32(0)
        stored, head = ring.stored[0], ring.head[0]
        rows = jnp.minimum(stored, self.recent_rows)
        begin = jnp.where(head >= rows, head - rows, head - rows + ring.capacity)
        # Behind the newest row there may be marks from before the last clear, and in a ring that
        # is not full all others lie before it.
        edges = mark_tree.rank(index.starts.tree, jnp.stack([begin, head]))
        before, up_to = edges[0], edges[1]
        wraps = head < rows
        return before, jnp.where(wraps, total - before + up_to, up_to - before)

    def _probability(
        self,
        index: MixedIndex,
        ring: Ring,
        slots: jax.Array,
        shares: jax.Array,
        total: jax.Array,
        recent: jax.Array,
    ) -> jax.Array:
        """How likely these starts are to be drawn, all ways taken together."""
        among_all = shares[0] / jnp.maximum(total, 1).astype(jnp.float32)
        by_priority = shares[1] * self.priorities.probability(index.priorities, slots)
        newest = shares[2] / jnp.maximum(recent, 1).astype(jnp.float32)
        steps = _ring.newer(ring, slots) * ring.lanes + (ring.lanes - 1 - slots % ring.lanes)
        return among_all + by_priority + jnp.where(steps < self.recent_rows, newest, 0)


def _around(first: jax.Array, further: jax.Array, total: jax.Array) -> jax.Array:
    """`first + further`, which is less than twice the total, modulo the total."""
    there = first.astype(jnp.uint32) + further.astype(jnp.uint32)
    size = jnp.maximum(total, 1).astype(jnp.uint32)
    return jnp.where(there >= size, there - size, there).astype(jnp.int32)
