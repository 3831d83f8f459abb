"""The shards of a state over a mesh, taken apart: each as a plain buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from fbuf.mesh.state import ShardedState
from fbuf.state import State


def shards_here(state: ShardedState[Any]) -> Iterator[tuple[int, State[Any]]]:
    """The shards that this process writes, one after the other, with their numbers."""
    blocks, tree = jax.tree.flatten(state.blocks)
    # Not of the mesh any more, whose axes may be explicit.
    arrays = [
        {
            part.index[0].start or 0: _of_device(part)
            for part in block.addressable_shards
            if part.replica_id == 0
        }
        for block in blocks
    ]
    each = [spec.shape[0] if spec.shape else 1 for spec in state.leaves]
    count = state.shards_of_device
    firsts = sorted(start // each[0] for start in arrays[0])
    for first in firsts:
        for at in range(count):
            leaves = [
                _part(parts[first * size], at, spec, count)
                for parts, size, spec in zip(arrays, each, state.leaves, strict=True)
            ]
            shard = jax.tree.unflatten(tree, leaves)
            ring = dataclasses.replace(shard.ring, shards=1)
            yield first + at, dataclasses.replace(shard, ring=ring)


def _of_device(part: Any) -> jax.Array:
    """The block of one device, as an array of that device alone."""
    sharding = jax.sharding.SingleDeviceSharding(part.device)
    return jax.make_array_from_single_device_arrays(part.data.shape, sharding, [part.data])


def _part(block: Any, at: int, spec: jax.ShapeDtypeStruct, count: int) -> jax.Array:
    """An array of one shard, of the block of a device."""
    if not spec.shape:
        return block[at]
    return block if count == 1 else block[at * spec.shape[0] : (at + 1) * spec.shape[0]]
