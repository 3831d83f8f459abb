"""Drawing a batch of a buffer over a mesh that remembers what was drawn."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import chex
import jax
from jax.sharding import PartitionSpec

from fbuf.mesh import per_device
from fbuf.mesh.call import sharded_operation
from fbuf.mesh.per_shard import after
from fbuf.mesh.sample import drawn, layout_of_batch, require_multiple
from fbuf.mesh.state import ShardedSample, ShardedState
from fbuf.ops.draw import draw as plain_draw
from fbuf.ops.draw import require_noting
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.state import State
from fbuf.storage.store import Item as StoredItem
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View
from fbuf.xla.tie import tie


@sharded_operation(plain_draw)
def draw(
    state: ShardedState[StoredItem],
    key: chex.PRNGKey,
    batch_size: int,
    *,
    view: View[Data] = Item(),
    beta: chex.Array | float | None = None,
    donate: bool = True,
) -> tuple[ShardedState[StoredItem], ShardedSample[Data]]:
    """Draw a batch from the rows of all shards, and have the buffer remember what was drawn.

    As `fbuf.draw`, with the arguments and the batch of `fbuf.sharded.sample`. There is no `count`.

    Raises:
        ValueError: As `fbuf.sharded.sample`. When traced, if the sampler remembers nothing.
        TypeError: As `fbuf.sharded.sample`.
        RuntimeError: If `state` has been consumed.

    Faults:
        CALLS_DIFFER: As for `fbuf.sharded.sample`. No row of that batch counts as drawn.

    Cost: that of `fbuf.sharded.sample`. Each shard also looks up all fresh draws of its own.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh, sampler = jax.make_mesh((1,), ("data",)), fbuf.FreshFirst()
        >>> state = fbuf.sharded.init(jnp.int32(0), 8, mesh=mesh, shards=2, sampler=sampler)
        >>> state = fbuf.sharded.add(state, jnp.arange(4, dtype=jnp.int32))
        >>> state, batch = fbuf.sharded.draw(state, jax.random.key(0), 4)
        >>> batch.data
        Array([0, 1, 2, 3], dtype=int32)
    """
    require_noting("sharded.draw", state.blocks.sampler)
    require_multiple("draw", state, batch_size)

    def run(state: ShardedState[Any], key: Any, beta: Any) -> Any:
        batch, plan, there = drawn(state, key, beta, None, batch_size, view)
        sampler = cast(PlannedSampler, state.blocks.sampler)
        there = tie(there, batch.ids.slot)  # what the batch reads may be written from here on

        def noted(shard: State[Any], number: jax.Array) -> State[Any]:
            own = there & (plan.shards == number)
            index = sampler.note_picks(shard.index, shard.ring, plan.picks, own)
            return dataclasses.replace(shard, index=index)

        return per_device.changed(noted, state, per_device.shard_numbers(state)), batch

    same = PartitionSpec()
    out = state.spec, layout_of_batch(state, view)
    changed, batch = per_device.on_devices("draw", run, state, (key, beta), (same, same), out)
    return after(changed, batch), batch
