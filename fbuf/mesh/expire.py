"""Retiring the rows of policies that are too old, in all shards."""

from __future__ import annotations

from typing import Any

import chex
from jax.sharding import PartitionSpec

from fbuf.mesh import per_device
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.read_before_write import tied
from fbuf.mesh.state import ShardedState
from fbuf.ops.expire import expire as plain_expire
from fbuf.ops.expire import with_versions
from fbuf.state import State
from fbuf.storage.store import Item


@sharded_operation(plain_expire)
def expire(
    state: ShardedState[Item], version: chex.Array | int, *, donate: bool = True
) -> ShardedState[Item]:
    """Retire rows of lower versions in all shards; as `fbuf.expire`.

    The argument `version` is the same in all processes.

    Raises:
        ValueError: As `fbuf.expire`.
        TypeError: As `fbuf.expire`.
        RuntimeError: If `state` has been consumed.

    Cost: that of `fbuf.expire` on each device, and no collective. With several shards a device the
    index is copied, as under `vmap`: make as many shards as devices.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> sampler = fbuf.Limited(version="version")
        >>> item = {"version": jnp.int32(0)}
        >>> state = fbuf.sharded.init(item, 8, mesh=mesh, shards=2, sampler=sampler)
        >>> state = fbuf.sharded.add(state, {"version": jnp.int32([1, 2, 1, 3])})
        >>> state = fbuf.sharded.expire(state, 2)
        >>> batch = fbuf.sharded.sample(state, jax.random.key(0), 32)
        >>> sorted(set(batch.data["version"].tolist()))
        [2, 3]
    """
    state = tied("expire", state)
    with_versions("sharded.expire", state.blocks)

    def run(state: ShardedState[Any], version: Any) -> ShardedState[Any]:
        def one(shard: State[Any]) -> State[Any]:
            return plain_expire(shard, version)

        return per_device.changed(one, state)

    return per_device.on_devices("expire", run, state, (version,), (PartitionSpec(),), state.spec)
