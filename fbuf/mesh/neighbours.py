"""Naming the rows around a row over a mesh, in the shard that stores it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.mesh.call import sharded_operation
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.mesh.update_by_id import answered
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

    def ask(shard: State[Any], own: Ids) -> tuple[jax.Array, jax.Array]:
        found = around("sharded.neighbours", shard, own, steps)
        return found.slot - NO_SLOT, found.generation

    slot, generation = answered("neighbours", state, ids, ask)
    slot = slot + NO_SLOT
    shard = jnp.where(slot == NO_SLOT, -1, jnp.asarray(ids.shard)[..., None])
    return ShardedIds(shard, slot, generation)
