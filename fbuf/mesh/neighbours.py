"""Naming the rows around a row over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.mesh.update_by_id import answered
from fbuf.ops.neighbours import Steps, around
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage.ids import NO_SLOT, Ids


def neighbours(state: ShardedState[Any], ids: ShardedIds, steps: Steps) -> ShardedIds:
    """Name the rows around each row, in its shard; see `fbuf.neighbours`."""

    def ask(shard: State[Any], own: Ids) -> tuple[jax.Array, jax.Array]:
        found = around("neighbours", shard, own, steps)
        return found.slot - NO_SLOT, found.generation

    slot, generation = answered("neighbours", state, ids, ask)
    slot = slot + NO_SLOT
    shard = jnp.where(slot == NO_SLOT, -1, jnp.asarray(ids.shard)[..., None])
    return ShardedIds(shard, slot, generation)
