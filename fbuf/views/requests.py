"""Wanted rows: what a view asks for in its first half, and gets in its second.

The first half of a view runs where the flags and the sampler's index lie, and says which rows it
wants. The second makes something of them. Between the two the rows are read, wherever they lie.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage.next_obs import Where
from fbuf.views.episode import CHUNK
from fbuf.xla.varying import varying

Carry = TypeVar("Carry")


class Source(Protocol):
    """Where rows are read from: what lies between the halves of a view."""

    def rows(self, slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
        """Leaves of the rows at slots, by number: `[*slots.shape, *shape]` each."""
        ...

    def kept(self, slots: jax.Array) -> list[jax.Array]:
        """The next observations kept at `[B]` places of their store: leaves `[B, *shape]`."""
        ...

    def steps(self, ahead: Ahead) -> Callable[[jax.Array], jax.Array]:
        """What reads `CHUNK` rows ahead, from a step on: a leaf `[B, CHUNK]`."""
        ...

    def record(self, read: jax.Array) -> None:
        """Take note of what was made of `steps`."""
        ...


class Wanted(abc.ABC):
    """Rows that a view asks for."""

    @abc.abstractmethod
    def read(self, source: Source) -> Any:
        """The rows, as the second half of a view gets them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows(Wanted):
    """Leaves of the rows at slots; the view gets them in a tree.

    Attributes:
        slots: int32 of any shape, each in range.
        leaves: Which leaves, by number; static.
        tree: The tree they are put into, with leaves `[*slots.shape, *shape]`; static.
    """

    slots: jax.Array
    leaves: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    tree: Any = dataclasses.field(metadata={"static": True})

    def read(self, source: Source) -> Any:
        """The tree."""
        return self.tree.unflatten(source.rows(self.slots, self.leaves))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NextObservations(Wanted):
    """The next observations of rows; the view gets a tree like the observation, leaves `[B, ...]`.

    Attributes:
        where: Where each lies.
        following: The observations of the rows that follow.
    """

    where: Where
    following: Rows

    def read(self, source: Source) -> Any:
        """Those of the rows that follow, and where they have others, those kept aside."""
        kept = self.following.tree.unflatten(source.kept(self.where.kept))
        return self.where.either(kept, self.following.read(source))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ahead(Wanted):
    """One leaf of a row and of the rows after it, however many; the view gets a `Stretch`.

    Attributes:
        slots: int32 `[B]`; the row.
        count: int32 `[B]`; how many rows after it.
        leaf: The number of a leaf that is one number; static.
    """

    slots: jax.Array
    count: jax.Array
    leaf: int = dataclasses.field(metadata={"static": True})

    def read(self, source: Source) -> Stretch:
        """The stretch, which reads as it is gone through."""
        return Stretch(self.count, source.steps(self), source.record)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive rows of each draw, gone through a chunk at a time.

    Attributes:
        count: int32 `[B]`; how many rows there are after the first.
        chunk: What reads a chunk from a step on.
        record: Takes note of what was read.
    """

    count: jax.Array
    chunk: Callable[[jax.Array], jax.Array]
    record: Callable[[jax.Array], None]

    def fold_back(
        self, add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], start: jax.Array
    ) -> jax.Array:
        """Go through the rows, from the last chunk to the first.

        Args:
            add: Called with what was made so far, the numbers of the steps, int32 `[CHUNK]`, and
                the leaf at these steps, `[B, CHUNK]`; behind `count` it is that of some row.
            start: What there is before the last chunk, `[B]`.
        """
        number = jnp.arange(CHUNK, dtype=jnp.int32)

        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            first, made = carry
            return first - CHUNK, add(made, first + number, self.chunk(first))

        begin = (self.count.max() // CHUNK * CHUNK, varying(start, self.count))
        _, made = lax.while_loop(lambda carry: carry[0] >= 0, body, begin)
        self.record(made)
        return made
