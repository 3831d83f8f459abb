"""Retiring the rows of policies that are too old, in all shards."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from fbuf._arrays import Array
from fbuf.dispatch.read_before_write import tied
from fbuf.mesh import per_device
from fbuf.ops.expire import expire as plain_expire
from fbuf.ops.expire import with_versions
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.store import Item


def expire(state: ShardedState[Item], version: Array | int) -> ShardedState[Item]:
    """Retire rows of lower versions in all shards; see `fbuf.expire`."""
    state = tied("expire", state)
    with_versions("expire", state.blocks)

    def run(state: ShardedState[Any], version: Any) -> ShardedState[Any]:
        def one(shard: State[Any]) -> State[Any]:
            return plain_expire(shard, version)

        return per_device.changed(one, state)

    return per_device.on_devices("expire", run, state, (version,), (PartitionSpec(),), state.spec)
