"""The shards of a state over a mesh, taken apart: each as a plain buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

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
    # JAX lays out an array without elements as one block, whole on each device.
    full = next(at for at, block in enumerate(blocks) if block.size)
    firsts = sorted(start // each[full] for start in arrays[full])
    for first in firsts:
        device = arrays[full][first * each[full]].device
        for at in range(count):
            leaves = [
                _part(parts[first * size], at, spec, count)
                if block.size
                else jnp.zeros(spec.shape, spec.dtype, device=device)
                for block, parts, size, spec in zip(blocks, arrays, each, state.leaves, strict=True)
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
