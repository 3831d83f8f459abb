"""The sequence view: consecutive steps, for recurrent agents and world models."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Literal

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.storage.ring import CUT, ENDS, NEXT_BEGINS, Ring
from fbuf.storage.store import Item
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted
from fbuf.views.steps import following


@pytree
class SequenceSteps(Generic[Item, ArrayT]):
    """The data of `fbuf.Sequence`. `T` is `burn_in + length + bootstrap`.

    Attributes:
        item: The steps as you added them; leaves `[B, T, ...]`, zeros where `valid` is False.
        valid: bool `[B, T]`: there is such a step.
        loss_mask: bool `[B, T]`: the step is valid, and one of the `length` steps for the loss.
        is_first: bool `[B, T]`: the step is known to be the first of an episode. With
            `boundary="cross"` also the first step behind an end, whether or not its episode began
            there.
        state: The field `state` of the first step only, leaves `[B, ...]`; None if you name none.
        next_observation: The next observation of each step: a tree like the field `next_of`, leaves
            `[B, T, ...]`, zeros where `valid` is False. None if you name no `next_of`.
        time_major: Whether time is the first axis; static.

    With `time_major=True` all but `state` are `[T, B, ...]`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.int32(0), capacity=8), jnp.array([7], jnp.int32))
        >>> view = fbuf.Sequence(length=3, boundary="pad")
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=view)
        >>> batch.data.valid
        Array([[ True, False, False]], dtype=bool)
    """

    __repr__ = shown.batch_repr

    item: Item
    """The steps as you added them."""
    valid: ArrayT
    """bool `[B, T]`: there is such a step."""
    loss_mask: ArrayT
    """bool `[B, T]`: the step is valid, and one of the `length` steps for the loss."""
    is_first: ArrayT
    """bool `[B, T]`: the step is known to be the first of an episode."""
    state: Any
    """The field `state` of the first step only, leaves `[B, ...]`."""
    next_observation: Any = None
    """The next observation of each step."""
    time_major: bool = dataclasses.field(default=False, metadata={"static": True})
    """Whether time is the first axis."""


@dataclasses.dataclass(frozen=True)
class Sequence(View[SequenceSteps[Any]]):
    """Read the steps that follow each drawn row, counting the row itself.

    `Sample.terminated` and `.truncated` are `[B, T]`, and False where `valid` is False.

    Attributes:
        length: The number of steps for the loss, at least 1.
        burn_in: The number of steps before them that only warm up a recurrent state.
        bootstrap: The number of steps after them that only serve for targets.
        boundary: The behaviour at the end of an episode. With `"stop"` no sequence reaches an end:
            the sampler's `window` must be at least `burn_in + length + bootstrap`. With `"pad"`,
            steps after the end, and after the newest row, are not valid. With `"cross"` the
            sequence continues in the next episode, over the dummy between them. It ends at the
            newest row or before a removed row. Reset your recurrent state where `is_first` is True.
            `"pad"` and `"cross"` need a sampler with a shorter window, because whole windows reach
            no end.
        state: The name of a field to read at the first step only, such as a stored recurrent state.
            The item has it for all steps, too, unless `fields` leaves it out.
        next_of: The name of the observation, as for `fbuf.init`. The view then reads the next
            observation of each step, also at an end and at the newest row. A sequence with a lost
            next observation is masked, as by `fbuf.Transition`. None reads no next observations.
        time_major: Return `[T, B, ...]` instead of `[B, T, ...]`, as recurrent networks take it.
        fields: As for `fbuf.Item`: the fields of the steps to gather.

    The burn-in begins at the drawn row. So the loss leaves out the first `burn_in` steps of an
    episode, as in R2D2, unless a sequence crosses into it from the episode before. Near the newest
    row, with `"pad"` and `"cross"`, `loss_mask` can be False throughout. Leave the priority of such
    a row as it is, with `mask=loss_mask.any(axis=1)` for `fbuf.update_priority`. `fbuf.targets` has
    targets of such steps, and says which are known.

    Cost: O(B T) reads.

    Raises:
        ValueError: If an argument is out of range. When traced, if the sampler's window does not
            fit `boundary`, or if the items have no such field. Also if the buffer was not made with
            this `next_of`.
        TypeError: If an argument has another type.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Uniform(window=3))
        >>> state = fbuf.add(state, jnp.array([7, 8, 9], jnp.int32))
        >>> view = fbuf.Sequence(length=2, burn_in=1)
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=view)
        >>> batch.data.item, batch.data.loss_mask
        (Array([[7, 8, 9]], dtype=int32), Array([[False,  True,  True]], dtype=bool))

    References:
        Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning,
        ICLR 2019 (burn-in, stored state).
    """

    length: int
    _: dataclasses.KW_ONLY
    burn_in: int = 0
    bootstrap: int = 0
    boundary: Literal["stop", "pad", "cross"] = "stop"
    state: str | None = None
    next_of: str | None = None
    time_major: bool = False
    fields: Fields = None

    def __post_init__(self) -> None:
        check.integer("Sequence", "length", self.length, check.LONGEST)
        check.integer("Sequence", "burn_in", self.burn_in, check.LONGEST, smallest=0)
        check.integer("Sequence", "bootstrap", self.bootstrap, check.LONGEST, smallest=0)
        check.choice("Sequence", "boundary", self.boundary, ("stop", "pad", "cross"))
        check.boolean("Sequence", "time_major", self.time_major)
        check.name_or_none("Sequence", "state", self.state)
        check.name_or_none("Sequence", "next_of", self.next_of)
        check.names("Sequence", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the steps, and mark the valid ones."""
        ring, total = reader.ring, self.burn_in + self.length + self.bootstrap
        reader.check_lane("burn_in + length + bootstrap are", total)
        self._check_window(reader, total)
        crosses = self.boundary == "cross"
        steps = following(reader, slots, total, over_dummies=crosses, before=True)
        assert steps.before is not None
        valid = steps.unbroken if crosses else steps.same_episode
        if reader.mask is not None:
            valid &= reader.mask[:, None]
        wanted: dict[str, Wanted] = {}
        known = None
        if self.next_of is not None:
            rows = steps.slots.reshape(-1), steps.flags.reshape(-1)
            wanted["next"], found = reader.next_observation(*rows, self.next_of)
            known = jnp.all(found.reshape(valid.shape) | ~valid, axis=1)
            valid &= known[:, None]
        wanted["steps"] = reader.rows(steps.slots, self.fields, valid)
        number = jnp.arange(total, dtype=jnp.int32)[None]
        loss_mask = valid & (number >= self.burn_in) & (number < self.burn_in + self.length)
        ends = steps.flags & ENDS > 0
        begins = _begins(ring, slots, steps.before, steps.flags[:, 0])
        is_first = jnp.concatenate([begins[:, None], ends[:, :-1]], axis=1) & valid
        if self.state is not None:
            wanted["state"] = reader.field(slots, self.state, "state", valid[:, 0])
        flags = jnp.where(valid, steps.flags, 0)
        return Request(wanted, (valid, loss_mask, is_first, flags, known))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put the rows in their places; next observations are zeros where a step is not valid."""
        valid, loss_mask, is_first, flags, known = seen
        by_step = lambda leaf: select(valid, leaf.reshape(*valid.shape, *leaf.shape[1:]))
        led_to = jax.tree.map(by_step, rows.get("next"))
        data = SequenceSteps(
            rows["steps"], valid, loss_mask, is_first, None, led_to, self.time_major
        )
        if self.time_major:
            data = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), data)
        if self.state is not None:
            data = dataclasses.replace(data, state=rows["state"])
        return Reading(data, flags, known)

    def _check_window(self, reader: Reader, total: int) -> None:
        """Refuse a sampler whose windows do not suit the boundary."""
        window = reader.window
        if self.boundary == "stop" and window < total <= reader.sampler_window:
            raise ValueError(
                "fbuf.Sequence: boundary='stop' needs whole windows, but with strict=False the "
                "sampler draws shorter episodes, too; use boundary='pad', or strict=True"
            )
        if self.boundary == "stop" and window < total:
            raise ValueError(
                f"fbuf.Sequence: boundary='stop' needs whole windows of {total} steps, but the "
                f"sampler's window is {window}; make the buffer with window={total}, or use "
                "boundary='pad' or 'cross'"
            )
        if self.boundary != "stop" and window >= total > 1:
            raise ValueError(
                f"fbuf.Sequence: boundary={self.boundary!r} takes a sampler with a window shorter "
                f"than the {total} steps, but its window is {window}. So it draws only whole "
                "windows: no sequence reaches past an end, and the steps of shorter episodes are "
                "never drawn. Take boundary='stop', or make the buffer with window=1"
            )


def _begins(ring: Ring, slots: jax.Array, before: jax.Array, flags: jax.Array) -> jax.Array:
    """Return whether rows are known to be the first of an episode, by their flags: bool `[B]`."""
    after_end = before & NEXT_BEGINS > 0
    # Before the oldest row none was written, or it is gone. `Ring.begin_is_gone` takes longer.
    begins = jnp.where(ring.older(slots) > 0, after_end, ~ring.full(slots))
    return begins & (flags & CUT == 0)
