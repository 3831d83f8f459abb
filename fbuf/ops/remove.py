"""Taking rows out."""

from __future__ import annotations

import dataclasses
from typing import overload

import jax
import jax.numpy as jnp
from jax import lax

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.named import named
from fbuf.samplers.protocol.placing import refuse
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage import marks
from fbuf.storage.episode_order import same_episodes
from fbuf.storage.faults import collected
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item
from fbuf.xla.duplicates import last_of_each

_CHUNK = 1024
"""The rows of episodes to remove at a time."""


@overload
def remove(
    state: State[Item],
    ids: Ids,
    *,
    mask: Array | bool | None = None,
    episodes: bool = False,
    donate: bool = True,
) -> State[Item]: ...
@overload
def remove(
    state: ShardedState[Item],
    ids: ShardedIds,
    *,
    mask: Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]: ...
@operation_of_both(static=("episodes",), checks={"episodes": check.boolean})
def remove(
    state: State[Item],
    ids: Ids,
    *,
    mask: Array | bool | None = None,
    episodes: bool = False,
    donate: bool = True,
) -> State[Item]:
    """Remove rows: they are never drawn again, and their ids become stale.

    A removed row keeps its slot until the ring comes around and overwrites it.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: `batch.ids`, of any shape. Rows may repeat. Ids that name no row are ignored.
        mask: bool, shaped like `ids`, or one bool for all: which entries to apply. None is all.
        episodes: Also remove all other rows of the episodes of these rows; static. Rows that you
            add to an episode later are not removed. Without ends a lane is one episode.
        donate: As for `fbuf.add`.

    Returns:
        The buffer without the rows.

    Raises:
        ValueError: When traced, if a shape does not fit, or if `ids` is empty. Also if the buffer
            was made with `removable=False`.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if `mask` or `episodes` is not
            bool.
        RuntimeError: If `state` has been consumed.

    Faults:
        ID_OUT_OF_RANGE: A slot is outside the buffer; that entry is skipped.
        STALE_ID: A row has been overwritten, or removed before; that entry is skipped.
        FOREIGN_ID: An id is of another buffer, or was drawn before a load; that entry is skipped.

    Cost: O(B log N) time, O(B) memory; with a window of L rows, L times that. It sorts more than
    1024 ids. It compares every pair of fewer ids. By episode it looks at the flags of all rows:
    O(N + R log N) time to remove R rows, O(N) memory.

    Over a mesh: `ids` are as for `fbuf.update_priority`, and there is no `episodes`. It takes one
    `all_gather` of 12 bytes for each id.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(()), capacity=8)
        >>> state = fbuf.add(state, jnp.arange(5.0), terminated=jnp.arange(5) == 2)
        >>> state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([4])))
        >>> int(fbuf.size(state))
        4
        >>> state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([1])), episodes=True)
        >>> int(fbuf.size(state))  # the first episode, of three rows, is gone
        1
    """
    if not state.ring.removable:
        raise ValueError(
            "fbuf.remove: this buffer was made with removable=False, so its rows stay; make one "
            "with fbuf.init(..., removable=True)"
        )
    if episodes:
        refuse("remove(episodes=True)", state.sampler)
    state, slots, faults, _ = named("remove", state, ids, mask)
    slots = jnp.where(last_of_each(slots), slots, state.capacity)
    state = dataclasses.replace(state, fault=collected(state.fault, faults))
    return _without_episodes(state, slots) if episodes else _without(state, slots)


def _without(state: State[Item], slots: jax.Array) -> State[Item]:
    """Remove rows: int32 `[B]` slots of stored rows, or `capacity`, each slot once."""
    ring = marks.remove(state.ring, slots)
    index = state.sampler.remove(state.index, ring, slots)
    return dataclasses.replace(state, ring=ring, index=index)


def _without_episodes(state: State[Item], slots: jax.Array) -> State[Item]:
    """Remove all rows of the episodes of these rows."""
    found = same_episodes(state.ring, slots)
    rank = jnp.cumsum(found, dtype=jnp.int32)
    number = jnp.arange(1, min(_CHUNK, state.capacity) + 1, dtype=jnp.int32)

    def some(carry: tuple[jax.Array, State[Item]]) -> tuple[jax.Array, State[Item]]:
        done, state = carry
        # Numbers behind the last row give `capacity`.
        slots = jnp.searchsorted(rank, done + number).astype(jnp.int32)
        return done + number.size, _without(state, slots)

    def any_left(carry: tuple[jax.Array, State[Item]]) -> jax.Array:
        return carry[0] < rank[-1]

    return lax.while_loop(any_left, some, (rank[-1] * 0, state))[1]
