"""Naming the rows around a row over a mesh, in the shard that stores it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.dispatch import read_before_write
from fbuf.mesh import per_device
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.mesh.update_by_id import flat_ids, gathered
from fbuf.ops.neighbours import Steps, around
from fbuf.ops.neighbours import neighbours as plain_neighbours
from fbuf.state import State
from fbuf.storage.ids import NO_SLOT, Ids


@sharded_operation(plain_neighbours)
def neighbours(state: ShardedState[Any], ids: ShardedIds, steps: Steps) -> ShardedIds:
    """Name the rows that are so many steps before or after each row, in its episode.

    As `fbuf.neighbours`, but `ids` are as for `fbuf.sharded.update_priority`. The result, `[B, K]`,
    lies on the mesh as `ids` do.

    Raises:
        ValueError: When traced, as `fbuf.neighbours`.
        TypeError: When traced, as `fbuf.neighbours`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of 12 bytes for each id, and one `reduce_scatter` of 8 bytes for each
    neighbour. In each shard that of `fbuf.neighbours` for all ids.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> state = fbuf.sharded.add(state, jnp.arange(6.0))
        >>> batch = fbuf.sharded.sample(state, jax.random.key(0), 4)
        >>> fbuf.sharded.neighbours(state, batch.ids, range(-1, 2)).slot.shape
        (4, 3)
    """
    flat, shape = flat_ids("neighbours", state, ids)

    def run(state: ShardedState[Any], ids: ShardedIds) -> ShardedIds:
        every = gathered(state, ids)

        def one(mine: State[Any], number: jax.Array) -> Ids:
            own = Ids(jnp.where(every.shard == number, every.slot, NO_SLOT), every.generation)
            return around("sharded.neighbours", mine, own, steps)

        found = per_device.in_shards(one, state, per_device.shard_numbers(state))
        # All shards but one name no row, which then counts as 0.
        slot, generation = (
            lax.psum_scatter(leaf.sum(axis=0, dtype=jnp.int32), state.axis, tiled=True)
            for leaf in (found.slot - NO_SLOT, found.generation)
        )
        slot = slot + NO_SLOT
        return ShardedIds(jnp.where(slot == NO_SLOT, -1, ids.shard[:, None]), slot, generation)

    specs = jax.tree.map(lambda _: state.spec, flat)
    found = per_device.on_devices("neighbours", run, state, (flat,), (specs,), state.spec)
    read_before_write.note_read(state, found.slot)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, len(steps)), found)
