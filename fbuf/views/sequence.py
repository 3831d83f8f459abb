"""The sequence view: steps one after the other, for recurrent agents and world models."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fbuf import _check, _ring
from fbuf._ring import DUMMY, TERMINATED, TRUNCATED, Ring
from fbuf._state import State
from fbuf.views import _fields
from fbuf.views._protocol import Reading
from fbuf.views._steps import check_lane, following


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SequenceSteps:
    """What `fbuf.Sequence` makes of a row. `T` is `burn_in + length + bootstrap`.

    Attributes:
        item: The steps as they were added; leaves `[B, T, ...]`, zeros where nothing is there.
        there: bool `[B, T]`; there is such a step.
        learn: bool `[B, T]`; it is there, and one of the `length` steps to learn from.
        first: bool `[B, T]`; it is known to be the first step of an episode.
        state: The field `state` of the first step alone, leaves `[B, ...]`; None if none is named.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.int32(0), capacity=8), jnp.array([7], jnp.int32))
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.Sequence(length=3))
        >>> batch.data.there
        Array([[ True, False, False]], dtype=bool)
    """

    item: Any
    there: jax.Array
    learn: jax.Array
    first: jax.Array
    state: Any


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Read the steps that follow each drawn row, itself included.

    `Sample.terminated` and `.truncated` are `[B, T]`, False where nothing is there.

    Attributes:
        length: How many steps to learn from, at least 1.
        burn_in: How many before them only warm up a recurrent state.
        bootstrap: How many behind them are only there for targets.
        boundary: `"stop"`: every sequence must be whole, which takes a sampler with `window` of at
            least `burn_in + length + bootstrap`. `"pad"`: behind the end of an episode, and behind
            the newest row, nothing is there. `"cross"`: sequences run on into the next episode,
            over the dummy between them, as far as the newest row or a row that was removed; reset
            where `first` says.
        state: The name of a field to read at the first step only, such as a stored recurrent state;
            among the items its steps are read all the same, unless `fields` leaves it out.
        fields: As for `fbuf.Item`: which fields of the steps to gather.

    The drawn row is the first step of all, so that of an episode's first `burn_in` steps none is
    learned from, as in R2D2, unless with `"cross"` a sequence comes from the episode before. Where
    nothing is left to learn from (`learn` is False throughout: near the newest row, with `"pad"`
    and `"cross"`), leave the priority as it is: `mask=learn.any(axis=1)` for
    `fbuf.update_priority`. A target needs the step after: of a step that did not terminate there is
    one if `there` says so for the next, and this one was not truncated.

    Cost: O(B T) reads.

    Raises:
        ValueError: If an argument is out of its range; when traced, if `boundary="stop"` and the
            sampler's window is shorter, or the items have no such field.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Uniform(window=3))
        >>> state = fbuf.add(state, jnp.array([7, 8, 9], jnp.int32))
        >>> view = fbuf.Sequence(length=2, burn_in=1, boundary="stop")
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=view)
        >>> batch.data.item, batch.data.learn
        (Array([[7, 8, 9]], dtype=int32), Array([[False,  True,  True]], dtype=bool))

    References:
        Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning,
        ICLR 2019 (burn-in, stored state).
    """

    length: int
    burn_in: int = 0
    bootstrap: int = 0
    boundary: Literal["stop", "pad", "cross"] = "pad"
    state: str | None = None
    fields: _fields.Fields = None

    def __post_init__(self) -> None:
        _check.positive_int("Sequence", "length", self.length, 2**16)
        _fields.check("Sequence", self.fields)
        for name in ("burn_in", "bootstrap"):
            if getattr(self, name) != 0:
                _check.positive_int("Sequence", name, getattr(self, name), 2**16)
        if self.boundary not in ("stop", "pad", "cross"):
            raise ValueError(
                f"fbuf.Sequence: boundary must be 'stop', 'pad' or 'cross', got {self.boundary!r}"
            )

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Read the steps, and say which of them are there."""
        ring, total = state.ring, self.burn_in + self.length + self.bootstrap
        check_lane("Sequence", "burn_in + length + bootstrap are", total, ring)
        if self.boundary == "stop" and getattr(state.sampler, "window", 1) < total:
            raise ValueError(
                f"fbuf.Sequence: boundary='stop' takes a sampler that draws only rows from which "
                f"all {total} steps are there; make the buffer with window={total}, or take "
                "boundary='pad'"
            )
        crosses = self.boundary == "cross"
        steps = following(ring, slots, total, over_dummies=crosses, before=True)
        assert steps.before is not None
        there = steps.there if crosses else steps.same
        number = jnp.arange(total, dtype=jnp.int32)
        learn = there & (number >= self.burn_in) & (number < self.burn_in + self.length)
        ends = steps.flags & (TERMINATED | TRUNCATED) > 0
        begins = _begins(ring, slots, steps.before)
        first = jnp.concatenate([begins[:, None], ends[:, :-1]], axis=1) & there
        anchor = None
        if self.state is not None:
            anchor = _fields.read("Sequence", "state", state.storage, slots, self.state)
        item = jax.tree.map(
            lambda leaf: jnp.where(
                there.reshape(*there.shape, *(1,) * (leaf.ndim - 2)), leaf, jnp.zeros_like(leaf)
            ),
            _fields.rows("Sequence", state.storage, steps.slots, self.fields),
        )
        flags = jnp.where(there, steps.flags, 0)
        return Reading(SequenceSteps(item, there, learn, first, anchor), flags, steps.before)


def _begins(ring: Ring, slots: jax.Array, before: jax.Array) -> jax.Array:
    """Whether rows are known to be the first of an episode, by the flags before: bool `[B]`."""
    after_end = before & (TERMINATED | TRUNCATED | DUMMY) > 0
    # Before the oldest row there is none, or none any more.
    return jnp.where(_ring.older(ring, slots) > 0, after_end, ~_ring.full(ring, slots))
