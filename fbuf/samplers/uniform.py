"""Uniform sampling: every stored row alike."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._ring import REMOVED, Ring, Span
from fbuf.samplers import _bits
from fbuf.samplers._protocol import Draw
from fbuf.trees import count_tree
from fbuf.trees.count_tree import CountTree


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draw every stored row with the same probability, with replacement.

    Its index counts the rows that were removed (0.27 bytes a row), so that they are left out
    exactly, by rank and not by trying again. As long as nothing is removed a slot is the rank
    itself.

    Cost: adding B rows O(B log N), drawing B rows O(B), or O(B log N) while rows are removed. On a
    GPU the rank is always looked up, as a branch there waits for the host.

    Example:
        >>> import fbuf, jax.numpy as jnp
        >>> fbuf.init(jnp.zeros(3), capacity=100, sampler=fbuf.Uniform()).sampler
        Uniform()
    """

    def init(self, capacity: int) -> CountTree:
        """No row removed."""
        return count_tree.empty(capacity)

    def add(
        self,
        index: CountTree,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[CountTree, jax.Array]:
        """Forget the removed rows that made way."""
        if priority is not None or alpha is not None:
            raise ValueError(_no_priorities("add"))
        slots = jnp.minimum(span.slots, ring.capacity - 1)
        index = count_tree.add(index, slots, -span.vacated.astype(jnp.int32))
        return index, jnp.zeros_like(span.slots, jnp.uint32)

    def update_priority(
        self,
        index: CountTree,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[CountTree, jax.Array]:
        """Refused: there is no priority to change."""
        raise ValueError(_no_priorities("update_priority"))

    def remove(self, index: CountTree, ring: Ring, slots: jax.Array) -> CountTree:
        """Count the rows."""
        there = slots < ring.capacity
        return count_tree.add(index, jnp.where(there, slots, 0), there.astype(jnp.int32))

    def clear(self, index: CountTree) -> CountTree:
        """Nothing to do: what is counted lies behind the newest row from now on."""
        return index

    def can_sample(self, index: CountTree, ring: Ring) -> jax.Array:
        """Whether any row is left."""
        return ring.stored > ring.removed

    def draw(
        self,
        index: CountTree,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
    ) -> Draw:
        """Draw rows that are left. Weights are 1 whatever `beta` is."""
        left = ring.stored - ring.removed
        ranks = _bits.ranks(key, batch_size, left)
        mask = jnp.broadcast_to(left > 0, (batch_size,))

        def select(index: CountTree, ring: Ring, ranks: jax.Array) -> jax.Array:
            return count_tree.select(index, ring.flags & REMOVED, ring.stored, ranks)

        def unless_none_removed(index: CountTree, ring: Ring, ranks: jax.Array) -> jax.Array:
            return lax.cond(ring.removed == 0, lambda: ranks, lambda: select(index, ring, ranks))

        slots = lax.platform_dependent(index, ring, ranks, cpu=unless_none_removed, default=select)
        likely = jnp.where(mask, 1 / jnp.maximum(left, 1).astype(jnp.float32), 0)
        return Draw(slots, likely, mask.astype(jnp.float32), mask)

    def stats(self, index: CountTree) -> dict[str, jax.Array]:
        """Nothing beyond what the ring knows."""
        return {}


def _no_priorities(function: str) -> str:
    return (
        f"fbuf.{function}: the buffer's sampler is Uniform, which keeps no priorities; leave "
        "priority and alpha out, or make the buffer with sampler=fbuf.Prioritized()"
    )
