"""Changing rows by their ids, in the shards that store them.

Every device learns all entries, in the order of the batch, and each shard takes its own. So an id
that comes twice, or is stale, means the same as in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.mesh import per_device
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.read_before_write import tied
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.ops.add import no_priorities
from fbuf.ops.remove import remove as plain_remove
from fbuf.ops.update_priority import update_priority as plain_update
from fbuf.ops.write import parsed_fields, with_fields
from fbuf.ops.write import write as plain_write
from fbuf.state import State
from fbuf.storage import words
from fbuf.storage.ids import NO_SLOT, Ids
from fbuf.storage.store import Item
from fbuf.xla.tie import tie

_NOWHERE = -2
"""A slot outside of every buffer, for an id of a shard that does not exist."""

_Change = Callable[[State[Any], Ids, Any, Any], State[Any]]
"""A function of a shard, the ids and the values of all devices, and a value for all ids."""


@sharded_operation(plain_update)
def update_priority(
    state: ShardedState[Item],
    ids: ShardedIds,
    priority: chex.Array,
    *,
    mask: chex.Array | bool | None = None,
    alpha: chex.Array | float | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Set the priorities of rows, in the shards that store them.

    As `fbuf.update_priority`, but `ids` is `batch.ids`, `[B]`, sharded along the axis, where `B` is
    a multiple of the devices. Inside `shard_map` it has the ids of this device's part of the batch.
    If a row repeats, its last priority counts, in the order of the whole batch. The argument
    `alpha` is the same on all devices. An id of a shard that does not exist is out of range.

    Raises:
        ValueError: When traced, as `fbuf.update_priority`.
        TypeError: When traced, as `fbuf.update_priority`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of 16 bytes for each id, and in each shard O(B log N) time.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> sampler = fbuf.Prioritized()
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2, sampler=sampler)
        >>> state = fbuf.sharded.add(state, jnp.arange(6.0))
        >>> batch = fbuf.sharded.sample(state, jax.random.key(0), 4)
        >>> state = fbuf.sharded.update_priority(state, batch.ids, jnp.abs(batch.data - 1.0))
    """
    state = tied("update_priority", state, ids)
    if not state.blocks.sampler.keeps_priorities:
        raise ValueError(no_priorities("sharded.update_priority", state.blocks))
    parsed = lambda name, shape: parse.priorities(name, priority, shape, "ids").reshape(-1)
    change = lambda shard, ids, values, alpha: plain_update(shard, ids, values, alpha=alpha)
    return _changed("update_priority", state, ids, mask, parsed, change, alpha)


