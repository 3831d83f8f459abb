"""Queues: `fbuf.pop` reads each row once, in order, and no row is drawn."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from fbuf.compat.renamed import OldName
from fbuf.samplers.protocol.sampler import Ask, Draw, Index, Sampler
from fbuf.storage.ring import Ring


class QueueSampler(Sampler):
    """Read each row once, in order. Besides `init`, `add` and `remove` it has three methods."""

    is_queue: ClassVar[bool] = True
    old_names: ClassVar[Mapping[str, OldName]] = {
        old: name for old, name in Sampler.old_names.items() if old != "room"
    }

    @abc.abstractmethod
    def unread(self, index: Index, ring: Ring) -> jax.Array:
        """Count the unread steps of each head, which are its newest ones: int32 `[heads]`."""

    @abc.abstractmethod
    def space(self, index: Index, ring: Ring) -> jax.Array:
        """Count the steps of each head without an unread row: int32 `[heads]`."""

    @abc.abstractmethod
    def popped(self, index: Index, steps: jax.Array) -> Index:
        """Return the index after the oldest unread steps of each head were read.

        `steps` is their number, int32 `[heads]`.
        """

    def room(self, index: Index, ring: Ring) -> jax.Array | None:
        """Count the steps that each head may write: int32 `[heads]`; None without a limit.

        `fbuf.add` leaves out the steps that do not fit.
        """
        return self.space(index, ring)

    def can_sample(self, index: Index, ring: Ring) -> jax.Array:
        """Return whether there is a row to read."""
        return (self.unread(index, ring) > 0).any()

    def draw(self, index: Index, ring: Ring, ask: Ask) -> Draw:
        """Refuse: nothing is left to chance."""
        raise ValueError(
            f"fbuf.sample: {type(self).__name__} draws no batches at random; read rows in their "
            "order with state, batch = fbuf.pop(state, count), or make the buffer with another "
            "sampler"
        )

    def probability(self, index: Index, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return 0, for no row is drawn."""
        return jnp.zeros(slots.shape, jnp.float32)


def queue_of(sampler: Sampler) -> QueueSampler:
    """Return a sampler, which must be a queue, for type checkers."""
    assert isinstance(sampler, QueueSampler)
    return sampler


def room(sampler: Sampler, index: Index, ring: Ring) -> jax.Array | None:
    """Count the steps that each head may write: int32 `[heads]`; None without a limit."""
    return sampler.room(index, ring) if isinstance(sampler, QueueSampler) else None
