"""Adding rows to all shards."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
from jax.sharding import PartitionSpec

from fbuf.dispatch.parse import Lead
from fbuf.dispatch.read_before_write import tied
from fbuf.mesh import per_device
from fbuf.mesh.gather_totals import with_largest_priority
from fbuf.ops.add import GivenRows, added, parsed
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.loop import in_one_turn


def add(
    state: ShardedState[Item], items: Item, *, time_major: bool = False, **others: Any
) -> ShardedState[Item]:
    """Write rows, each to the shard of its environment; see `fbuf.add`."""
    new_rows = GivenRows(items, **others)
    lead = _fits(state, new_rows, time_major)
    sampler = cast(PlannedSampler, state.blocks.sampler)
    state = tied("add", state)
    of_steps = (
        new_rows.mask is not None and state.num_envs is not None and state.blocks.ring.lockstep
    )
    at = int(time_major and len(lead.shape) == 2)  # a single step may lack an axis of steps
    specs = per_device.along(state, new_rows, at)
    if of_steps:
        specs = specs._replace(mask=PartitionSpec())

    def run(state: ShardedState[Item], new_rows: GivenRows) -> ShardedState[Item]:
        largest = with_largest_priority(state)
        each = per_device.by_shard(state, new_rows, at)
        if of_steps:
            each = each._replace(mask=per_device.for_all(state, new_rows.mask))

        def change(
            shard: State[Item], informed: Any, new_rows: GivenRows, number: jax.Array
        ) -> tuple[State[Item], None]:
            shard = informed(shard)
            index = sampler.of_shard(shard.index, number)
            return added(dataclasses.replace(shard, index=index), new_rows, time_major), None

        def one(shard: State[Item], new_rows: GivenRows, number: jax.Array) -> State[Item]:
            return in_one_turn(change, shard, largest, new_rows, number, known=shard.fault)[0]

        return per_device.changed(one, state, each, per_device.shard_numbers(state))

    return per_device.on_devices("add", run, state, (new_rows,), (specs,), state.spec)


def _fits(state: ShardedState[Any], given: GivenRows, time_major: bool) -> Lead:
    """Return the leading axes of the rows; refuse rows of wrong shapes in plain words."""
    parts = state.num_devices if per_device.is_inside(state) else 1
    num_envs = None if state.num_envs is None else state.num_envs // parts
    leads: list[Lead] = []

    def look(given: GivenRows) -> None:
        leads.append(parsed("add", state.blocks, num_envs, given, time_major).lead)

    def shape_of(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)

    jax.eval_shape(look, jax.tree.map(shape_of, given))  # shapes alone: no array is moved
    (lead,), shards = leads, state.num_shards // parts
    if num_envs is None and state.num_shards > 1 and (not lead.shape or lead.size % shards):
        came = f"{lead.size}" if lead.shape else "one item without a leading axis"
        raise ValueError(
            f"fbuf.add: the rows must be a multiple of {shards}, so that each shard gets "
            f"as many, got {came}; pad them, and leave the padding out with mask"
        )
    return lead
