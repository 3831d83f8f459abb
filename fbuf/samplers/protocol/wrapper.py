"""Wrappers: samplers that draw with another sampler, and add something of their own."""

# A type checker takes a forwarded member for one that is no property.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from fbuf.samplers.protocol.sampler import Index, Origin, Sampler
from fbuf.storage.ring import Ring


class _Forwarded:
    """A member that a wrapper takes from the wrapped sampler."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = f"The `{name}` of the wrapped sampler."

    def __get__(self, wrapper: Wrapper | None, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper.sampler, self._name)


def forwarded() -> Any:
    """Return a member that a wrapper takes from the wrapped sampler."""
    return _Forwarded()


class Wrapper(Sampler):
    """Draw with `sampler`, and add something of its own.

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

    # Members of the wrapped sampler.
    window = forwarded()
    stride = forwarded()
    fields = forwarded()
    keeps_priorities = forwarded()
    notes_draws = forwarded()
    min_window = forwarded()
    may_draw_nothing = forwarded()
    weighs_by_batch = forwarded()
    can_retire = forwarded()
    start_conditions = forwarded()
    init = forwarded()
    check_field = forwarded()
    add = forwarded()
    update_priority = forwarded()
    written = forwarded()
    resized = forwarded()
    remove = forwarded()
    retire = forwarded()
    can_sample = forwarded()
    draw = forwarded()
    note = forwarded()
    probability = forwarded()
    stats = forwarded()

    @property
    def follows_episodes(self) -> bool:
        """True: the ring must track each row's position in its episode, to tell starts."""
        return True

    def inner(self, index: Index) -> Iterator[tuple[Sampler, Index]]:
        """Yield the wrapped sampler and its index, which is here the whole index."""
        yield self.sampler, index

    def take_over(
        self, index: Index, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[Index, jax.Array]:
        """Have the wrapped sampler take over from the one in another buffer."""
        other = origin.sampler
        if isinstance(other, Wrapper) and type(other) is type(self):
            origin = origin._replace(sampler=other.sampler)
        return self.sampler.take_over(index, ring, slots, origin)

    def take_counts(self, index: Index, other: Sampler, old: Any) -> Index:
        """Have the wrapped sampler add the counts of the one in another buffer."""
        if type(self).take_over is not Wrapper.take_over:
            return index  # the index may be of another class
        if isinstance(other, Wrapper) and type(other) is type(self):
            other = other.sampler
        return self.sampler.take_counts(index, other, old)
