"""Ids: names of rows, how to make them and how to look them up."""

from __future__ import annotations

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from fbuf._pytree import pytree
from fbuf.checks.uncompared import Uncompared
from fbuf.storage import tags
from fbuf.storage.ring import Ring

ArrayT = TypeVar("ArrayT", default=jax.Array)
"""The arrays of a batch: JAX arrays, or PyTorch tensors after the batch was converted."""

NO_SLOT = -1
"""The slot of an id that names no row, as in the masked part of a sample."""


@pytree(eq=False)
class Ids(Uncompared, Generic[ArrayT]):
    """Names of rows: the slot, and the generation that tells a row from later rows in that slot.

    Attributes:
        slot: int32 in `[0, capacity)`, or -1 for no row. With `num_envs` it is `place * num_envs +
            environment`: rows of one step lie side by side.
        generation: int32: the lap of the ring that wrote the row, counted from a random number of
            the buffer. So an id names no row of another buffer. Compare it for equality only.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.ones(1))
        >>> fbuf.sample(state, jax.random.key(0), 2).ids.slot
        Array([0, 0], dtype=int32)
    """

    slot: ArrayT
    """int32 in `[0, capacity)`, or -1 for no row."""
    generation: ArrayT
    """int32: the lap of the ring that wrote the row, counted from a random number of the buffer."""


def only(ids: Ids, mask: jax.Array) -> Ids:
    """Return the ids, and "no row" where a mask is False."""
    return Ids(
        slot=jnp.where(mask, ids.slot, NO_SLOT), generation=jnp.where(mask, ids.generation, 0)
    )


class Found(NamedTuple):
    """Rows looked up by id: bool arrays shaped like the ids, all False for "no row".

    Attributes:
        live: The row is stored.
        outside: The slot does not exist.
        stale: The row has been overwritten or removed.
        foreign: The id is of another buffer, or of a time before the buffer was loaded.
    """

    live: jax.Array
    outside: jax.Array
    stale: jax.Array
    foreign: jax.Array


def look_up(ring: Ring, ids: Ids) -> Found:
    """Look rows up by id."""
    slot = ids.slot
    inside = (slot >= 0) & (slot < ring.capacity)
    slot = jnp.where(inside, slot, 0)
    now = ring.generation_of(slot)
    same = ring.holds(slot) & (ids.generation == now)
    live = inside & same & ~ring.is_removed(slot)
    # Unsigned: future laps, except the next one, are as far away as another tag.
    late = (now + 1).astype(jnp.uint32) - ids.generation.astype(jnp.uint32)
    own = late <= tags.MOST_LAPS
    return Found(
        live,
        outside=~inside & (ids.slot != NO_SLOT),
        stale=inside & ~live & own,
        foreign=inside & ~own,
    )


def ids_of(ring: Ring, slots: jax.Array, mask: jax.Array) -> Ids:
    """Return the ids of the rows in slots, and "no row" where `mask` is False."""
    return only(Ids(slots, ring.generation_of(slots)), mask)


def live_ids(ring: Ring, slots: jax.Array) -> Ids:
    """Return the ids of the rows in any int32 slots; "no row" for an empty slot or removed row."""
    inside = (slots >= 0) & (slots < ring.capacity)
    slots = jnp.where(inside, slots, 0)
    live = look_up(ring, ids_of(ring, slots, inside)).live
    return ids_of(ring, slots, live)
