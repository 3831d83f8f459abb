"""Splitting a state over a mesh into plain buffers, one a shard, and joining them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.xla.place import allocating


def shards_here(state: ShardedState[Any]) -> Iterator[tuple[int, State[Any]]]:
    """Yield the shards that this process writes, one after the other, with their numbers."""
    blocks, tree = jax.tree.flatten(state.blocks)
    # The arrays leave the mesh, as its axes may be explicit.
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
    # JAX replicates an array without elements on all devices.
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
            yield first + at, _one_of(jax.tree.unflatten(tree, leaves), 1)


def assembled(
    mesh: Mesh, axis: str, shards: int, make: Callable[[int], State[Any]]
) -> ShardedState[Any]:
    """Make the shards on the devices of this process, and join all shards into one state.

    Args:
        mesh: The mesh.
        axis: The axis along which the shards lie.
        shards: The number of all shards.
        make: Called with the number of a shard, inside `jax.default_device`. It returns a plain
            buffer.
    """
    count = shards // mesh.shape[axis]
    along = mesh.axis_names.index(axis)
    placed: list[list[jax.Array]] = []
    one: Any = None
    made: dict[int, State[Any]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        if device.process_index != jax.process_index():
            continue
        first = place[along] * count
        if first not in made:  # along other axes, devices have copies
            with jax.default_device(device), allocating():
                parts = [_one_of(make(first + at), shards) for at in range(count)]
                one = jax.eval_shape(lambda state: state, parts[0])
                made[first] = jax.tree.map(_joined, *parts)
        placed.append(jax.tree.leaves(jax.device_put(made[first], device)))
    specs = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one))
    sharding = jax.NamedSharding(mesh, jax.P(axis))
    blocks = [
        jax.make_array_from_single_device_arrays(
            (shards * (spec.shape[0] if spec.shape else 1), *spec.shape[1:]), sharding, list(parts)
        )
        for spec, parts in zip(specs, zip(*placed, strict=True), strict=True)
    ]
    tree = jax.tree.structure(one)
    return ShardedState(jax.tree.unflatten(tree, blocks), mesh, axis, shards, specs)


def _one_of(shard: State[Any], shards: int) -> State[Any]:
    """Return a plain buffer as one of several shards."""
    return dataclasses.replace(shard, ring=dataclasses.replace(shard.ring, shards=shards))


def _of_device(part: Any) -> jax.Array:
    """Return the block of one device, as an array of that device alone."""
    sharding = jax.sharding.SingleDeviceSharding(part.device)
    return jax.make_array_from_single_device_arrays(part.data.shape, sharding, [part.data])


def _part(block: Any, at: int, spec: jax.ShapeDtypeStruct, count: int) -> jax.Array:
    """Return an array of one shard, from the block of a device."""
    if not spec.shape:
        return block[at]
    return block if count == 1 else block[at * spec.shape[0] : (at + 1) * spec.shape[0]]


def _joined(*leaves: jax.Array) -> jax.Array:
    """Join the arrays of all shards of a device."""
    if len(leaves) == 1 and leaves[0].ndim:
        return leaves[0]
    return jnp.concatenate([jnp.atleast_1d(leaf) for leaf in leaves])
