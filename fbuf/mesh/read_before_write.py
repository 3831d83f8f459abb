"""Order of reads and writes over a mesh; see `fbuf.dispatch.read_before_write`."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf.dispatch import read_before_write
from fbuf.mesh import per_device
from fbuf.sharded_state import ShardedState
from fbuf.storage.store import Item


def waiting(state: ShardedState[Item], reads: Any) -> ShardedState[Item]:
    """Return the state, whose next change in each shard waits for these arrays."""

    def run(state: ShardedState[Item], reads: Any) -> ShardedState[Item]:
        return dataclasses.replace(state, blocks=read_before_write.waiting(state.blocks, reads))

    specs = (per_device.along(state, reads),)
    return per_device.on_devices("after", run, state, (reads,), specs, state.spec)
