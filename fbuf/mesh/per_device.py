"""Running code on each device of a mesh, and in each shard of a device.

A function over a mesh is written for one device, in plain code on the blocks of that device. Called
from outside it runs on all devices; called inside the user's own `shard_map` it runs as it is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf.sharded_state import ShardedState
from fbuf.state import State


def is_inside(state: ShardedState[Any]) -> bool:
    """Tell whether the trace is inside `shard_map` over the axis of the state."""
    return state.axis in jax.sharding.get_abstract_mesh().manual_axes


def refuse_set_mesh(function: str) -> None:
    """Refuse to handle shards one by one inside `jax.set_mesh`."""
    if not jax.sharding.get_abstract_mesh().empty:
        raise RuntimeError(
            f"fbuf.{function}: this is inside jax.set_mesh (or shard_map), where JAX computes on "
            "that mesh alone, and not on one device after the other; call it outside"
        )


def on_devices(
    function: str,
    run: Callable[..., Any],
    state: ShardedState[Any],
    args: tuple[Any, ...] = (),
    specs: tuple[Any, ...] = (),
    out: Any = PartitionSpec(),
) -> Any:
    """Run a function on each device of the mesh of a state.

    Args:
        function: The called function, for errors.
        run: Called with the state and the arguments, blocks of one device each.
        state: The buffer.
        args: More arguments.
        specs: The layout of each of these on the mesh.
        out: The layout of the result; by default it is the same on all devices.
    """
    if is_inside(state):
        room = state.fault.shape
        if room != (state.shards_of_device,):
            raise ValueError(
                f"fbuf.{function}: inside shard_map the state must be the blocks of one "
                f"device, with {state.shards_of_device} of {state.num_shards} shards, but its "
                f"fault bits are of shape {room}; give shard_map "
                "in_specs=fbuf.sharded.specs(state)"
            )
        return run(state, *args)
    args = tuple(map(functools.partial(_placed, state), args, specs))
    on_each = jax.shard_map(run, mesh=state.mesh, in_specs=(state.spec, *specs), out_specs=out)
    return on_each(state, *args)


def in_shards(run: Callable[..., Any], state: ShardedState[Any], *args: Any) -> Any:
    """Run a function in each shard of this device.

    Args:
        run: Called with a shard, a plain `State`, and with its part of each argument. A pytree.
        state: The blocks of this device.
        args: Pytrees, leaves `[shards_of_device, ...]`.

    Returns:
        The results, leaves `[shards_of_device, ...]`.
    """
    results = _run(run, state, args)
    if state.shards_of_device > 1:
        return results
    return jax.tree.map(lambda leaf: leaf[None], results)


def changed(
    run: Callable[..., State[Any]], state: ShardedState[Any], *args: Any
) -> ShardedState[Any]:
    """Change each shard of this device by a function that returns the shard; see `in_shards`."""
    leaves, tree = jax.tree.flatten(_run(run, state, args))
    before = jax.tree.leaves(state.blocks)
    blocks = [leaf.reshape(block.shape) for leaf, block in zip(leaves, before, strict=True)]
    return dataclasses.replace(state, blocks=jax.tree.unflatten(tree, blocks))


def _run(run: Callable[..., Any], state: ShardedState[Any], args: tuple[Any, ...]) -> Any:
    """Run a function under `vmap` on several shards, or directly on a single one."""
    if state.shards_of_device > 1:
        return jax.vmap(run)(shards_of(state), *args)
    # `vmap` would take longer.
    return run(shards_of(state), *jax.tree.map(lambda leaf: leaf[0], args))


def other_axes(state: ShardedState[Any]) -> tuple[str, ...]:
    """Return the mesh axes along which the traced code has copies of the buffer."""
    seen = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(
        name
        for name in state.mesh.axis_names
        if name != state.axis and name in seen and state.mesh.shape[name] > 1
    )


def device_number(state: ShardedState[Any]) -> jax.Array:
    """Return the number of this device along the axis."""
    return lax.axis_index(state.axis)


def shard_numbers(state: ShardedState[Any]) -> jax.Array:
    """Return the numbers of the shards of this device: int32 `[shards_of_device]`."""
    count = state.shards_of_device
    return device_number(state) * count + jnp.arange(count, dtype=jnp.int32)


def along(state: ShardedState[Any], tree: Any, axis: int = 0) -> Any:
    """Return the layout of arrays with an entry for each environment, or each draw.

    Scalars are the same on all devices. None stays None.
    """
    split = PartitionSpec(*(None,) * axis, state.axis)
    return jax.tree.map(lambda leaf: split if jnp.ndim(leaf) > axis else PartitionSpec(), tree)


def by_shard(state: ShardedState[Any], tree: Any, axis: int = 0) -> Any:
    """Divide arrays of one device among its shards: leaves `[shards_of_device, ...]`."""
    count = state.shards_of_device

    def split(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if leaf.ndim <= axis:
            return jnp.broadcast_to(leaf, (count, *leaf.shape))
        each = leaf.shape[axis] // count
        parts = leaf.reshape(*leaf.shape[:axis], count, each, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    return jax.tree.map(split, tree)


def for_all(state: ShardedState[Any], tree: Any) -> Any:
    """Repeat arrays for each shard of this device: leaves `[shards_of_device, ...]`."""
    count = state.shards_of_device
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def _placed(state: ShardedState[Any], tree: Any, spec: Any) -> Any:
    """Move arrays for `shard_map`, which moves no array itself under explicit axes."""
    explicit = jax.sharding.AxisType.Explicit in state.mesh.axis_types
    if not explicit or not jax.tree.leaves(tree):
        return tree
    if isinstance(spec, PartitionSpec):
        spec = jax.tree.map(lambda _: spec, tree)
    return jax.tree.map(
        lambda leaf, spec: jax.reshard(leaf, jax.NamedSharding(state.mesh, spec)), tree, spec
    )


def shards_of(state: ShardedState[Any]) -> State[Any]:
    """Return the shards of this device: a single buffer, or a batch of buffers."""
    count = state.shards_of_device

    def apart(block: jax.Array, one: jax.ShapeDtypeStruct) -> jax.Array:
        if count > 1 or not one.shape:
            return block.reshape((count, *one.shape) if count > 1 else ())
        return block

    blocks, tree = jax.tree.flatten(state.blocks)
    return jax.tree.unflatten(tree, list(map(apart, blocks, state.leaves)))
