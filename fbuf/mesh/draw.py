"""Drawing a batch from a buffer over a mesh that remembers its draws."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
from jax.sharding import PartitionSpec

from fbuf._arrays import PRNGKey
from fbuf.mesh import per_device
from fbuf.mesh.sample import drawn, layout_of_batch, require_multiple
from fbuf.ops.after import after
from fbuf.ops.draw import require_noting
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.sharded_state import ShardedSample, ShardedState
from fbuf.state import State
from fbuf.storage.store import Item as StoredItem
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View
from fbuf.xla.tie import tie


def draw(
    state: ShardedState[StoredItem],
    key: PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: Any = None,
    count: None = None,
) -> tuple[ShardedState[StoredItem], ShardedSample[Data]]:
    """Draw a batch from the rows of all shards, and record the draws; see `fbuf.draw`."""
    require_noting("draw", state.blocks.sampler)
    require_multiple("draw", state, batch_size)

    def run(state: ShardedState[Any], key: Any, beta: Any) -> Any:
        batch, plan, there = drawn(state, key, beta, None, batch_size, view)
        sampler = cast(PlannedSampler, state.blocks.sampler)
        there = tie(there, batch.ids.slot)  # the reads of the batch end here; writes may follow

        def recorded(shard: State[Any], number: jax.Array) -> State[Any]:
            own = there & (plan.shards == number)
            index = sampler.note_picks(shard.index, shard.ring, plan.picks, own)
            return dataclasses.replace(shard, index=index)

        return per_device.changed(recorded, state, per_device.shard_numbers(state)), batch

    same = PartitionSpec()
    out = state.spec, layout_of_batch(state, view)
    changed, batch = per_device.on_devices("draw", run, state, (key, beta), (same, same), out)
    return after(changed, batch), batch
