"""Looking up the rows that ids name, for the operations that change them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.dispatch import parse
from fbuf.state import State
from fbuf.storage.faults import Fault, bits_where


def named(
    function: str, state: State[Any], ids: Any, mask: Any
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """Look up the slots that ids name.

    Returns:
        int32 `[B]` slots: the capacity where an id names no row or `mask` leaves it out. Then the
        fault bits of each id, uint32 `[B]`, and the shape of the ids.
    """
    flat, shape = parse.ids(function, ids)
    chosen = parse.mask(function, mask, shape, "ids")
    found = state.ring.find(flat)
    faults = bits_where(found.outside & chosen, Fault.ID_OUT_OF_RANGE)
    faults |= bits_where(found.stale & chosen, Fault.STALE_ID)
    faults |= bits_where(found.foreign & chosen, Fault.FOREIGN_ID)
    slots = jnp.where(found.live & chosen, flat.slot, state.capacity)
    return slots, faults, shape
