"""The rows that follow a row in its lane."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf import _ring, _rows
from fbuf._ring import REMOVED, TERMINATED, TRUNCATED, Ring


@dataclasses.dataclass(frozen=True)
class Steps:
    """A row and those after it; all `[B, steps]`.

    Attributes:
        slots: int32, each in range.
        flags: uint8; the flags of the rows.
        there: bool; the row has been written, is not removed, and none before it was.
        same: bool; besides, it belongs to the same episode as the first.
    """

    slots: jax.Array
    flags: jax.Array
    there: jax.Array
    same: jax.Array


def following(ring: Ring, slots: jax.Array, steps: int) -> Steps:
    """The rows at `[B]` slots and the `steps - 1` after each, as far as they are there."""
    number = jnp.arange(steps, dtype=jnp.int32)
    newer = _ring.newer(ring, slots)[:, None]
    all_slots = _ring.later(ring, slots[:, None], jnp.minimum(number, newer))
    flags = _rows.read(ring.flags, all_slots.reshape(-1)).reshape(all_slots.shape)
    there = _all_so_far((flags & REMOVED == 0) & (number <= newer))
    goes_on = flags & (TERMINATED | TRUNCATED) == 0
    before = jnp.concatenate([jnp.ones_like(goes_on[:, :1]), goes_on[:, :-1]], axis=1)
    return Steps(all_slots, flags, there, there & _all_so_far(before))


def _all_so_far(holds: jax.Array) -> jax.Array:
    """Whether something holds for each step and all before it, `[B, steps]`."""
    number = jnp.arange(holds.shape[1], dtype=jnp.int32)
    first_not = jnp.min(jnp.where(holds, holds.shape[1], number), axis=1)
    return number < first_not[:, None]
