"""Requests for rows: made by the first half of a view, answered for its second half.

The first half of a view runs beside the flags and the sampler's index, and requests rows. The
second half builds the result. Between the two halves the rows are read, from memory or from disk.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._pytree import pytree
from fbuf.storage.masks import zeroed
from fbuf.storage.next_obs import Where
from fbuf.views.episode import CHUNK
from fbuf.xla.varying import varying

Carry = TypeVar("Carry")


class Source(Protocol):
    """The source of rows, between the halves of a view."""

    def rows(self, slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
        """Read leaves of the rows at slots, by number: `[*slots.shape, *shape]` each."""
        ...

    def kept(self, slots: jax.Array) -> list[jax.Array]:
        """Read the next observations at `[B]` places of their store: leaves `[B, *shape]`."""
        ...

    def steps(self, ahead: Ahead) -> Callable[[jax.Array], jax.Array]:
        """Return a function that reads `CHUNK` rows, given the first step: a leaf `[B, CHUNK]`."""
        ...

    def record(self, read: jax.Array) -> None:
        """Record what was made of `rows` or `steps`: a later write waits for it."""
        ...


class Wanted(abc.ABC):
    """A request for rows."""

    @abc.abstractmethod
    def read(self, source: Source) -> Any:
        """Read the rows, as the second half of a view gets them."""


@pytree
class WantedRows(Wanted):
    """A request for leaves of the rows at slots; the view gets them in a tree.

    Attributes:
        slots: int32 of any shape, each in range.
        valid: bool, shaped like `slots`: rows are zeros where it is False. None zeroes none.
        leaves: The numbers of the leaves; static.
        tree: The tree of the result, with leaves `[*slots.shape, *shape]`; static.
    """

    slots: jax.Array
    valid: jax.Array | None
    leaves: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    tree: Any = dataclasses.field(metadata={"static": True})

    def read(self, source: Source) -> Any:
        """Read the tree."""
        found = source.rows(self.slots, self.leaves)
        if self.valid is not None:
            found = zeroed(self.valid, found)
        # Recorded as they are given: a second use of the rows as they lie would cost a pass.
        for rows in found:
            source.record(rows)
        return self.tree.unflatten(found)


@pytree
class NextObservations(Wanted):
    """A request for next observations; the view gets a tree like the observation, `[B, ...]`.

    Attributes:
        where: The place of each.
        following: The request for the observations of the following rows.
    """

    where: Where
    following: WantedRows

    def read(self, source: Source) -> Any:
        """Read the observations of the following rows, and the ones kept aside."""
        kept = self.following.tree.unflatten(source.kept(self.where.kept))
        return self.where.either(kept, self.following.read(source))


@pytree
class Ahead(Wanted):
    """A request for one leaf of a row and of any number of rows after it; gives a `Stretch`.

    Attributes:
        slots: int32 `[B]`; the first row.
        count: int32 `[B]`; the number of rows after the first.
        leaf: The number of a leaf that is one number; static.
    """

    slots: jax.Array
    count: jax.Array
    leaf: int = dataclasses.field(metadata={"static": True})

    def read(self, source: Source) -> Stretch:
        """Return the stretch, which reads its rows only in `fold_back`."""
        return Stretch(self.count, source.steps(self), source.record)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive rows of each draw, read a chunk at a time.

    Attributes:
        count: int32 `[B]`; the number of rows after the first.
        chunk: Reads the chunk that begins at a step.
        record: Records a read.
    """

    count: jax.Array
    chunk: Callable[[jax.Array], jax.Array]
    record: Callable[[jax.Array], None]

    def fold_back(
        self, add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], start: jax.Array
    ) -> jax.Array:
        """Fold over the rows, from the last chunk to the first.

        Args:
            add: Called with the result so far, the numbers of the steps, int32 `[CHUNK]`, and the
                leaf at these steps, `[B, CHUNK, *shape]`. Behind `count` it is the leaf of any row.
            start: The result before the last chunk, `[B]`.
        """
        number = jnp.arange(CHUNK, dtype=jnp.int32)

        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            first, made = carry
            return first - CHUNK, add(made, first + number, self.chunk(first))

        begin = (self.count.max() // CHUNK * CHUNK, varying(start, self.count))
        _, made = lax.while_loop(lambda carry: carry[0] >= 0, body, begin)
        self.record(made)
        return made
