"""Transitions of a buffer in host memory, read with NumPy.

A call of a compiled program from Python takes longer than NumPy for a few rows. The difference is
largest if other code, such as a gradient step of PyTorch, fills the caches meanwhile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fbuf.host.row_form import Array, Integers, RowForm, Rows, seen
from fbuf.state import State
from fbuf.storage.ring import ENDS, TERMINATED
from fbuf.storage.store import Storage


class Taken(NamedTuple):
    """Some rows, in arrays that share no memory with others.

    Attributes:
        leaves: The leaves of the rows, `[B, ...]` each.
        following: The leaves of their next observations.
        terminated: float32 `[B]`; 1 for rows that terminated, else 0.
        unknown: The rows without a known next observation, by their number in the batch. Their own
            observation is the placeholder.
        ahead: The rows after the newest row of the buffer, with undefined contents.
    """

    leaves: list[Array]
    following: list[Array]
    terminated: Array
    unknown: Integers
    ahead: Integers


_TERMINATED = (np.arange(256) & TERMINATED).astype(np.float32)
"""The float32 `terminated` for each value of the flags."""


class Transitions:
    """The rows of a buffer with `next_of`, as NumPy views.

    Removed rows are included. Nothing is copied. While this object exists, a change of the buffer
    copies the whole buffer.

    Attributes:
        item: The item, a tree of the numbers of its leaves in `Taken.leaves`.
        observation: The field `next_of`, a tree of the numbers of its leaves in `Taken.following`.
    """

    def __init__(self, state: State[Any]) -> None:
        """View a buffer with one head on the CPU, once all pending computations are done."""
        ring, kept = state.ring, state.next_obs
        assert kept is not None
        assert ring.heads == 1
        self._lanes, self._capacity = ring.lanes, ring.capacity
        self._flags, self._kept_at, self._owner, cursor = map(
            seen, (ring.flags, kept.kept_at, kept.owner, ring.cursor)
        )
        self._newest = int(cursor[0, 0]) - 1
        layout = state.storage.layout
        self.item = layout.numbers("read", None)
        self._wanted, tree = jax.tree.flatten(layout.find("read", "next_of", kept.field))
        self.observation = tree.unflatten(range(len(self._wanted)))
        self._rows, self._kept = _rows(state.storage), _rows(kept.rows)

    def take(self, ages: Integers, ahead: int = 0) -> Taken:
        """Take rows by their age.

        Args:
            ages: int64 `[B]`; 0 is the row that comes `ahead` rows after the newest one.
            ahead: The number of rows that the buffer does not have yet.
        """
        return self.following(ages, ahead)._replace(leaves=self.rows(ages, ahead))

    # The readers wrap slots around the end: each operation of NumPy takes a microsecond or two.

    def rows(self, ages: Integers, ahead: int = 0) -> list[Array]:
        """Take the leaves of rows by their age; as `take`."""
        return self._rows.take((self._newest + ahead) - ages, self._rows.form.all)

    def leaf(self, ages: Integers, number: int, ahead: int = 0) -> Array:
        """Take one leaf of rows by their age; `number` is that in `item`. No other leaf is read."""
        return self._rows.leaf((self._newest + ahead) - ages, number)

    def flags(self, ages: Integers, ahead: int = 0) -> Array:
        """Take the flags of rows by their age; see `fbuf.storage.ring`."""
        return self._flags.take((self._newest + ahead) - ages, mode="wrap")

    def following(self, ages: Integers, ahead: int = 0) -> Taken:
        """Take the next observations of rows by their age, and no other leaf; as `take`."""
        slots = (self._newest + ahead) - ages
        following = self._rows.take(slots + self._lanes, self._wanted)
        flags = self._flags.take(slots, mode="wrap")
        (aside,) = (flags & ENDS).nonzero()
        if aside.size:
            slot = slots[aside] % self._capacity
            place = self._kept_at[slot]
            self._put_kept(following, aside, place)
            # Index -1 becomes place 0, which no ended row owns.
            aside = aside[self._owner.take(place, mode="clip") != slot]
        if aside.size:
            own = self._rows.take(slots[aside], self._wanted)
            for leaf, of_row in zip(following, own, strict=True):
                leaf[aside] = of_row
        (near,) = (ages < ahead + self._lanes).nonzero()
        if near.size:
            known = ages[near] >= ahead
            if known.any():
                newest = near[known]
                newest = newest[flags[newest] & ENDS == 0]
                self._put_kept(following, newest, slots[newest] % self._lanes)
                near = near[~known]
        return Taken([], following, _TERMINATED.take(flags), aside, near)

    def _put_kept(self, following: list[Array], rows: Integers, place: Integers) -> None:
        """Put the kept next observations into a batch."""
        for leaf, kept in zip(following, self._kept.take(place, self._kept.form.all), strict=True):
            leaf[rows] = kept


def _rows(storage: Storage[Any]) -> Rows:
    """Return the rows of a storage, as NumPy sees them."""
    arrays = [seen(array) for array in storage.arrays]
    return Rows(RowForm(storage.layout, arrays[0]), arrays)
