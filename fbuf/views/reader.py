"""The reader: gives a view flags of a buffer, and takes its requests for rows.

The reader keeps a list of its reads. A later write must wait for them, or XLA copies the storage
(`fbuf.xla.tie`). A view need not know that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fbuf.samplers.chance import random_bits
from fbuf.state import State
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.ring import Ring
from fbuf.views import episode
from fbuf.views.requests import Ahead, NextObservations, WantedRows
from fbuf.xla.rows import read_rows


class BatchPart(NamedTuple):
    """Some draws of a batch of a buffer over a mesh.

    Attributes:
        positions: int32 `[B]`; their positions in the batch.
        of: The size of the batch.
        anywhere: Leaves of random rows of all shards; the first axis is all draws of the batch.
    """

    positions: jax.Array
    of: int
    anywhere: Sequence[jax.Array] = ()


class Reader:
    """Reads flags of a buffer at slots, and makes the requests of a view.

    Slots are int32 of any shape, each in range. Names of fields have dots between their parts:
    `"a.b"` is `b` of the field `a`. Errors begin with the name of the view.

    Attributes:
        ring: The slots that hold rows, and their order: `ring.later(slots, steps)`,
            `ring.newer(slots)`, `ring.older(slots)`.
        window: The least number of stored steps of the episode from each drawn row on.
        sampler_window: The sampler's window; a drawn row may lack some of its steps.
        reads: The arrays that have been read.
        mask: bool `[B]`; False for a masked draw. None masks no draw.
        drawn: int32 `[B]`; the slots that the sampler has drawn: the very array that the view gets.
            None for rows named by their ids, which begin anywhere.
    """

    def __init__(
        self,
        view: str,
        state: State[Any],
        mask: jax.Array | None = None,
        part: BatchPart | None = None,
        drawn: jax.Array | None = None,
    ) -> None:
        """Read for a view of this name.

        Args:
            view: The name, for errors.
            state: The buffer.
            mask: As the attribute.
            part: The part of the batch with these draws; None for the whole batch.
            drawn: As the attribute.
        """
        self.view = view
        self.ring: Ring = state.ring
        self.window: int = state.sampler.min_window
        self.sampler_window: int = state.sampler.window
        self.reads: list[jax.Array] = []
        self.mask = mask
        self.drawn = drawn
        self._state = state
        self._part = part

    @property
    def layout(self) -> Layout:
        """The leaves of an item, and their names."""
        return self._state.storage.layout

    def record(self, read: jax.Array) -> jax.Array:
        """Record a read in the view's own loop."""
        self.reads.append(read)
        return read

    def bits(self, key: jax.Array, words: int, batch_size: int) -> jax.Array:
        """Return random bits for each of `batch_size` rows: uint32 `[words, B]`; consumes the key.

        Over a mesh a device reads some draws of a batch only. A draw gets the same bits on every
        device.
        """
        if self._part is None:
            return random_bits.bits(key, (words, batch_size))
        whole = random_bits.bits(key, (words, self._part.of))
        return whole[:, self._part.positions]

    def anywhere(self) -> list[jax.Array]:
        """Return the leaves of the random rows that the view has asked for: `[B, ...]` each."""
        assert self._part is not None
        positions = self._part.positions
        return [leaf[positions] for leaf in self._part.anywhere]

    def flags(self, slots: jax.Array) -> jax.Array:
        """Read the flags of rows (see `fbuf.storage.ring`): uint8, shaped like the slots."""
        found = read_rows(self.ring.flags, slots.reshape(-1)).reshape(slots.shape)
        return self.record(found)

    def rows(
        self, slots: jax.Array, fields: Fields = None, valid: jax.Array | None = None
    ) -> WantedRows:
        """Request rows, leaves `[*slots.shape, *shape]`: whole, or a dict of some fields.

        Args:
            slots: The rows.
            fields: As for `fbuf.Item`.
            valid: bool, shaped like `slots`: rows are zeros where it is False. None zeroes none.
        """
        return _wanted(slots, self.layout.numbers(self.view, fields), valid)

    def field(
        self, slots: jax.Array, name: str, argument: str, valid: jax.Array | None = None
    ) -> WantedRows:
        """Request a field of the rows: its tree, leaves `[*slots.shape, *shape]`.

        `argument` is the view's word for the name, for the message if there is no such field.
        `valid` is that of `rows`.
        """
        return _wanted(slots, self.numbers(name, argument), valid)

    def leaves(
        self, slots: jax.Array, numbers: Sequence[int], valid: jax.Array | None = None
    ) -> WantedRows:
        """Request leaves of the rows by their numbers: a list, `[*slots.shape, *shape]` each.

        `valid` is that of `rows`.
        """
        return _wanted(slots, list(numbers), valid)

    def numbers(self, name: str, argument: str) -> Any:
        """Return a field as its tree with the numbers of its leaves."""
        return self.layout.find(self.view, argument, name)

    def number(self, name: str, argument: str, *, column: bool = False) -> int:
        """Return the number of the leaf of a field of one real number, such as the reward.

        With `column` the field may also be of shape `[1]`. The view then drops that axis.
        """
        number: Any = self.numbers(name, argument)
        if isinstance(number, int):
            field = self.layout.fields[number]
            fits = field.shape == () or (column and field.shape == (1,))
            if fits and not jnp.issubdtype(field.dtype, jnp.complexfloating):
                return number
            got = f"{field.dtype}{list(field.shape)}; "
            if field.shape and math.prod(field.shape) == 1:
                got += "drop its axes, or look whether rows were given with one axis too many"
            else:
                got += "keep one number in a field of its own, such as a weighted sum"
        else:
            got = f"{self.specs(number)}; name the field that holds the {argument}"
        raise ValueError(
            f"fbuf.{self.view}: {argument}={name!r} must name a field that is one real number, "
            f"got {got}"
        )

    def specs(self, numbers: Any) -> Any:
        """Return a tree of numbers of leaves as the same tree of `jax.ShapeDtypeStruct`."""
        return jax.tree.map(lambda number: self.layout.fields[number].spec, numbers)

    @property
    def next_of(self) -> str | None:
        """The name of the field whose next value the buffer keeps; None without one."""
        return None if self._state.next_obs is None else self._state.next_obs.field

    def next_observation(
        self,
        slots: jax.Array,
        flags: jax.Array,
        next_of: str | None,
        own: jax.Array | None = None,
    ) -> tuple[NextObservations, jax.Array]:
        """Request the next observations of rows `[B]` with these flags.

        A draw without a next observation gets the observation of its own row.

        Args:
            slots: The rows.
            flags: Their flags.
            next_of: The name that the view has; None is that of the buffer.
            own: The slots of the drawn rows, if they differ from `slots`.

        Returns:
            The request, and bool `[B]`: whether they are known.
        """
        kept = self._state.next_obs
        if kept is None or next_of not in (None, kept.field):
            made = "without next_of" if kept is None else f"with next_of={kept.field!r}"
            wanted = next_of or "observation"
            raise ValueError(
                f"fbuf.{self.view}: next_of is {next_of!r}, but the buffer was made {made}; use "
                f"fbuf.init(..., next_of={wanted!r}), and give next_observation to fbuf.add"
            )
        where = kept.find(self.ring, slots, flags)
        self.reads.append(where.known)
        # Slots are chosen before the reads: zeroing rows would be another pass over them.
        meant = self.meant(where.known)
        own = slots if own is None else own
        following = jnp.where(meant, self.ring.later(slots, 1), own)
        where = dataclasses.replace(where, aside=where.aside & meant)
        return NextObservations(where, self.field(following, kept.field, "next_of")), where.known

    def meant(self, known: jax.Array) -> jax.Array:
        """Return a mask of the unmasked draws with a known result, `[B]`.

        The mask applies to draws, so for steps `[B * T]` the result is `known`.
        """
        if self.mask is None or self.mask.shape != known.shape:
            return known
        return known & self.mask

    def ahead(self, slots: jax.Array, count: jax.Array, leaf: int) -> Ahead:
        """Request a scalar leaf of each of `[B]` rows, and of the `count` rows after each."""
        return Ahead(slots, count, leaf)

    def steps_to_end(self, slots: jax.Array) -> jax.Array:
        """Count the stored rows of the episode after each of `[B]` rows.

        The count stops at an end of either kind, at the newest row, and before a removed row or a
        dummy.

        Returns:
            int32 `[B]`. O(B longest) reads of a byte.
        """
        return self.record(episode.remaining(self.ring, slots))

    def steps_since_start(self, slots: jax.Array) -> jax.Array:
        """Count the rows of the episode before each of `[B]` rows; see `steps_to_end`."""
        return self.record(episode.elapsed(self.ring, slots))

    def check_lane(self, what: str, steps: int) -> None:
        """Refuse more steps than fit in a lane."""
        if steps > self.ring.lane_length:
            raise ValueError(
                f"fbuf.{self.view}: {what} {steps} steps, but a lane of this buffer has room for "
                f"{self.ring.lane_length}; take fewer steps, or a larger capacity"
            )


def _wanted(slots: jax.Array, numbers: Any, valid: jax.Array | None = None) -> WantedRows:
    """Request the leaves of a tree of numbers."""
    leaves, tree = jax.tree.flatten(numbers)
    return WantedRows(slots, valid, tuple(leaves), tree)
