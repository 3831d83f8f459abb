"""Batches that are drawn uniformly, made with NumPy: those of `fbuf.sample`, to the last bit.

For a few rows a call of a compiled program, and its way to another library, take longer than NumPy
takes for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fbuf.host.row_form import Array, Integers, RowForm, Rows, seen
from fbuf.samplers.uniform import Uniform
from fbuf.state import Sample, State
from fbuf.storage.ids import Ids
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.views.item import Item
from fbuf.views.protocol import View

_BITS = np.arange(256, dtype=np.uint8)
_TERMINATED, _TRUNCATED = _BITS & TERMINATED > 0, _BITS & TRUNCATED > 0
"""By the flags of a row, whether its episode ended there."""


class UniformRows:
    """The rows of buffers of one form on the CPU, of which each is as likely.

    Attributes:
        tree: The structure of a batch, a `fbuf.Sample`; `draw` returns its leaves.
    """

    def __init__(self, form: Any, view: Item) -> None:
        """Draw from states of this structure; see `serves`."""
        places: State[Any] = jax.tree.unflatten(form, list(range(form.num_leaves)))
        ring, layout = places.ring, places.storage.layout
        self._arrays: Any = places.storage.arrays
        self._cursor, self._removed, self._flags = ring.cursor, ring.removed, ring.flags
        self._layout = layout
        self._wanted, data = jax.tree.flatten(layout.numbers("sample", view.fields))
        self._form: RowForm | None = None
        self._last: tuple[int, int, tuple[Array, Array, Array]] | None = None
        other = [0] * 7
        ids = Ids(*other[:2])
        self.tree = jax.tree.structure(
            Sample(data.unflatten([0] * data.num_leaves), ids, *other[2:])
        )

    @staticmethod
    def serves(form: Any, view: View) -> bool:
        """Return whether states of this structure are drawn from so: rows alone, and all alike."""
        state: State[Any] = jax.tree.unflatten(form, list(range(form.num_leaves)))
        ring, fields = state.ring, state.storage.layout.fields
        return (
            state.sampler == Uniform()
            and type(view) is Item
            and ring.heads == ring.shards == 1
            and all(field.dtype.isbuiltin == 1 for field in fields)  # others NumPy cannot export
        )

    def draw(
        self, leaves: tuple[Any, ...], slots_among: Callable[[int], Integers]
    ) -> list[Array] | None:
        """Draw a batch.

        Args:
            leaves: Those of the state.
            slots_among: Returns the drawn slots for a number of rows: see `below`.

        Returns:
            The leaves of the batch, in memory of their own. None if there is no row, or if rows
            have been removed.

        Raises:
            RuntimeError: If the state has been consumed.
        """
        if self._removed is not None and int(seen(leaves[self._removed])):
            return None
        (head,), (lap,), (stored,), _, (tag,) = seen(leaves[self._cursor]).tolist()
        if not stored:
            return None
        slots = slots_among(stored)
        arrays = [seen(leaves[place]) for place in self._arrays]
        try:
            if self._form is None:
                self._form = RowForm(self._layout, arrays[0])
            data = Rows(self._form, arrays).take(slots, self._wanted)
        finally:
            arrays.clear()  # or the frames of an exception would keep them; see `seen`
        flags = seen(leaves[self._flags]).take(slots)
        generation = (lap + tag) - (slots >= head).view(np.int8).astype(np.int64)
        mask, probability, weight = self._equal(slots.size, stored)
        return [
            *data,
            slots.astype(np.int32),
            generation.astype(np.int32),  # it wraps around
            mask.copy(),
            _TERMINATED.take(flags),
            _TRUNCATED.take(flags),
            probability.copy(),
            weight.copy(),
        ]

    def _equal(self, size: int, stored: int) -> tuple[Array, Array, Array]:
        """Return the mask, probabilities and weights of a batch, which are all alike."""
        if self._last is None or self._last[:2] != (size, stored):
            one = np.ones(size, np.float32)
            self._last = size, stored, (one > 0, one / np.float32(stored), one)
        return self._last[2]


def below(words: Array, total: int) -> Integers:
    """Return integers in `[0, total)`, as `fbuf.samplers.chance.random_bits.below`: int64 `[...]`.

    Args:
        words: uint64 `[2, ...]`: the random bits of `fbuf.sample`, 32 in each.
        total: How many integers there are.
    """
    high, low = words
    factor, half = np.uint64(total), np.uint64(32)
    return ((high * factor + (low * factor >> half)) >> half).view(np.int64)
