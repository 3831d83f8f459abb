"""Looking up the rows that ids name, for the operations that change them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.dispatch import parse
from fbuf.state import State
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ids import Ids, look_up
from fbuf.xla.tie import in_order


def named(
    function: str, state: State[Any], ids: Any, mask: Any
) -> tuple[State[Any], jax.Array, jax.Array, tuple[int, ...]]:
    """Look up the slots that ids name, to change their rows.

    Returns:
        The state, tied to all earlier reads of it. Then int32 `[B]` slots: the capacity where an id
        names no row or `mask` leaves it out. Then the fault bits of each id, uint32 `[B]`, and the
        shape of the ids.
    """
    flat, shape = parse.ids(function, ids)
    # The fault is known once all earlier reads of the buffer are done.
    slot, fault = in_order(flat.slot, state.fault)
    flat, state = Ids(slot, flat.generation), dataclasses.replace(state, fault=fault)
    chosen = parse.mask(function, mask, shape, "ids")
    found = look_up(state.ring, flat)
    faults = bits_where(found.outside & chosen, Fault.ID_OUT_OF_RANGE)
    faults |= bits_where(found.stale & chosen, Fault.STALE_ID)
    faults |= bits_where(found.foreign & chosen, Fault.FOREIGN_ID)
    slots = jnp.where(found.live & chosen, flat.slot, state.capacity)
    return state, slots, faults, shape
