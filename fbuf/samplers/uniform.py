"""Uniform sampling: every stored row alike."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._ring import Ring, Span
from fbuf.samplers import _bits
from fbuf.samplers._protocol import Draw
from fbuf.trees import count_tree, sum_tree
from fbuf.trees.sum_tree import SumTree


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draw every stored row with the same probability, with replacement.

    Its index marks the rows that may be drawn (1.3 bytes a row), so that removed rows are left out
    exactly, by rank and not by trying again. As long as nothing has been removed a slot is the
    rank itself.

    Cost: adding B rows O(B + log N), drawing B rows O(B), or O(B log N) once rows were removed.
    On a GPU the rank is always looked up, as a branch there waits for the host.

    Example:
        >>> import fbuf, jax.numpy as jnp
        >>> fbuf.init(jnp.zeros(3), capacity=100, sampler=fbuf.Uniform()).sampler
        Uniform()
    """

    def init(self, capacity: int) -> SumTree:
        """No row marked."""
        return count_tree.empty(capacity)

    def add(
        self,
        index: SumTree,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[SumTree, jax.Array]:
        """Mark the rows."""
        if priority is not None or alpha is not None:
            raise ValueError(_no_priorities("add"))
        marks = jnp.ones_like(span.slots, jnp.uint8)
        return sum_tree.write_span(index, span, marks, ring.stored), jnp.zeros_like(
            span.slots, jnp.uint32
        )

    def update_priority(
        self,
        index: SumTree,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[SumTree, jax.Array]:
        """Refused: there is no priority to change."""
        raise ValueError(_no_priorities("update_priority"))

    def remove(self, index: SumTree, ring: Ring, slots: jax.Array) -> SumTree:
        """Take the marks away."""
        return sum_tree.write(index, slots, jnp.zeros_like(slots, jnp.uint8), ring.stored)

    def clear(self, index: SumTree) -> SumTree:
        """No row marked."""
        return sum_tree.cleared(index)

    def can_sample(self, index: SumTree) -> jax.Array:
        """Whether any row is marked."""
        return sum_tree.total(index) > 0

    def draw(
        self,
        index: SumTree,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
    ) -> Draw:
        """Draw marked rows. Weights are 1 whatever `beta` is."""
        marked = sum_tree.total(index)
        ranks = _bits.ranks(key, batch_size, marked)
        mask = jnp.broadcast_to(marked > 0, (batch_size,))

        def unless_all_marked(index: SumTree, ranks: jax.Array) -> jax.Array:
            return lax.cond(
                marked == ring.stored, lambda: ranks, lambda: count_tree.select(index, ranks)
            )

        slots = lax.platform_dependent(
            index, ranks, cpu=unless_all_marked, default=count_tree.select
        )
        likely = jnp.where(mask, 1 / jnp.maximum(marked, 1).astype(jnp.float32), 0)
        return Draw(slots, likely, mask.astype(jnp.float32), mask)

    def stats(self, index: SumTree) -> dict[str, jax.Array]:
        """Nothing beyond what the ring knows."""
        return {}


def _no_priorities(function: str) -> str:
    return (
        f"fbuf.{function}: the buffer's sampler is Uniform, which keeps no priorities; leave "
        "priority and alpha out, or make the buffer with sampler=fbuf.Prioritized()"
    )
