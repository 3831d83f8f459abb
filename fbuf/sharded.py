"""One replay buffer over a mesh of devices and processes.

Each device has its shards of the rows, and every draw is made from all rows. `fbuf.add`,
`fbuf.sample` and others take such a buffer, too; here are the same functions again. The costs and
the bytes sent are in `docs/know/scale_costs.md`. The consequences of a process that dies are in
`docs/know/scale_processes.md`.

    mesh = jax.make_mesh((8,), ("data",))
    state = fbuf.sharded.init(item, 1_000_000, mesh=mesh, num_envs=64)
    state = fbuf.add(state, rows)                        # [64, ...], sharded along "data"
    batch = fbuf.sample(state, key, 2048)                # [2048, ...], sharded along "data"
"""

from fbuf.dispatch.torch_compile import opaque_all as _opaque_all
from fbuf.mesh.forms import register as _register
from fbuf.mesh.init import init
from fbuf.mesh.load import ShardedCheckpoint, load
from fbuf.mesh.per_shard import specs
from fbuf.mesh.reshard import reshard
from fbuf.mesh.thin import thin
from fbuf.ops.add import add
from fbuf.ops.after import after
from fbuf.ops.can_sample import can_sample
from fbuf.ops.clear import clear
from fbuf.ops.draw import draw
from fbuf.ops.end_episode import end_episode
from fbuf.ops.expire import expire
from fbuf.ops.neighbours import neighbours
from fbuf.ops.raise_on_fault import raise_on_fault
from fbuf.ops.remove import remove
from fbuf.ops.sample import sample
from fbuf.ops.save import save
from fbuf.ops.size import size
from fbuf.ops.stats import stats
from fbuf.ops.update_priority import update_priority
from fbuf.ops.uses import uses
from fbuf.ops.write import write
from fbuf.sharded_state import Count, ShardedIds, ShardedSample, ShardedState

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
_register()
