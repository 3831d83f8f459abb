"""Counting how often rows were drawn, in the shards that store them."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.mesh.call import sharded_operation
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.mesh.update_by_id import answered
from fbuf.ops.uses import counted, with_uses
from fbuf.ops.uses import uses as plain_uses


@sharded_operation(plain_uses)
def uses(state: ShardedState[Any], ids: ShardedIds) -> jax.Array:
    """Count how often rows were drawn by `fbuf.sharded.draw`.

    As `fbuf.uses`, but `ids` are as for `fbuf.sharded.update_priority`. The result lies on the mesh
    as `ids` do.

    Raises:
        ValueError: When traced, as `fbuf.uses`.
        TypeError: When traced, if `ids` is not a `fbuf.sharded.ShardedIds`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of 12 bytes for each id, and one `reduce_scatter` of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh, sampler = jax.make_mesh((1,), ("data",)), fbuf.Limited(max_uses=9)
        >>> state = fbuf.sharded.init(jnp.int32(0), 8, mesh=mesh, shards=2, sampler=sampler)
        >>> state = fbuf.sharded.add(state, jnp.arange(2, dtype=jnp.int32))
        >>> state, batch = fbuf.sharded.draw(state, jax.random.key(0), 5)
        >>> bool((fbuf.sharded.uses(state, batch.ids) > 0).all())
        True
    """
    with_uses("sharded.uses", state.blocks)
    return answered("uses", state, ids, counted)
