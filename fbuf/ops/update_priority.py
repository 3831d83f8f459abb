"""Changing priorities."""

from __future__ import annotations

import dataclasses
from typing import overload

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.add import no_priorities
from fbuf.ops.named import named
from fbuf.samplers.protocol.sampler import Given
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage.faults import collected
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item


@overload
def update_priority(
    state: State[Item],
    ids: Ids,
    priority: Array,
    *,
    mask: Array | bool | None = None,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> State[Item]: ...
@overload
def update_priority(
    state: ShardedState[Item],
    ids: ShardedIds,
    priority: Array,
    *,
    mask: Array | bool | None = None,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> ShardedState[Item]: ...
@operation_of_both(checks={"alpha": check.scalar})
def update_priority(
    state: State[Item],
    ids: Ids,
    priority: Array,
    *,
    mask: Array | bool | None = None,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> State[Item]:
    """Give rows new priorities, as a rule the sizes of their TD errors.

    The sampler stores `max(priority + eps, floor) ** alpha`.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: `batch.ids`, of any shape. If a row repeats, its last priority counts. Ids that name no
            row, as in the masked part of a batch, are ignored.
        priority: Real, shaped like `ids`, finite and at least 0: the size of the error, without its
            sign.
        mask: bool, shaped like `ids`, or one bool for all: which entries to apply. None is all.
        alpha: A number of at least 0, may be traced. It replaces the sampler's `alpha`.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the new priorities.

    Raises:
        ValueError: When traced, if a shape does not fit, or if the sampler keeps no priorities.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if a dtype does not fit.
        RuntimeError: If `state` has been consumed.

    Faults:
        BAD_PRIORITY: A priority is NaN, infinite, negative or too large to be summed; or a traced
            `alpha` is negative, infinite or NaN, and then every entry.
        ID_OUT_OF_RANGE: A slot is outside the buffer.
        STALE_ID: A row has been overwritten or removed since it was drawn.
        FOREIGN_ID: An id is of another buffer, or was drawn before a load.
        In each case that entry is skipped, and all others are applied.

    Cost: O(B log N) time, O(B) memory.

    Over a mesh: each shard changes its own rows. The `ids` are `fbuf.sharded.ShardedIds`, sharded
    along the axis, and `B` is a multiple of the devices. Inside `shard_map` they are those of this
    device's part of the batch. If a row repeats, its last priority counts, in the order of the
    whole batch. The `alpha` is the same on all devices. An id of a shard that does not exist is out
    of range. It takes one `all_gather` of 16 bytes for each id, and each shard looks at all ids.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(()), capacity=4, sampler=fbuf.Prioritized())
        >>> state = fbuf.add(state, jnp.arange(4.0))
        >>> batch = fbuf.sample(state, jax.random.key(0), 2)
        >>> state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data - 1.0))

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952.
    """
    if not state.sampler.keeps_priorities:
        raise ValueError(no_priorities("update_priority", state))
    state, slots, faults, shape = named("update_priority", state, ids, mask)
    given = parse.priorities("update_priority", priority, shape, "ids").reshape(-1)
    index, bad = state.sampler.update_priority(state.index, state.ring, slots, Given(given, alpha))
    return dataclasses.replace(state, index=index, fault=collected(state.fault, faults | bad))
