"""Changing rows by their ids, in the shards that store them.

Every device gets all entries, in the order of the batch, and each shard applies its own. So
repeated and stale ids behave as in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.read_before_write import tied
from fbuf.mesh import per_device
from fbuf.ops.add import no_priorities
from fbuf.ops.remove import remove as plain_remove
from fbuf.ops.update_priority import update_priority as plain_update
from fbuf.ops.write import parsed_fields, with_fields
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage import words
from fbuf.storage.ids import NO_SLOT, Ids
from fbuf.storage.store import Item
from fbuf.xla.tie import tie

_NOWHERE = -2
"""A slot outside of every buffer, for ids of shards that do not exist."""

_Change = Callable[[State[Any], Ids, Any, Any], State[Any]]
"""A function of a shard, the ids and the values of all devices, and a value for all ids."""


def update_priority(
    state: ShardedState[Item],
    ids: ShardedIds,
    priority: Array,
    *,
    mask: Any = None,
    alpha: Any = None,
) -> ShardedState[Item]:
    """Set the priorities of rows, in the shards that store them; see `fbuf.update_priority`."""
    state = tied("update_priority", state, ids)
    if not state.blocks.sampler.keeps_priorities:
        raise ValueError(no_priorities("update_priority", state.blocks))
    parsed = lambda name, shape: parse.priorities(name, priority, shape, "ids").reshape(-1)
    change = lambda shard, ids, values, alpha: plain_update(shard, ids, values, alpha=alpha)
    return _changed("update_priority", state, ids, mask, parsed, change, alpha)


def write(
    state: ShardedState[Item], ids: ShardedIds, fields: Mapping[str, Any], *, mask: Any = None
) -> ShardedState[Item]:
    """Change fields of rows, in the shards that store them; see `fbuf.write`."""
    state = tied("write", state, ids)
    parsed = lambda name, shape: parsed_fields(name, state.shard, fields, shape)

    def change(shard: State[Item], ids: Ids, values: dict[int, jax.Array], _: Any) -> State[Item]:
        return with_fields(shard, ids, None, values)

    return _changed("write", state, ids, mask, parsed, change)


def remove(
    state: ShardedState[Item], ids: ShardedIds, *, mask: Any = None, episodes: bool = False
) -> ShardedState[Item]:
    """Remove rows, in the shards that store them; see `fbuf.remove`."""
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
    """Change the rows of ids in their shards.

    Args:
        function: The called function.
        state: The buffer.
        ids: The ids, `[B]`.
        mask: The ids to apply, as for `fbuf.update_priority`.
        parsed: Called with the function's name and the shape of the ids; returns a value for each
            id: a pytree, leaves `[B, ...]`.
        change: The change of a shard. There, ids of other shards name no row.
        of_all: A value for all ids; the same on all devices.
    """
    flat, shape = flat_ids(function, state, ids)
    args = (flat, parse.mask(function, mask, shape, "ids"), parsed(function, shape))

    def run(
        state: ShardedState[Any], ids: ShardedIds, mask: jax.Array, values: Any, of_all: Any
    ) -> ShardedState[Any]:
        exists = (ids.shard >= 0) & (ids.shard < state.num_shards)
        # Shard 0 reports ids without a shard as out of range.
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
    """Return data of the shards about the rows of ids, laid out on the mesh like the ids.

    Args:
        function: The called function.
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
        # All shards but one give 0.
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
    flat, shape = _flat(function, ids)
    count = flat.slot.shape[0]
    if not per_device.is_inside(state) and count % state.num_devices:
        raise ValueError(
            f"fbuf.{function}: the number of ids must be a multiple of the {state.num_devices} "
            f"devices along {state.axis!r}, got {count}; pad them with ids of slot -1"
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
            f"{check.describe(ids.shard)}; pass the ids on as fbuf.sample returned them"
        )
    shard = jnp.asarray(ids.shard).reshape(-1)
    return ShardedIds(shard, plain.slot, plain.generation), shape
