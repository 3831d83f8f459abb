"""Reads before writes over a mesh, as `fbuf.door.order` for one buffer."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf.door import order
from fbuf.mesh import local
from fbuf.mesh.state import ShardedState
from fbuf.storage.store import Item


def tied(function: str, state: ShardedState[Item], ids: Any = None) -> ShardedState[Item]:
    """Return the state, whose next change waits for the reads that this trace has made of it."""
    reads = order.reads_to_wait_for(f"sharded.{function}", state, ids)
    return waiting(state, reads) if reads else state


def waiting(state: ShardedState[Item], reads: Any) -> ShardedState[Item]:
    """Return the state, whose next change in each shard waits for these arrays."""

    def run(state: ShardedState[Item], reads: Any) -> ShardedState[Item]:
        return dataclasses.replace(state, blocks=order.waiting(state.blocks, reads))

    specs = (local.along(state, reads),)
    return local.on_devices("after", run, state, (reads,), specs, state.spec)
