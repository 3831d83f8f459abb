"""What a sampler is: the one interface between the verbs of `fbuf` and the files of this folder.

A sampler is a frozen, hashable dataclass, static under jit. What it keeps of the rows is its
index, a pytree in `State.index` that only the sampler looks into. To add one, write a file with a
class that has these methods; nothing else changes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from fbuf._ring import Ring, Span

Index = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
    """What a sampler drew. `B` is the batch size.

    Attributes:
        slots: int32 `[B]`, each in range even where `mask` is False.
        probability: float32 `[B]`; of drawing that slot in one draw.
        weight: float32 `[B]`; importance weights, at most 1.
        log_weight: float32 `[B]`; their logarithms before they were divided by the largest: 0 for
            a slot as likely as under uniform sampling. Never NaN.
        mask: bool `[B]`; False where there was nothing to draw.
    """

    slots: jax.Array
    probability: jax.Array
    weight: jax.Array
    log_weight: jax.Array
    mask: jax.Array


class Sampler(Protocol):
    """Which rows may be drawn, and how likely each is."""

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring has to know where in its episode each row is."""
        ...

    def init(self, ring: Ring) -> Index:
        """The index of an empty buffer. Raises `ValueError` if it cannot be one of this shape."""
        ...

    def add(
        self,
        index: Index,
        ring: Ring,
        span: Span,
        priority: jax.Array | None,
        alpha: jax.Array | float | None,
    ) -> tuple[Index, jax.Array]:
        """Take note of rows just written, and return the fault bits of each, uint32 `[B]`.

        `ring` is the ring with the rows in it. `priority` is float32 `[B]`.
        """
        ...

    def update_priority(
        self,
        index: Index,
        ring: Ring,
        slots: jax.Array,
        priority: jax.Array,
        alpha: jax.Array | float | None,
    ) -> tuple[Index, jax.Array]:
        """Change the priority of stored rows, and return the fault bits of each, uint32 `[B]`.

        Slots equal to the capacity are to be left out.
        """
        ...

    def remove(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Never draw these rows again, which are marked as removed already.

        No slot comes twice; those equal to the capacity are to be left out.
        """
        ...

    def clear(self, index: Index, ring: Ring) -> Index:
        """Forget all rows."""
        ...

    def can_sample(self, index: Index, ring: Ring) -> jax.Array:
        """Whether there is a row to draw. bool scalar."""
        ...

    def draw(
        self,
        index: Index,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: jax.Array | float | None,
        step: jax.Array | int | None,
    ) -> Draw:
        """Draw rows: with replacement, or the `step`-th batch of those that draw without."""
        ...

    def stats(self, index: Index, ring: Ring) -> dict[str, jax.Array]:
        """Figures for logging. Scalars."""
        ...
