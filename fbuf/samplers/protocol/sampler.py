"""The protocol of samplers: the interface between `fbuf.ops` and the files of this folder.

A sampler is a frozen, hashable dataclass, static under jit. It keeps an index: a pytree in
`State.index`, which only the sampler reads. To add a sampler, write one file with a subclass of
`Sampler`; nothing else changes. `docs/know/extending.md` shows one. Samplers that do more than draw
have protocols of their own: `planned.py`, `queues.py` and `windows.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf._pytree import pytree
from fbuf.compat.listed import Listed
from fbuf.compat.renamed import CurrentNames, OldArguments, OldName
from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.ring import Ring, Span

Index = Any
Scalar = Array | float | None
"""An exponent that may be traced. None is the sampler's own."""

Step = tuple[jax.Array, jax.Array]
"""The number of an epoch, and the place of the batch's first row in it, from 0. int32 scalars."""


class Ask(NamedTuple):
    """The arguments of a draw.

    Attributes:
        key: A PRNG key.
        batch_size: `B`, the number of draws; a Python integer.
        beta: The exponent of importance weights. None is the sampler's own.
        step: Where in an epoch the batch begins; None unless the sampler is `without_replacement`.
    """

    key: jax.Array
    batch_size: int
    beta: Scalar = None
    step: Step | None = None


class Given(NamedTuple):
    """The priorities of rows, as the caller gave them.

    Attributes:
        priority: float32 `[B]`; None if new rows came without.
        alpha: The exponent of these priorities. None is the sampler's own.
    """

    priority: jax.Array | None
    alpha: Scalar = None


class Origin(NamedTuple):
    """The buffer whose rows were added to this one.

    Attributes:
        sampler: Its sampler.
        index: Its index.
        slots: int32 `[B]`; the slots of the rows in that buffer.
    """

    sampler: Sampler
    index: Index
    slots: jax.Array


@pytree
class Draw:
    """The draws of a batch. `B` is the batch size.

    Attributes:
        slots: int32 `[B]`; in range, also where `mask` is False.
        probability: float32 `[B]`: how likely one draw is to be that slot.
        weight: float32 `[B]`; importance weights, at most 1.
        log_weight: float32 `[B]`: the logarithms of the weights before the division by the largest.
            0 for a slot that is as likely as under uniform sampling. Never NaN.
        mask: bool `[B]`: False where there was nothing to draw.
    """

    slots: jax.Array
    probability: jax.Array
    weight: jax.Array
    log_weight: jax.Array
    mask: jax.Array