@sharded_operation(plain_write)
def write(
    state: ShardedState[Item],
    ids: ShardedIds,
    fields: Mapping[str, Any],
    *,
    mask: chex.Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Change fields of rows, in the shards that store them.

    As `fbuf.write`, but `ids` are as for `fbuf.sharded.update_priority`, and the values of `fields`
    are `[B, ...]`, like the ids.

    Raises:
        ValueError: When traced, as `fbuf.write`.
        TypeError: When traced, as `fbuf.write`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of the ids and the fields: every device receives all of them.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> item = {"x": jnp.zeros(()), "value": jnp.zeros(())}
        >>> state = fbuf.sharded.init(item, 8, mesh=mesh, shards=2)
        >>> state = fbuf.sharded.add(state, {"x": jnp.arange(6.0), "value": jnp.zeros(6)})
        >>> batch = fbuf.sharded.sample(state, jax.random.key(0), 4)
        >>> state = fbuf.sharded.write(state, batch.ids, {"value": batch.data["x"]})
    """
    state = tied("write", state, ids)
    parsed = lambda name, shape: parsed_fields(name, state.shard, fields, shape)

    def change(shard: State[Item], ids: Ids, values: dict[int, jax.Array], _: Any) -> State[Item]:
        return with_fields(shard, ids, None, values)

    return _changed("write", state, ids, mask, parsed, change)


@sharded_operation()
def remove(
    state: ShardedState[Item],
    ids: ShardedIds,
    *,
    mask: chex.Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Remove rows, in the shards that store them.

    As `fbuf.remove` without `episodes`, but `ids` are as for `fbuf.sharded.update_priority`.

    Raises:
        ValueError: When traced, as `fbuf.remove`.
        TypeError: When traced, as `fbuf.remove`.
        RuntimeError: If `state` has been consumed.

    Cost: one `all_gather` of 12 bytes for each id, and in each shard that of `fbuf.remove`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> state = fbuf.sharded.add(state, jnp.arange(6.0))
        >>> batch = fbuf.sharded.sample(state, jax.random.key(0), 1)
        >>> int(fbuf.sharded.size(fbuf.sharded.remove(state, batch.ids)))
        5
    """
    state = tied("remove", state, ids)
    change = lambda shard, ids, *_: plain_remove(shard, ids)
    return _changed("remove", state, ids, mask, lambda *_: (), change)


def _changed(
    function: str,
    state: ShardedState[Any],
    ids: Any,
    mask: Any,
    parsed: Callable[[str, tuple[int, ...]], Any],
    change: _Change,
    of_all: Any = None,
) -> ShardedState[Any]:
    """Change the rows that ids name, wherever they are.

    Args:
        function: The called function, without its prefix.
        state: The buffer.
        ids: The ids, `[B]`.
        mask: The ids that are meant, as for `fbuf.update_priority`.
        parsed: Called with the function's name and the shape of the ids; returns a value for each
            id: a pytree, leaves `[B, ...]`.
        change: The change of a shard. Ids of other shards name no row for it.
        of_all: A value for all ids; the same on all devices.
    """
    name = f"sharded.{function}"
    flat, shape = flat_ids(function, state, ids)
    args = (flat, parse.mask(name, mask, shape, "ids"), parsed(name, shape))

    def run(
        state: ShardedState[Any], ids: ShardedIds, mask: jax.Array, values: Any, of_all: Any
    ) -> ShardedState[Any]:
        exists = (ids.shard >= 0) & (ids.shard < state.num_shards)
        # Shard 0 reports ids that no shard owns as out of range.
        shard = jnp.where(exists, ids.shard, 0)
        slot = jnp.where(exists | (ids.slot == NO_SLOT), ids.slot, _NOWHERE)
        slot = jnp.where(mask, slot, NO_SLOT)
        every = gathered(state, (shard, slot, ids.generation, values))
        shard, slot, generation, all_values = every

        def one(mine: State[Any], number: jax.Array) -> State[Any]:
            own = Ids(jnp.where(shard == number, slot, NO_SLOT), generation)
            return change(mine, own, all_values, of_all)

        return per_device.changed(one, state, per_device.shard_numbers(state))

    specs = (*jax.tree.map(lambda _: state.spec, args), PartitionSpec())
    return per_device.on_devices(function, run, state, (*args, of_all), specs, state.spec)


def answered(
    function: str, state: ShardedState[Any], ids: Any, ask: Callable[[State[Any], Ids], Any]
) -> Any:
    """Return what the shards know of the rows that ids name; it lies on the mesh as the ids do.

    Args:
        function: The called function, without its prefix.
        state: The buffer.
        ids: The ids.
        ask: Returns int32 arrays `[B, ...]` of a shard and ids; 0 for ids that name no row there.
    """
    flat, shape = flat_ids(function, state, ids)

    def run(state: ShardedState[Any], ids: ShardedIds) -> Any:
        every = gathered(state, ids)

        def one(mine: State[Any], number: jax.Array) -> Any:
            own = Ids(jnp.where(every.shard == number, every.slot, NO_SLOT), every.generation)
            return ask(mine, own)

        found = per_device.in_shards(one, state, per_device.shard_numbers(state))
        # All shards but one have 0.
        together = lambda leaf: lax.psum_scatter(
            leaf.sum(axis=0, dtype=jnp.int32), state.axis, tiled=True
        )
        return jax.tree.map(together, found)

    specs = jax.tree.map(lambda _: state.spec, flat)
    found = per_device.on_devices(function, run, state, (flat,), (specs,), state.spec)
    read_before_write.note_read(state, jax.tree.leaves(found)[0])
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), found)


def gathered(state: ShardedState[Any], tree: Any) -> Any:
    """Return arrays `[B, ...]` of all devices, in the order of the batch; in one exchange."""
    leaves, structure = jax.tree.flatten(tree)
    # The faults are known once all earlier reads of the buffer are done.
    every = tie(lax.all_gather(words.packed(leaves), state.axis, tiled=True), state.fault)
    return jax.tree.unflatten(structure, words.unpacked(every, leaves))


def flat_ids(
    function: str, state: ShardedState[Any], ids: Any
) -> tuple[ShardedIds, tuple[int, ...]]:
    """Return ids of rows over a mesh, flat, and their given shape; each device has as many."""
    name = f"sharded.{function}"
    flat, shape = _flat(name, ids)
    count = flat.slot.shape[0]
    if not per_device.is_inside(state) and count % state.num_devices:
        raise ValueError(
            f"fbuf.{name}: the number of ids must be a multiple of the {state.num_devices} devices "
            f"along {state.axis!r}, got {count}; pad them with ids of slot -1"
        )
    return flat, shape


def _flat(function: str, ids: Any) -> tuple[ShardedIds, tuple[int, ...]]:
    """Return ids of rows over a mesh, flat, and their given shape."""
    if not isinstance(ids, ShardedIds):
        raise TypeError(
            f"fbuf.{function}: ids must be a fbuf.sharded.ShardedIds, such as batch.ids, got "
            f"{type(ids).__name__}"
        )
    plain, shape = parse.ids(function, Ids(ids.slot, ids.generation))
    check.array(function, "ids.shard", ids.shard)
    if jnp.shape(ids.shard) != shape or jnp.result_type(ids.shard) != jnp.int32:
        raise ValueError(
            f"fbuf.{function}: ids.shard must be int32 of shape {shape}, like ids.slot, got "
            f"{check.describe(ids.shard)}; pass the ids on as fbuf.sharded.sample returned them"
        )
    shard = jnp.asarray(ids.shard).reshape(-1)
    return ShardedIds(shard, plain.slot, plain.generation), shape
