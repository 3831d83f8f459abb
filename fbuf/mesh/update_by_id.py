"""The way of ids: what is said of rows goes to the shards that have them.

Every device learns all entries, in the order of the batch, and each shard takes its own. So an id
that comes twice, or is stale, means what it means in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.mesh import per_device
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage import words
from fbuf.storage.ids import NO_SLOT, Ids
from fbuf.xla.tie import tie

_NOWHERE = -2
"""A slot outside of every buffer, for an id of a shard that does not exist."""


def flat_ids(function: str, ids: Any) -> tuple[ShardedIds, tuple[int, ...]]:
    """Ids of rows over a mesh, flat, and the shape they came in."""
    if not isinstance(ids, ShardedIds):
        raise TypeError(
            f"fbuf.{function}: ids must be a fbuf.sharded.ShardedIds, such as batch.ids, got "
            f"{type(ids).__name__}"
        )
    plain, shape = parse.ids(function, Ids(ids.slot, ids.generation))
    check.array(function, "ids.shard", ids.shard)
    if jnp.shape(ids.shard) != shape or jnp.result_type(ids.shard) != jnp.int32:
        raise ValueError(
            f"fbuf.{function}: ids.shard must be int32 of shape {shape}, like ids.slot, got "
            f"{check.describe(ids.shard)}; pass the ids on as fbuf.sharded.sample returned them"
        )
    shard = jnp.asarray(ids.shard).reshape(-1)
    return ShardedIds(shard, plain.slot, plain.generation), shape


def to_shards(
    state: ShardedState[Any],
    ids: ShardedIds,
    mask: jax.Array,
    values: Any,
    change: Callable[[State[Any], Ids, Any], State[Any]],
) -> ShardedState[Any]:
    """Change the rows that ids name, wherever they are.

    Args:
        state: The blocks of this device.
        ids: int32 `[m]` each: those that this device has.
        mask: bool `[m]`; which of them are meant.
        values: What goes with each id: a pytree, leaves `[m, ...]`.
        change: Called with a shard, the ids of all devices, of which those of other shards name no
            row, and all values, leaves `[B, ...]`. Returns the shard.
    """
    exists = (ids.shard >= 0) & (ids.shard < state.num_shards)
    # The first shard says of those that nobody has that they are out of range.
    shard = jnp.where(exists, ids.shard, 0)
    slot = jnp.where(exists | (ids.slot == NO_SLOT), ids.slot, _NOWHERE)
    slot = jnp.where(mask, slot, NO_SLOT)
    leaves, tree = jax.tree.flatten((shard, slot, ids.generation, values))
    told = lax.all_gather(words.packed(leaves), state.axis, tiled=True)
    # The faults are known once all that was asked of the buffer before this has been read.
    told = tie(told, state.fault)
    shard, slot, generation, all_values = jax.tree.unflatten(tree, words.unpacked(told, leaves))

    def one(mine: State[Any], number: jax.Array) -> State[Any]:
        own = Ids(jnp.where(shard == number, slot, NO_SLOT), generation)
        return change(mine, own, all_values)

    return per_device.changed(one, state, per_device.shard_numbers(state))
