"""Adding rows to all shards."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import chex
import jax
from jax.sharding import PartitionSpec

from fbuf.dispatch.parse import Lead
from fbuf.mesh import per_device
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.gather_totals import with_largest_priority
from fbuf.mesh.read_before_write import tied
from fbuf.mesh.state import ShardedState
from fbuf.ops.add import GivenRows, added, parsed
from fbuf.ops.add import add as plain_add
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.loop import in_one_turn


@sharded_operation(plain_add)
def add(
    state: ShardedState[Item],
    items: Item,
    *,
    terminated: chex.Array | bool | None = None,
    truncated: chex.Array | bool | None = None,
    next_observation: Any = None,
    priority: chex.Array | float | None = None,
    mask: chex.Array | bool | None = None,
    time_major: bool = False,
    alpha: chex.Array | float | None = None,
    donate: bool = True,
) -> ShardedState[Item]:
    """Write rows, each to the shard of its environment.

    As `fbuf.add`, but:

    - With `num_envs`, `items` are `[num_envs, ...]` or `[num_envs, T, ...]`, for all shards
      together. Without, they are `[B, ...]`, `B` is a multiple of the shards, and shard `s` gets
      rows `s * B / num_shards` up to the next shard's. Inside `shard_map` they are the rows of this
      device's environments.
    - The rows should lie on the mesh along the environments, so that nothing is sent:
      `jax.device_put(items, jax.NamedSharding(mesh, jax.P("data")))`. If several processes have
      rows of their own, `jax.make_array_from_process_local_data` makes one array of them.
    - Without `priority`, each row gets the largest priority of all shards.
    - If environments step together, `mask` is `[T]` or a scalar, the same on all devices.

    Raises:
        ValueError: When traced, as `fbuf.add`; also if `B` is no multiple of the shards.
        TypeError: When traced, as `fbuf.add`.
        RuntimeError: If `state` has been consumed.

    Cost: that of `fbuf.add` on each device for its rows, and no collective; if the sampler keeps
    priorities, one of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> int(fbuf.sharded.size(fbuf.sharded.add(state, jnp.arange(6.0))))
        6
    """
    given = GivenRows(items, terminated, truncated, next_observation, priority, mask, alpha)
    lead = _fits(state, given, time_major)
    sampler = cast(PlannedSampler, state.blocks.sampler)
    state = tied("add", state)
    of_steps = mask is not None and state.num_envs is not None and state.blocks.ring.lockstep
    at = int(time_major and len(lead.shape) == 2)  # one step may come without an axis of steps
    specs = per_device.along(state, given, at)
    if of_steps:
        specs = specs._replace(mask=PartitionSpec())

    def run(state: ShardedState[Item], given: GivenRows) -> ShardedState[Item]:
        largest = with_largest_priority(state)
        each = per_device.by_shard(state, given, at)
        if of_steps:
            each = each._replace(mask=per_device.for_all(state, given.mask))

        def change(
            shard: State[Item], informed: Any, given: GivenRows, number: jax.Array
        ) -> tuple[State[Item], None]:
            shard = informed(shard)
            index = sampler.of_shard(shard.index, number)
            return added(dataclasses.replace(shard, index=index), given, time_major), None

        def one(shard: State[Item], given: GivenRows, number: jax.Array) -> State[Item]:
            return in_one_turn(change, shard, largest, given, number, known=shard.fault)[0]

        return per_device.changed(one, state, each, per_device.shard_numbers(state))

    return per_device.on_devices("add", run, state, (given,), (specs,), state.spec)


def _fits(state: ShardedState[Any], given: GivenRows, time_major: bool) -> Lead:
    """Return the leading axes of the rows; refuse rows of wrong shapes in plain words."""
    parts = state.num_devices if per_device.is_inside(state) else 1
    num_envs = None if state.num_envs is None else state.num_envs // parts
    found: list[Lead] = []

    def look(given: GivenRows) -> None:
        found.append(parsed("sharded.add", state.blocks, num_envs, given, time_major).lead)

    def shape_of(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

    jax.eval_shape(look, jax.tree.map(shape_of, given))  # shapes alone: nothing is moved
    (lead,), shards = found, state.num_shards // parts
    if num_envs is None and state.num_shards > 1 and (not lead.shape or lead.size % shards):
        came = f"{lead.size}" if lead.shape else "one item without a leading axis"
        raise ValueError(
            f"fbuf.sharded.add: the rows must be a multiple of {shards}, so that each shard gets "
            f"as many, got {came}; pad them, and leave the padding out with mask"
        )
    return lead
