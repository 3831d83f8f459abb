"""Samplers that draw as another sampler does, but for something of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from fbuf.samplers.conditions import Window
from fbuf.samplers.protocol import Draw, Index, Sampler, Scalar, Step
from fbuf.storage.ring import Ring, Span


class Wrapper(Sampler):
    """Draw as `sampler` does, but for something of its own.

    A subclass is a dataclass with a field `sampler`. Here the index is that of the wrapped sampler.
    A subclass with more in its index overrides all methods that get it, `inner` among them.

    Attributes:
        sampler: The wrapped sampler.
    """

    sampler: Sampler

    def __post_init__(self) -> None:
        self._check_wrapped()

    def _check_wrapped(self) -> None:
        """Refuse a sampler that has an order of its own."""
        given = self.sampler
        if given.is_queue or given.places or given.without_replacement or not given.can_be_wrapped:
            raise ValueError(
                f"fbuf.{type(self).__name__}: {type(given).__name__} has an order or limits of its "
                "own, which a sampler around it would break; wrap another sampler, and put "
                "fbuf.Limited outside"
            )

    # Other samplers have fields by these names; to read them is all that anybody may do.
    @property
    def window(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The window of the wrapped sampler."""
        return self.sampler.window

    @property
    def stride(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The stride of the wrapped sampler."""
        return self.sampler.stride

    @property
    def fields(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The fields that the wrapped sampler looks at."""
        return self.sampler.fields

    @property
    def keeps_priorities(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the wrapped sampler keeps priorities."""
        return self.sampler.keeps_priorities

    @property
    def notes_draws(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the wrapped sampler remembers what was drawn."""
        return self.sampler.notes_draws

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is: always, to tell starts."""
        return True

    @property
    def min_window(self) -> int:
        """Those steps that the wrapped sampler promises."""
        return self.sampler.min_window

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.sampler.may_draw_nothing

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch."""
        return self.sampler.weighs_by_batch

    @property
    def can_retire(self) -> bool:
        """Whether the wrapped sampler can retire starts."""
        return self.sampler.can_retire

    @property
    def start_conditions(self) -> Window:
        """The conditions of the wrapped sampler."""
        return self.sampler.start_conditions

    def inner(self, index: Index) -> Iterator[tuple[Sampler, Index]]:
        """Yield the wrapped sampler and its index, which is here the whole index."""
        yield self.sampler, index

    def check_field(self, name: str, spec: jax.ShapeDtypeStruct) -> None:
        """Have the wrapped sampler check the field."""
        self.sampler.check_field(name, spec)

    def init(self, ring: Ring) -> Index:
        """Return the index of the wrapped sampler."""
        return self.sampler.init(ring)

    def add(
        self, index: Index, ring: Ring, span: Span, priority: jax.Array | None, alpha: Scalar
    ) -> tuple[Index, jax.Array]:
        """Have the wrapped sampler index the new rows."""
        return self.sampler.add(index, ring, span, priority, alpha)

    def update_priority(
        self, index: Index, ring: Ring, slots: jax.Array, priority: jax.Array, alpha: Scalar
    ) -> tuple[Index, jax.Array]:
        """Have the wrapped sampler change priorities."""
        return self.sampler.update_priority(index, ring, slots, priority, alpha)

    def written(
        self, index: Index, ring: Ring, slots: jax.Array, fields: dict[str, jax.Array]
    ) -> Index:
        """Have the wrapped sampler look at changed fields."""
        return self.sampler.written(index, ring, slots, fields)

    def take_over(
        self,
        index: Index,
        ring: Ring,
        slots: jax.Array,
        other: Sampler,
        old: Any,
        old_slots: jax.Array,
    ) -> tuple[Index, jax.Array]:
        """Have the wrapped sampler take over from that of another buffer."""
        if isinstance(other, Wrapper) and type(other) is type(self):
            other = other.sampler
        return self.sampler.take_over(index, ring, slots, other, old, old_slots)

    def take_counts(self, index: Index, other: Sampler, old: Any) -> Index:
        """Have the wrapped sampler add the counts of that of another buffer."""
        if type(self).take_over is not Wrapper.take_over:
            return index  # the index may be another one
        if isinstance(other, Wrapper) and type(other) is type(self):
            other = other.sampler
        return self.sampler.take_counts(index, other, old)

    def resized(self, index: Index, old: Index) -> Index:
        """Have the wrapped sampler look at what did not fit."""
        return self.sampler.resized(index, old)

    def remove(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Have the wrapped sampler remove rows."""
        return self.sampler.remove(index, ring, slots)

    def retire(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Have the wrapped sampler retire starts."""
        return self.sampler.retire(index, ring, slots)

    def can_sample(self, index: Index, ring: Ring) -> jax.Array:
        """Return whether the wrapped sampler has a row to draw."""
        return self.sampler.can_sample(index, ring)

    def draw(
        self,
        index: Index,
        ring: Ring,
        key: jax.Array,
        batch_size: int,
        beta: Scalar,
        step: Step | None,
    ) -> Draw:
        """Draw as the wrapped sampler does."""
        return self.sampler.draw(index, ring, key, batch_size, beta, step)

    def note(self, index: Index, ring: Ring, draw: Draw) -> Index:
        """Have the wrapped sampler note a batch."""
        return self.sampler.note(index, ring, draw)

    def probability(self, index: Index, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the probability in a draw of the wrapped sampler."""
        return self.sampler.probability(index, ring, slots)

    def stats(self, index: Index, ring: Ring) -> dict[str, jax.Array]:
        """Return the figures of the wrapped sampler."""
        return self.sampler.stats(index, ring)
