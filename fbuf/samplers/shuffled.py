"""Shuffled sampling: without replacement, epoch by epoch."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp

from fbuf.samplers import permutation, start_index, starts
from fbuf.samplers.protocol import Draw, Sampler
from fbuf.samplers.start_index import StartIndex
from fbuf.samplers.starts import Window
from fbuf.storage.ring import Ring, Span


@dataclasses.dataclass(frozen=True)
class Shuffled(Sampler):
    """Draw every row, or every window, once before any is drawn again, in random order.

    `fbuf.sample(state, key, batch_size, step=i)` returns the i-th batch. `n` rows make an epoch of
    `ceil(n / batch_size)` batches; the last one is masked where nothing is left. Use one key for
    the whole run, and count `step` up. Key and epoch choose the order, which is never stored: to
    resume a run, go on with the next `i`.

    You may write rows meanwhile. A batch never holds a row twice. For each row that becomes
    drawable during an epoch, or no longer is, at most two other rows are drawn twice in it or left
    out. There are exceptions. The whole order changes when the number of slots taken passes a power
    of two, and at every change while fewer than an eighth of the slots are starts. The number of an
    epoch is `step // ceil(n / batch_size)`, so a growing buffer begins a new epoch now and then. In
    a full ring without a window the order is one of slots: writing does not change it.

    Attributes:
        window: As for `fbuf.Uniform`.
        stride: As for `fbuf.Uniform`.
        first_only: As for `fbuf.Uniform`.

    Cost: that of `fbuf.Uniform`, and O(B) for the order; 0.134 bytes a row.

    Raises:
        ValueError: If an argument is out of range. When traced, if you do not give `step` to
            `fbuf.sample`, or give it priorities.
        TypeError: If `window` or `stride` is not an int.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Shuffled())
        >>> state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
        >>> key = jax.random.key(0)
        >>> batches = [fbuf.sample(state, key, 2, step=i) for i in range(3)]
        >>> sorted(int(x) for b in batches for x, there in zip(b.data, b.mask) if there)
        [0, 1, 2, 3, 4]

    References:
        Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
    """

    window: int = 1
    _: dataclasses.KW_ONLY
    stride: int = 1
    first_only: bool = False

    in_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        starts.check_options("Shuffled", self.window, self.stride, self.first_only)

    @property
    def follows_episodes(self) -> bool:
        """Whether it must be known where in its episode a row is."""
        return not self._window.every_row

    @property
    def _window(self) -> Window:
        return Window(self.window, self.stride, self.first_only)

    def init(self, ring: Ring) -> StartIndex:
        """No start."""
        starts.check_lanes("Shuffled", ring, self._window)
        return start_index.empty(ring, self._window)

    def add(
        self,
        index: StartIndex,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: chex.Array | float | None,
    ) -> tuple[StartIndex, jax.Array]:
        """Count the starts there are now, and those that made way."""
        index, _ = start_index.add(index, ring, span, self._window)
        return index, jnp.zeros_like(span.slots, jnp.uint32)

    def remove(self, index: StartIndex, ring: Ring, slots: jax.Array) -> StartIndex:
        """Take out the starts of all windows with these rows."""
        return start_index.remove(index, ring, slots, self._window)[0]

    def can_sample(self, index: StartIndex, ring: Ring) -> jax.Array:
        """Whether there is a start."""
        return start_index.total(index, ring) > 0

    def draw(
        self,
        index: StartIndex,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: chex.Array | float | None,
        step: jax.Array | None,
    ) -> Draw:
        """Draw the starts whose turn it is. Weights are 1 whatever `beta` is."""
        assert step is not None
        total = start_index.total(index, ring)
        count = jnp.maximum(total, 1)
        batches = (count - 1) // batch_size + 1
        epoch, turn = step // batches, step % batches
        left = count - turn * batch_size
        number = jnp.arange(batch_size, dtype=jnp.int32)
        mask = (number < left) & (total > 0)
        # Where there is no number left the last one is taken, so that it stays in range.
        ranks = turn * batch_size + jnp.minimum(number, left - 1)
        slots = self._permuted(index, ring, jax.random.fold_in(key, epoch), ranks, total)
        likely = jnp.where(mask, 1 / count.astype(jnp.float32), 0)
        one = mask.astype(jnp.float32)
        return Draw(slots, likely, one, jnp.zeros_like(one), mask)

    def _permuted(
        self, index: StartIndex, ring: Ring, key: jax.Array, ranks: jax.Array, total: jax.Array
    ) -> jax.Array:
        """The starts that an epoch has at these places: int32 `[B]` slots."""
        # Slots are permuted, for the rank of a start changes with any other one. Only where few
        # slots are starts would a walk from slot to slot take long: there it is ranks.
        taken = ring.filled()
        sparse = total < taken // 8
        given = jnp.where(sparse, ranks, start_index.select(index, ring, ranks))

        def inside(found: jax.Array) -> jax.Array:
            return sparse | start_index.is_start(index, found) | (total == 0)

        count = jnp.maximum(jnp.where(sparse, total, taken), 1)
        found = permutation.permute(key, jnp.minimum(given, count - 1), count, inside)
        ranked = start_index.select(index, ring, jnp.where(sparse, found, 0))
        return jnp.where(sparse, ranked, found)

    def probability(self, index: StartIndex, ring: Ring, slots: jax.Array) -> jax.Array:
        """One of as many as there are starts: of all batches of an epoch taken together."""
        total = jnp.maximum(start_index.total(index, ring), 1).astype(jnp.float32)
        return jnp.where(start_index.is_start(index, slots), 1 / total, 0)

    def stats(self, index: StartIndex, ring: Ring) -> dict[str, jax.Array]:
        """With a window how many starts there are."""
        return {} if index.total is None else {"num_starts": index.total}
