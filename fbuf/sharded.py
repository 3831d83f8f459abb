"""One replay buffer over a mesh of devices and processes.

Each device has its shards of the rows, and every draw is made from all rows. The costs
and the bytes sent are in `docs/know/scale_costs.md`. The consequences of a process that dies are in
`docs/know/scale_processes.md`.

    mesh = jax.make_mesh((8,), ("data",))
    state = fbuf.sharded.init(item, 1_000_000, mesh=mesh, num_envs=64)
    state = fbuf.sharded.add(state, rows)                        # [64, ...], sharded along "data"
    batch = fbuf.sharded.sample(state, key, 2048)                # [2048, ...], sharded along "data"
"""

from fbuf.dispatch.torch_compile import opaque_all as _opaque_all
from fbuf.mesh.add import add
from fbuf.mesh.count import Count
from fbuf.mesh.draw import draw
from fbuf.mesh.expire import expire
from fbuf.mesh.init import init
from fbuf.mesh.load import ShardedCheckpoint, load
from fbuf.mesh.neighbours import neighbours
from fbuf.mesh.per_shard import (
    after,
    can_sample,
    clear,
    end_episode,
    raise_on_fault,
    size,
    specs,
    stats,
)
from fbuf.mesh.reshard import reshard
from fbuf.mesh.sample import sample
from fbuf.mesh.save import save
from fbuf.mesh.state import ShardedIds, ShardedSample, ShardedState
from fbuf.mesh.thin import thin
from fbuf.mesh.update_by_id import remove, update_priority, write
from fbuf.mesh.uses import uses

__all__ = [
    "Count",
    "ShardedCheckpoint",
    "ShardedIds",
    "ShardedSample",
    "ShardedState",
    "add",
    "after",
    "can_sample",
    "clear",
    "draw",
    "end_episode",
    "expire",
    "init",
    "load",
    "neighbours",
    "raise_on_fault",
    "remove",
    "reshard",
    "sample",
    "save",
    "size",
    "specs",
    "stats",
    "thin",
    "update_priority",
    "uses",
    "write",
]
__dir__ = __all__.copy  # `dir` shows the public names alone

_opaque_all(globals()[name] for name in __all__)