class Sampler(CurrentNames, Listed):
    """Decide which rows may be drawn, and how likely each is.

    A plain sampler has six methods: `init`, `add`, `remove`, `can_sample`, `draw` and
    `probability`. Every method gets the index and the ring, which says which slots hold rows. Leave
    out slots equal to `ring.capacity`: they stand for no row.

    Attributes:
        window: How many steps of one episode must follow from a row, counting itself, for it to be
            drawn. If shorter episodes are drawn, too, say so with `min_window`.
        stride: The length of a lane must be a multiple of it.
        keeps_priorities: Whether `add` takes priorities, and `update_priority` may be called.
        without_replacement: Whether batches are numbered, so that `fbuf.sample` needs `step`. Such
            a sampler has a method `epoch_size`.
        fields: The names of the fields of rows that the sampler reads. It finds those of new
            rows in `span.fields`. Such a sampler has methods `check_field` and `written`.
        is_queue: Whether `fbuf.pop` reads each row once, and no row is drawn: see `QueueSampler`.
        places: Whether the sampler chooses the slots of new rows: see `PlacingSampler`.
        can_be_wrapped: Whether a wrapper may change the draws of this sampler.
        notes_draws: Whether the index remembers its draws, so that `fbuf.draw` takes the place of
            `fbuf.sample`. Such a sampler has a method `note`.
    """

    window: int = 1
    stride: int = 1
    fields: tuple[str, ...] = ()
    keeps_priorities: ClassVar[bool] = False
    without_replacement: ClassVar[bool] = False
    is_queue: ClassVar[bool] = False
    places: ClassVar[bool] = False
    notes_draws: ClassVar[bool] = False
    can_be_wrapped: ClassVar[bool] = True

    old_names: ClassVar[Mapping[str, OldName]] = {
        "in_order": OldName("without_replacement", arguments=None),
        "reads_once": OldName(
            "is_queue", None, instead="a class that derives from fbuf.samplers.QueueSampler"
        ),
        "moved": OldName("take_over", arguments=5),
        "takes_over": OldName("take_over", arguments=1),
        "mass": OldName("shard_totals", arguments=2),
        "largest": OldName("largest_priority", arguments=1),
        "told": OldName("with_largest_priority", arguments=2),
        "room": OldName(
            "is_queue", 2, instead="it in a class that derives from fbuf.samplers.QueueSampler"
        ),
    }
    old_arguments: ClassVar[Mapping[str, OldArguments]] = {
        "add": OldArguments(5, "(index, ring, span), with span.priority and span.alpha"),
        "draw": OldArguments(
            6, "(index, ring, ask), with ask.key, ask.batch_size, ask.beta and ask.step"
        ),
        "update_priority": OldArguments(
            5, "(index, ring, slots, given), with given.priority and given.alpha"
        ),
        "take_over": OldArguments(
            6, "(index, ring, slots, origin), with origin.sampler, origin.index and origin.slots"
        ),
        "plan": OldArguments(
            6, "(index, ring, totals, ask), with ask.key, ask.batch_size and ask.step"
        ),
        "weigh": OldArguments(
            7,
            "(totals, picked, ask), with picked.slots, picked.aux, picked.positions, picked.axes, "
            "ask.beta and ask.step",
        ),
        "place": OldArguments(5, "(index, ring, mask, given), with given.priority and given.alpha"),
    }

    @property
    def follows_episodes(self) -> bool:
        """Whether the ring must know where in its episode each row is (`Span.in_episode`)."""
        return self.window > 1

    @property
    def min_window(self) -> int:
        """The number of steps that follow in its episode from every drawn row, counting itself."""
        return self.window

    @property
    def start_conditions(self) -> Window:
        """The conditions for a row to be drawn, for samplers around this one."""
        strict = self.min_window == self.window
        return Window(self.window, self.stride, first_only=False, strict=strict)

    @property
    def may_draw_nothing(self) -> bool:
        """Whether a full buffer can have no row to draw."""
        return self.window > 1

    @property
    def weighs_by_batch(self) -> bool:
        """Whether weights are divided by the largest in the batch."""
        return True

    def inner(self, index: Index) -> Iterable[tuple[Sampler, Index]]:
        """Return each inner sampler and its index; by default there is no inner sampler.

        So `fbuf.group_sizes`, `fbuf.group_ids` and `fbuf.report` look inside.
        """
        return ()

    @abc.abstractmethod
    def init(self, ring: Ring) -> Index:
        """Return the index of an empty buffer, or raise `ValueError` for a buffer of no use."""

    @abc.abstractmethod
    def add(self, index: Index, ring: Ring, span: Span) -> tuple[Index, jax.Array]:
        """Index the rows just written. Return the fault bits of each, uint32 `[B]`.

        `ring` has these rows already. `span` has their slots, and the priorities that were given.
        """

    @abc.abstractmethod
    def remove(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Never draw these rows again; their flags say so already. No slot repeats."""

    @property
    def can_retire(self) -> bool:
        """Whether `retire` may be called: `fbuf.Limited` needs it.

        A sampler with a window can if it has a `retire` of its own.
        """
        return self.window == 1 or type(self).retire is not Sampler.retire

    def retire(self, index: Index, ring: Ring, slots: jax.Array) -> Index:
        """Never draw windows from these rows again; the rows stay, for other windows to read.

        No slot repeats. Without a window such rows are removed from the index. The ring then counts
        them as removed.
        """
        return self.remove(index, ring, slots)

    @abc.abstractmethod
    def can_sample(self, index: Index, ring: Ring) -> jax.Array:
        """Return whether there is a row to draw. bool scalar."""

    @abc.abstractmethod
    def draw(self, index: Index, ring: Ring, ask: Ask) -> Draw:
        """Draw rows with replacement; if `without_replacement` is True, those of an epoch.

        `ask.step` then says where in the epoch the batch begins. Draws behind the end of the epoch
        are masked.
        """

    @abc.abstractmethod
    def probability(self, index: Index, ring: Ring, slots: jax.Array) -> jax.Array:
        """Return the probability of each stored row in one draw: float32 `[B]`, like `slots`."""

    def update_priority(
        self, index: Index, ring: Ring, slots: jax.Array, given: Given
    ) -> tuple[Index, jax.Array]:
        """Change the priorities of stored rows. Return the fault bits of each, uint32 `[B]`.

        If a slot repeats, its last priority counts. Only called if `keeps_priorities` is True, and
        `given.priority` is not None.
        """
        raise NotImplementedError

    def take_over(
        self, index: Index, ring: Ring, slots: jax.Array, origin: Origin
    ) -> tuple[Index, jax.Array]:
        """Take over from another buffer's index, for rows that were just added from that buffer.

        `fbuf.resize`, `fbuf.extend` and `fbuf.split` call it after `add`. They call it before the
        first `add`, too, without rows (each slot is the capacity), for values of a whole buffer. By
        default nothing is taken over: the ring has all that a plain sampler needs.

        Args:
            index: The index, with the rows in it.
            ring: The ring, with the rows in it.
            slots: int32 `[B]`; where the rows are now.
            origin: The other buffer. If its index is of no use, return the index as it is, and no
                faults.

        Returns:
            The index, and the fault bits of each row, uint32 `[B]`.
        """
        return index, jnp.zeros(slots.shape, jnp.uint32)

    def take_counts(self, index: Index, other: Sampler, old: Index) -> Index:
        """Add the counts of another buffer's index to those for `stats`.

        `fbuf.resize`, `fbuf.extend` and `fbuf.split` call it once, before they add the rows of that
        buffer. Over a mesh, each old shard is added to one new shard. By default nothing is added.
        `other` and `old` are its sampler and its index.
        """
        return index

    def check_field(self, name: str, spec: jax.ShapeDtypeStruct) -> None:
        """Raise `TypeError` if a field has the wrong shape or dtype for the sampler."""

    def written(
        self, index: Index, ring: Ring, slots: jax.Array, fields: dict[str, jax.Array]
    ) -> Index:
        """Return the index after `fbuf.write` has changed some of `fields`, by name, leaves `[B]`.

        No slot repeats.
        """
        raise NotImplementedError

    def note(self, index: Index, ring: Ring, draw: Draw) -> Index:
        """Return the index after a batch was drawn. Only called if `notes_draws`.

        `draw` is the result of the method `draw` for this index. Its mask may be False for more
        draws.
        """
        raise NotImplementedError

    def resized(self, index: Index, old: Index) -> Index:
        """Return the index after `fbuf.resize`; `old` is the index of the old buffer.

        Rows that did not fit are in the old one alone.
        """
        return index

    def epoch_size(self, index: Index, ring: Ring) -> jax.Array:
        """Count the draws of an epoch: int32 scalar. Only called if `without_replacement`."""
        raise NotImplementedError

    def stats(self, index: Index, ring: Ring) -> dict[str, jax.Array]:
        """Return metrics for logging: scalars."""
        return {}
