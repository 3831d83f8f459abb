"""A state over a mesh, put together from shards that lie on its devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fbuf.mesh.state import ShardedState
from fbuf.state import State


def assembled(
    mesh: Mesh, axis: str, shards: int, make: Callable[[int], State[Any]]
) -> ShardedState[Any]:
    """Make the shards of the devices of this process, each where it belongs, and one state of all.

    Args:
        mesh: The mesh.
        axis: The axis along which the shards lie.
        shards: How many there are in all.
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
        if first not in made:  # along other axes every device has a copy
            with jax.default_device(device):
                parts = [_of(make(first + at), shards) for at in range(count)]
                one = jax.eval_shape(lambda state: state, parts[0])
                made[first] = jax.tree.map(_joined, *parts)
        placed.append(jax.tree.leaves(jax.device_put(made[first], device)))
    specs = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one))
    sharding = jax.NamedSharding(mesh, jax.P(axis))

    def whole(spec: jax.ShapeDtypeStruct, parts: Sequence[jax.Array]) -> jax.Array:
        shape = (shards * (spec.shape[0] if spec.shape else 1), *spec.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, list(parts))

    blocks = list(map(whole, specs, zip(*placed, strict=True)))
    tree = jax.tree.structure(one)
    return ShardedState(jax.tree.unflatten(tree, blocks), mesh, axis, shards, specs)


def _of(shard: State[Any], shards: int) -> State[Any]:
    """A plain buffer as one of several."""
    return dataclasses.replace(shard, ring=dataclasses.replace(shard.ring, shards=shards))


def _joined(*leaves: jax.Array) -> jax.Array:
    """The arrays of all shards of a device, as one."""
    if len(leaves) == 1 and leaves[0].ndim:
        return leaves[0]
    return jnp.concatenate([jnp.atleast_1d(leaf) for leaf in leaves])
