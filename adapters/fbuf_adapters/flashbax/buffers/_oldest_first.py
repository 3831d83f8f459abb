"""The sampler of buffers without priorities: every `period`-th window, from the oldest step on."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf.adapter_api import Ask, Draw, Ring, Sampler, Span, below, bits


@dataclasses.dataclass(frozen=True)
class OldestFirst(Sampler):
    """Draw windows whose first step is a multiple of `period` steps after the oldest one.

    All of them are equally likely. As the oldest step moves with every add, so do the windows. The
    ring tells everything, so there is no index. Windows go across ends of episodes.

    Attributes:
        window: The number of steps of a window, at most the length of a lane.
        period: The number of steps from one window to the next.

    Cost: O(B) to draw, nothing to add; no memory.
    """

    window: int = 1
    _: dataclasses.KW_ONLY
    period: int = 1

    @property
    def min_window(self) -> int:
        """The drawn row alone is sure to be of its episode: an end may come right behind it."""
        return 1

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is."""
        return False

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can be without a window."""
        return False

    def init(self, ring: Ring) -> tuple[()]:
        """Return nothing: the ring says where windows are."""
        return ()

    def add(self, index: tuple[()], ring: Ring, span: Span) -> tuple[tuple[()], jax.Array]:
        """Return no faults."""
        return index, jnp.zeros_like(span.slots, jnp.uint32)

    def remove(self, index: tuple[()], ring: Ring, slots: jax.Array) -> tuple[()]:
        """Refuse: flashbax's windows have no holes."""
        raise ValueError(
            "fbuf.remove: a buffer of fbuf_adapters.flashbax without priorities draws every stored "
            "window, so no row can be removed; make the buffer with fbuf.init"
        )

    def can_sample(self, index: tuple[()], ring: Ring) -> jax.Array:
        """Return whether one window is stored."""
        return self._windows(ring) > 0

    def draw(self, index: tuple[()], ring: Ring, ask: Ask) -> Draw:
        """Draw windows."""
        batch_size = ask.batch_size
        windows = self._windows(ring)
        count = windows * ring.lanes
        drawn = below(bits(ask.key, (2, batch_size)), count)
        # Steps are counted from the end of the ring backwards, where the oldest lies before step 0.
        steps = (ring.head[0] - ring.stored[0]) // ring.lanes + drawn // ring.lanes * self.period
        steps = jnp.where(steps < 0, steps + ring.lane_length, steps)
        one = jnp.broadcast_to(windows > 0, (batch_size,)).astype(jnp.float32)
        return Draw(
            slots=steps * ring.lanes + drawn % ring.lanes,
            probability=one / jnp.maximum(count, 1).astype(jnp.float32),
            weight=one,
            log_weight=jnp.zeros_like(one),
            mask=one > 0,
        )

    def probability(self, index: tuple[()], ring: Ring, slots: jax.Array) -> jax.Array:
        """Return 1 / windows where a window begins."""
        begins = (ring.older(slots) % self.period == 0) & (ring.newer(slots) >= self.window - 1)
        count = jnp.maximum(self._windows(ring) * ring.lanes, 1)
        return jnp.where(begins, 1 / count.astype(jnp.float32), 0)

    def stats(self, index: tuple[()], ring: Ring) -> dict[str, jax.Array]:
        """Count the windows of all environments."""
        return {"num_starts": self._windows(ring) * ring.lanes}

    def _windows(self, ring: Ring) -> jax.Array:
        """Count the windows of an environment."""
        steps = ring.stored[0] // ring.lanes
        return jnp.maximum((steps - self.window) // self.period + 1, 0)
