"""Taking rows out."""

from __future__ import annotations

import dataclasses

import chex
import jax.numpy as jnp

from fbuf.door.entry import one_buffer, verb
from fbuf.state import State
from fbuf.storage.faults import collected
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item
from fbuf.verbs.named import named
from fbuf.xla.duplicates import last_of_each
from fbuf.xla.tie import tie


@verb()
def remove(
    state: State[Item], ids: Ids, *, mask: chex.Array | bool | None = None, donate: bool = True
) -> State[Item]:
    """Remove rows: they are never drawn again, and their ids become stale.

    A removed row keeps its slot until the ring comes around and overwrites it.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: `batch.ids`, of any shape. Rows may repeat. Ids that name no row are ignored.
        mask: bool, shaped like `ids`, or one bool for all: which entries to apply. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer without the rows.

    Raises:
        ValueError: When traced, if a shape does not fit, or `ids` names no rows at all.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if `mask` is not bool.
        RuntimeError: If `state` has been consumed.

    Faults:
        ID_OUT_OF_RANGE: A slot is outside the buffer; that entry is skipped.
        STALE_ID: A row has been overwritten, or removed before; that entry is skipped.

    Cost: O(B log N) time, O(B) memory. It sorts more than 1024 ids, and compares fewer in pairs.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(4.0))
        >>> state = fbuf.remove(state, fbuf.sample(state, jax.random.key(0), 1).ids)
        >>> int(fbuf.size(state))
        3
    """
    one_buffer("remove", state)
    slots, faults, _ = named("remove", state, ids, mask)
    slots = jnp.where(last_of_each(slots), slots, state.capacity)
    # The fault is known once all that was asked of the buffer before this has been read.
    slots = tie(slots, state.fault)
    ring = state.ring.remove(slots)
    index = state.sampler.remove(state.index, ring, slots)
    fault = collected(state.fault, faults)
    return dataclasses.replace(state, ring=ring, index=index, fault=fault)
