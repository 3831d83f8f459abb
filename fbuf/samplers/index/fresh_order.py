"""The order of fresh starts: their number, and the oldest of them.

A start is older, the more rows its environment has written since. Those of one age go by the number
of the environment. Where environments step together, that is the order of the slots, beginning at
the head. Where they do not, each lane is in the order of its slots, beginning at its head. The
lanes are then merged. For that the bits of a lane lie side by side.

Unless windows are strict, the first row of an episode may be drawn at once. It is no fresh start
before its window is complete, or the episode has ended. Each lane has at most one such row: the
newest of its starts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.samplers.index import start_index
from fbuf.samplers.index.start_index import StartIndex, StartIndexByLane
from fbuf.samplers.index.starts import int32_sum
from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.ring import Ring
from fbuf.trees import bit_tree
from fbuf.xla.filled import zeros

_NONE = 2**31 - 1
"""The key of no start."""


def empty(ring: Ring) -> StartIndex:
    """Return an index without starts."""
    kind = StartIndexByLane if ring.heads > 1 else StartIndex
    return kind(bit_tree.empty(ring.capacity), zeros((), np.int32))


def count(fresh: StartIndex, ring: Ring, window: Window) -> jax.Array:
    """Count the fresh starts: int32 scalar."""
    assert fresh.total is not None
    begun = _begun(fresh, ring, window)
    return fresh.total if begun is None else fresh.total - int32_sum(begun[1])


def oldest(
    fresh: StartIndex, ring: Ring, window: Window, wanted: jax.Array, ranks: jax.Array
) -> jax.Array:
    """Find fresh starts by their place, oldest first.

    Args:
        fresh: The starts.
        ring: The ring.
        window: The conditions for a row to be a fresh start.
        wanted: bool `[B]`; where it is False, any slot is returned.
        ranks: int32 `[B]`; the places of the wanted starts, each below `B`.
    """
    ranks = jnp.where(wanted, ranks, 0)
    if fresh.by_lane:
        return _oldest_of_lanes(fresh, ring, window, wanted.shape[0])[ranks]
    assert fresh.total is not None
    before = bit_tree.rank(fresh.tree, ring.head)
    begun = None if ring.lanes == 1 else _begun(fresh, ring, window)  # in one lane it is the last
    if begun is not None:
        slots, is_begun = begun
        # A rank behind some of them is higher by their number.
        own = (bit_tree.rank(fresh.tree, slots) - before) % jnp.maximum(fresh.total, 1)
        lanes = jnp.arange(ring.lanes, dtype=jnp.int32)
        own = jnp.sort(jnp.where(is_begun, own, _NONE)) - lanes
        ranks += jnp.searchsorted(own, ranks, side="right", method="scan_unrolled").astype(
            jnp.int32
        )
    ranks = start_index.around(before, ranks, fresh.total)
    position = jnp.arange(wanted.shape[0], dtype=jnp.int32)
    last = jnp.max(jnp.where(wanted, position + 1, 0))
    return bit_tree.select_first(fresh.tree, ranks, last)


def _begun(fresh: StartIndex, ring: Ring, window: Window) -> tuple[jax.Array, jax.Array] | None:
    """Find the starts of incomplete windows: the first rows of open episodes.

    Returns:
        A slot for each lane, int32 `[lanes]` in range, and whether it is one; None if windows are
        always complete.
    """
    if window.strict or window.length == 1:
        return None
    assert ring.open is not None
    rows = ring.open.position
    newest = ring.clamp(ring.newest())
    slots = ring.later(newest, 1 - jnp.clip(rows, 1, window.length))
    is_set = bit_tree.read(fresh.tree, start_index.place(fresh, slots, ring.lanes))
    return slots, is_set & (rows > 0) & (rows < window.length)


def _oldest_of_lanes(fresh: StartIndex, ring: Ring, window: Window, size: int) -> jax.Array:
    """Return the `size` oldest starts of all lanes in order; with fewer, any slots in range follow.

    Every `block`-th start of a lane is looked at first. The `size` oldest of all lanes lie in the
    blocks before the oldest of these, and in one more block of each lane. So no more than
    `size + block * (lanes + 1)` starts are looked up, and not `size` of each lane.
    """
    lanes, length = ring.lanes, ring.lane_length
    block = 1 << (size.bit_length() // 2)
    blocks = -(-size // block)
    lane = jnp.arange(lanes, dtype=jnp.int32)
    edges = jnp.arange(lanes + 1, dtype=jnp.int32) * length
    ranks = bit_tree.rank(fresh.tree, jnp.concatenate([edges, edges[:-1] + ring.head]))
    begin, number, behind = ranks[:lanes], jnp.diff(ranks[: lanes + 1]), ranks[lanes + 1 :]
    begun = _begun(fresh, ring, window)
    there = number if begun is None else number - begun[1].astype(jnp.int32)

    def keys(of: jax.Array, nth: jax.Array) -> jax.Array:
        """Return the sort keys of the n-th oldest starts of lanes, `_NONE` for a missing start."""
        turned = begin[of] + (behind[of] - begin[of] + nth) % jnp.maximum(number[of], 1)
        step = bit_tree.select(fresh.tree, turned.reshape(-1)).reshape(of.shape) % length
        age = (step - ring.head[of]) % length  # of a full lane; the oldest first
        return jnp.where(nth < there[of], age * lanes + of, _NONE)

    last = (jnp.arange(blocks, dtype=jnp.int32) + 1) * block - 1
    of_block = keys(*jnp.broadcast_arrays(lane[:, None], last[None]))  # [lanes, blocks]
    bound = jnp.sort(of_block.reshape(-1))[blocks - 1]
    passed = jnp.sum((of_block <= bound) & (of_block < _NONE), axis=1, dtype=jnp.int32)
    # The blocks before the bound, and the next block of each lane, one after another.
    ends = jnp.cumsum(passed + 1, dtype=jnp.int32)
    chosen = jnp.arange(blocks + lanes, dtype=jnp.int32)
    of = jnp.minimum(
        jnp.searchsorted(ends, chosen, side="right", method="scan_unrolled").astype(jnp.int32),
        lanes - 1,
    )
    which = chosen - (ends - passed - 1)[of]
    nth = which[:, None] * block + jnp.arange(block, dtype=jnp.int32)[None]
    found = keys(*jnp.broadcast_arrays(of[:, None], nth))
    found = jnp.where((chosen < ends[-1])[:, None], found, _NONE)
    found = jnp.sort(found.reshape(-1))[:size]
    found = jnp.where(found < _NONE, found, 0)
    of, age = found % lanes, found // lanes
    return (age + ring.head[of]) % length * lanes + of
