"""Samplers that choose the slot of each new row, in place of the oldest one."""

from __future__ import annotations

import abc
from typing import ClassVar

import jax

from fbuf.samplers.protocol.sampler import Given, Index, Sampler
from fbuf.storage.ring import Ring


class PlacingSampler(Sampler):
    """Choose the slots of new rows. Rows then lie in no order of time."""

    places: ClassVar[bool] = True

    @abc.abstractmethod
    def place(
        self, index: Index, ring: Ring, mask: jax.Array, given: Given
    ) -> tuple[Index, jax.Array]:
        """Choose a slot for each new row, before the rows are written.

        Args:
            index: The index.
            ring: The ring, without the rows.
            mask: bool `[B]`; False for a row to leave out.
            given: The priorities of the rows, as the caller gave them.

        Returns:
            The index, and int32 `[B]` distinct slots; the capacity marks a row that is not kept.
            Until the buffer is full, kept rows take new slots in order, from slot 0 on.
        """


def refuse(function: str, sampler: Sampler) -> None:
    """Refuse a buffer whose rows lie in no order of time, where an order is needed."""
    if sampler.places:
        raise ValueError(
            f"fbuf.{function}: the rows of {type(sampler).__name__} lie in no order of time, and "
            f"fbuf.{function} needs one; add the rows to another buffer: rows = fbuf.rows(state), "
            "and fbuf.add(other, rows.data, mask=rows.mask)"
        )
