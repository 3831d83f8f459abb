"""Metrics for a log."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.ring import ENDS, REMOVED


@overload
def stats(state: State[Any], *, detailed: bool = False) -> dict[str, jax.Array]: ...
@overload
def stats(state: ShardedState[Any]) -> dict[str, jax.Array]: ...
@operation_of_both(static=("detailed",), checks={"detailed": check.boolean})
def stats(state: State[Any], *, detailed: bool = False) -> dict[str, jax.Array]:
    """Return metrics for a log: cheap scalars.

    Args:
        state: The buffer; never consumed.
        detailed: Also return the metrics that read every row; static.

    Returns:
        A dict of the following metrics, and those of the sampler:

        - `size` and `capacity`, in rows;
        - `fill`, the part of the slots that hold a row, removed rows included;
        - `oldest`, the age of the oldest row, in rows of its environment, that row included;
        - `removed`, the removed rows and dummies that are not overwritten yet;
        - `bytes` of all arrays, as float32;
        - `fault`, the bits of `fbuf.Fault`.

        With a window: `num_starts`, the number of rows that may be drawn. By episode:
        `num_episodes`, the number of episodes with a start. For `Shuffled`: `epoch_size`, the
        number of draws of an epoch. For `Prioritized`: `priority_total`, the sum of all stored
        priorities, and `new_priority`, the priority of a new row. For `Fifo`: `unread`, the number
        of unread rows.

        If `detailed`: `ends`, the number of episodes whose last row is stored. Also
        `effective_sample_size`, the number of rows that would repeat as often if drawn uniformly:
        `1 / sum(p ** 2)` over the probabilities `p` of one draw. 0 if there is nothing to draw.

    Raises:
        TypeError: If `detailed` is not a bool.
        RuntimeError: If `state` has been consumed.

    Cost: O(1); if `detailed`, O(N) time and memory, by episode O(N log N).

    Over a mesh: the metrics are sums over all shards, the same on all devices. But `oldest` is the
    largest value, and `fault` has all bits. The metrics `size`, `capacity` and `removed` are
    float32. If the capacity is 2**31 or more, all counts are. The metric `shards` is the number of
    shards. The largest and the smallest part of all rows in a shard are `largest_share` and
    `smallest_share`. There is no `detailed`. It takes a few collectives of 4 bytes.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))
        >>> {name: float(figure) for name, figure in fbuf.stats(state).items() if name != "bytes"}
        {'capacity': 2.0, 'fault': 0.0, 'fill': 1.0, 'oldest': 2.0, 'removed': 0.0, 'size': 2.0}
        >>> float(fbuf.stats(state, detailed=True)["effective_sample_size"])
        2.0

    References:
        Kish, Survey Sampling, 1965 (the effective sample size).
    """
    sampler, index, ring = state.sampler, state.index, state.ring
    epoch = {"epoch_size": sampler.epoch_size(index, ring)} if sampler.without_replacement else {}
    return {
        "size": ring.live(),
        "capacity": jnp.int32(state.capacity),
        "fill": ring.count().astype(jnp.float32) / state.capacity,
        "oldest": ring.stored.max() // ring.lanes_per_head,
        "removed": ring.gone(),
        "bytes": jnp.float32(sizes.nbytes(state)),
        "fault": state.fault,
        **epoch,
        **sampler.stats(index, ring),
        **(_of_every_row(state) if detailed else {}),
    }


def _of_every_row(state: State[Any]) -> dict[str, jax.Array]:
    """Return the metrics that read every row."""
    ring, slots = state.ring, jnp.arange(state.capacity, dtype=jnp.int32)
    there = ring.holds(slots) & (ring.flags & REMOVED == 0)
    likely = state.sampler.probability(state.index, ring, jnp.where(there, slots, 0))
    squares = jnp.sum(jnp.where(there, likely, 0) ** 2)
    return {
        "ends": jnp.sum(there & (ring.flags & ENDS > 0), dtype=jnp.int32),
        "effective_sample_size": jnp.where(squares > 0, 1 / jnp.where(squares > 0, squares, 1), 0),
    }
