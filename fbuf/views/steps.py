"""The rows that follow a row in its lane, and those before."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf.storage.ring import DUMMY, ENDS, REMOVED
from fbuf.views.reader import Reader


@dataclasses.dataclass(frozen=True)
class Steps:
    """A row and those after it; all `[B, steps]`.

    Attributes:
        slots: int32, each in range.
        flags: uint8; the flags of the rows. Between the ends of a whole window they are given as 0.
            No such row ends an episode, and none was removed.
        unbroken: bool; the row has been written, and no row up to it was removed. True for masked
            draws of whole windows.
        same_episode: bool; the row is unbroken, and in the same episode as the first one. Likewise.
        before: uint8 `[B]`; the flags in the slot before the first; None unless requested.
    """

    slots: jax.Array
    flags: jax.Array
    unbroken: jax.Array
    same_episode: jax.Array
    before: jax.Array | None


def following(
    reader: Reader, slots: jax.Array, steps: int, over_dummies: bool = False, before: bool = False
) -> Steps:
    """Find the rows at `[B]` slots and the `steps - 1` stored rows after each.

    With `over_dummies` dummies are skipped; without it they count as removed rows. With `before`,
    one read also gets the flags before the first row.
    """
    ring = reader.ring
    if slots is reader.drawn and reader.window >= steps and not over_dummies:
        return _of_whole_windows(reader, slots, steps, before)
    # A dummy follows an end, so at most every second row is a dummy.
    skips = over_dummies and ring.autoreset == "next_step"
    number = jnp.arange(-int(before), 2 * steps if skips else steps, dtype=jnp.int32)[None]
    newer = ring.newer(slots)[:, None]
    all_slots = ring.later(slots[:, None], jnp.minimum(number, newer))
    flags = reader.flags(all_slots)
    flags_before = None
    if before:
        flags_before, number = flags[:, 0], number[:, 1:]
        all_slots, flags = all_slots[:, 1:], flags[:, 1:]
    stored = jnp.broadcast_to(number <= newer, flags.shape)
    if skips:
        real = jnp.cumsum(~(stored & (flags & DUMMY > 0)), axis=1, dtype=jnp.int32)
        wanted = jnp.arange(steps, dtype=jnp.int32)[None, :, None]
        where = jnp.sum(real[:, None] <= wanted, axis=2, dtype=jnp.int32)
        all_slots, flags, stored = (
            jnp.take_along_axis(leaf, where, axis=1) for leaf in (all_slots, flags, stored)
        )
    unbroken = _all_so_far((flags & REMOVED == 0) & stored)
    goes_on = flags & ENDS == 0
    went_on = jnp.concatenate([jnp.ones_like(goes_on[:, :1]), goes_on[:, :-1]], axis=1)
    return Steps(all_slots, flags, unbroken, unbroken & _all_so_far(went_on), flags_before)


def _of_whole_windows(reader: Reader, slots: jax.Array, steps: int, before: bool) -> Steps:
    """Find the steps of drawn rows that many steps of one episode follow; see `following`.

    The sampler knows that all these steps are there, so few flags are read. Masked draws may be of
    rows that are not followed so.
    """
    ring = reader.ring
    all_slots = ring.later(slots[:, None], jnp.arange(steps, dtype=jnp.int32)[None])
    asked = [ring.later(slots, -1)] if before else []
    asked += [all_slots[:, 0]] if steps == 1 else [all_slots[:, 0], all_slots[:, -1]]
    found = reader.flags(jnp.stack(asked, axis=1))
    flags_before, found = (found[:, 0], found[:, 1:]) if before else (None, found)
    between = jnp.zeros((slots.shape[0], max(steps - 2, 0)), found.dtype)
    flags = jnp.concatenate([found[:, :1], between, found[:, 1:]], axis=1)
    always = jnp.ones(flags.shape, jnp.bool_)
    return Steps(all_slots, flags, always, always, flags_before)


def preceding(reader: Reader, slots: jax.Array, most: int) -> jax.Array:
    """Count the rows of the episode before each row at `[B]` slots, at most `most`: int32 `[B]`.

    The count stops behind an end, a removed row or a dummy, and at the oldest row.
    """
    before = jnp.arange(1, most + 1, dtype=jnp.int32)[None]
    older = reader.ring.older(slots)[:, None]
    flags = reader.flags(reader.ring.later(slots[:, None], -jnp.minimum(before, older)))
    cut = (before > older) | (flags & (ENDS | REMOVED) > 0)
    return jnp.min(jnp.where(cut, before - 1, most), axis=1, initial=most)


def _all_so_far(holds: jax.Array) -> jax.Array:
    """Return whether a condition holds up to each step, that step included: `[B, steps]`."""
    number = jnp.arange(holds.shape[1], dtype=jnp.int32)[None]
    first_not = jnp.min(jnp.where(holds, holds.shape[1], number), axis=1)
    return number < first_not[:, None]
