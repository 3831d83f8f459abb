"""Naming rows by their slots."""

from __future__ import annotations

from typing import Any

import chex
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.dispatch import read_before_write
from fbuf.dispatch.call import operation
from fbuf.state import State
from fbuf.storage.ids import Ids
from fbuf.xla.varying import varying


@operation()
def ids_at(state: State[Any], slots: chex.Array) -> Ids:
    """Name the rows that lie in these slots now.

    It is for programs that know only slots. The ids of a batch are better: they name the drawn
    rows, also when other rows have taken their slots since.

    Args:
        state: The buffer; never consumed.
        slots: int32, of any shape.

    Returns:
        Their ids, shaped like `slots`. A slot outside the buffer, an unwritten slot, and the slot
        of a removed row give an id that names no row (slot -1).

    Raises:
        TypeError: When traced, if `slots` is not int32.
        RuntimeError: If `state` has been consumed.

    Cost: O(B) for B slots.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> fbuf.ids_at(state, jnp.array([0, 2, 3])).slot
        Array([ 0,  2, -1], dtype=int32)
    """
    check.no_list("ids_at", "slots", slots)
    if jnp.result_type(slots) != jnp.int32:
        raise TypeError(
            f"fbuf.ids_at: slots must be int32, got {jnp.result_type(slots)}; cast them with astype"
        )
    ids = state.ring.name_live(varying(jnp.asarray(slots), state.fault))
    read_before_write.note_read(state, ids.slot)
    return ids
