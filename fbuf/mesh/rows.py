"""Changing rows by their ids, in whatever shard they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fbuf.dispatch import parse
from fbuf.mesh import per_device, update_by_id
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.read_before_write import tied
from fbuf.mesh.state import ShardedIds, ShardedState
from fbuf.ops.add import no_priorities
from fbuf.ops.remove import remove as plain_remove
from fbuf.ops.update_priority import update_priority as plain_update
from fbuf.ops.write import write as plain_write
from fbuf.state import State
from fbuf.storage.ids import Ids
from fbuf.storage.store import Item
from fbuf.xla.rows import flat


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
    """Set the priorities of rows, in whatever shard they are; as `fbuf.update_priority`.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: The rows: `batch.ids`, `[B]`, sharded along the axis. `B` is a multiple of the devices.
            Inside `shard_map`: those of this device's part of the batch. Of one id several times
            the last priority counts, in the order of the whole batch.
        priority: As for `fbuf.update_priority`, `[B]`, like the ids.
        mask: As for `fbuf.update_priority`.
        alpha: As for `fbuf.update_priority`; the same on all devices.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the priorities changed.

    Raises:
        ValueError: When traced, as `fbuf.update_priority`.
        TypeError: When traced, as `fbuf.update_priority`.
        RuntimeError: If `state` has been consumed.

    Faults:
        As for `fbuf.update_priority`; an id of a shard that does not exist is out of range.

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
    name = "sharded.update_priority"
    state = tied("update_priority", state, ids)
    if not state.blocks.sampler.keeps_priorities:
        raise ValueError(no_priorities(name, state.blocks))
    flat_ids, shape = update_by_id.flat_ids(name, ids)
    given = parse.priorities(name, priority, shape, "ids").reshape(-1)
    chosen = parse.mask(name, mask, shape, "ids")

    def run(
        state: ShardedState[Item], ids: ShardedIds, given: jax.Array, chosen: jax.Array, alpha: Any
    ) -> ShardedState[Item]:
        def change(shard: State[Item], ids: Ids, priority: jax.Array) -> State[Item]:
            return plain_update(shard, ids, priority, alpha=alpha)

        return update_by_id.to_shards(state, ids, chosen, given, change)

    return _by_ids(name, run, state, flat_ids, (given, chosen), alpha)


@sharded_operation(plain_write)
def write(
    state: ShardedState[Item],
    ids: ShardedIds,
    fields: Mapping[str, Any],
    *,
    mask: chex.Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Change fields of rows, in whatever shard they are; as `fbuf.write`.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: As for `fbuf.sharded.update_priority`.
        fields: As for `fbuf.write`: leaves `[B, ...]`, like the ids.
        mask: As for `fbuf.write`.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the fields changed.

    Raises:
        ValueError: When traced, as `fbuf.write`.
        TypeError: When traced, as `fbuf.write`.
        RuntimeError: If `state` has been consumed.

    Faults:
        As for `fbuf.sharded.update_priority`.

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
    name = "sharded.write"
    state = tied("write", state, ids)
    flat_ids, shape = update_by_id.flat_ids(name, ids)
    chosen = parse.mask(name, mask, shape, "ids")
    layout = state.shard.storage.layout
    values = {key: jax.tree.map(jnp.asarray, leaf) for key, leaf in fields.items()}
    for key, leaf in values.items():
        for number, value in zip(
            jax.tree.leaves(layout.find(name, "fields", key)), jax.tree.leaves(leaf), strict=False
        ):
            spec = layout.fields[number]
            parse.field_values(name, f"fields[{key!r}]", value, shape, spec.shape, spec.dtype)
    rows = jax.tree.map(lambda leaf: flat(leaf, len(shape)), values)

    def run(
        state: ShardedState[Item], ids: ShardedIds, rows: Any, chosen: jax.Array, _: None
    ) -> ShardedState[Item]:
        return update_by_id.to_shards(state, ids, chosen, rows, plain_write)

    return _by_ids(name, run, state, flat_ids, (rows, chosen), None)


@sharded_operation()
def remove(
    state: ShardedState[Item],
    ids: ShardedIds,
    *,
    mask: chex.Array | bool | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Never draw rows again, in whatever shard they are; as `fbuf.remove`.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        ids: As for `fbuf.sharded.update_priority`.
        mask: As for `fbuf.remove`.
        donate: As for `fbuf.add`.

    Returns:
        The buffer without the rows.

    Raises:
        ValueError: When traced, as `fbuf.remove`.
        TypeError: When traced, as `fbuf.remove`.
        RuntimeError: If `state` has been consumed.

    Faults:
        As for `fbuf.sharded.update_priority`.

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
    name = "sharded.remove"
    state = tied("remove", state, ids)
    flat_ids, shape = update_by_id.flat_ids(name, ids)
    chosen = parse.mask(name, mask, shape, "ids")

    def run(
        state: ShardedState[Item], ids: ShardedIds, chosen: jax.Array, _: None
    ) -> ShardedState[Item]:
        def change(shard: State[Item], ids: Ids, _: Any) -> State[Item]:
            return plain_remove(shard, ids)

        return update_by_id.to_shards(state, ids, chosen, (), change)

    return _by_ids(name, run, state, flat_ids, (chosen,), None)


def _by_ids(
    name: str, run: Any, state: ShardedState[Any], ids: ShardedIds, rows: tuple[Any, ...], more: Any
) -> ShardedState[Any]:
    """Run what changes rows on all devices, each with its part of the ids."""
    count = ids.slot.shape[0]
    if not per_device.is_inside(state) and count % state.num_devices:
        raise ValueError(
            f"fbuf.{name}: the number of ids must be a multiple of the {state.num_devices} devices "
            f"along {state.axis!r}, got {count}; pad them, and leave the padding out with mask"
        )
    each = tuple(jax.tree.map(lambda _: state.spec, part) for part in rows)
    specs = (state.spec, *each, PartitionSpec())
    return per_device.on_devices(
        name.split(".")[1], run, state, (ids, *rows, more), specs, state.spec
    )
