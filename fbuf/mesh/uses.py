"""Counting how often rows were drawn, in the shards that store them."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.mesh.update_by_id import answered
from fbuf.ops.uses import counted, with_uses
from fbuf.sharded_state import ShardedIds, ShardedState


def uses(state: ShardedState[Any], ids: ShardedIds) -> jax.Array:
    """Count how often rows were drawn, in the shards that store them; see `fbuf.uses`."""
    with_uses("uses", state.blocks)
    return answered("uses", state, ids, counted)
