"""The implementations of functions of `fbuf` for a buffer over a mesh."""

from __future__ import annotations

from fbuf.dispatch.call import add_form
from fbuf.dispatch.read_before_write import waiting
from fbuf.mesh import add as mesh_add
from fbuf.mesh import draw as mesh_draw
from fbuf.mesh import expire as mesh_expire
from fbuf.mesh import neighbours as mesh_neighbours
from fbuf.mesh import per_shard, read_before_write, update_by_id
from fbuf.mesh import sample as mesh_sample
from fbuf.mesh import save as mesh_save
from fbuf.mesh import uses as mesh_uses
from fbuf.mesh.call import OVER_MESH, not_over_mesh
from fbuf.ops.add import add
from fbuf.ops.can_sample import can_sample
from fbuf.ops.clear import clear
from fbuf.ops.draw import draw
from fbuf.ops.end_episode import cut_episodes, end_episode
from fbuf.ops.expire import expire
from fbuf.ops.neighbours import neighbours
from fbuf.ops.raise_on_fault import faults_of
from fbuf.ops.remove import remove
from fbuf.ops.sample import sample
from fbuf.ops.save import write_checkpoint
from fbuf.ops.size import size
from fbuf.ops.stats import stats
from fbuf.ops.update_priority import update_priority
from fbuf.ops.uses import uses
from fbuf.ops.write import write
from fbuf.sharded_state import ShardedSample, ShardedState

_FORMS = (
    (add, mesh_add.add, ()),
    (can_sample, per_shard.can_sample, ()),
    (clear, per_shard.clear, ()),
    (cut_episodes, per_shard.cut_episodes, ()),
    (draw, mesh_draw.draw, ("count",)),
    (end_episode, per_shard.end_episode, ()),
    (expire, mesh_expire.expire, ()),
    (neighbours, mesh_neighbours.neighbours, ()),
    (remove, update_by_id.remove, ("episodes",)),
    (sample, mesh_sample.sample, ("count",)),
    (size, per_shard.size, ()),
    (stats, per_shard.stats, ("detailed",)),
    (update_priority, update_by_id.update_priority, ()),
    (uses, mesh_uses.uses, ()),
    (write, update_by_id.write, ()),
)
"""Operations, with their implementation over a mesh and the arguments that it refuses."""


def register() -> None:
    """Register the implementations over a mesh with the functions of `fbuf`."""
    for operation, form, without in _FORMS:
        add_form(operation, form, OVER_MESH, dict.fromkeys(without, not_over_mesh))
    waiting.register(ShardedState, read_before_write.waiting)
    write_checkpoint.register(ShardedState, mesh_save.save)
    faults_of.register(ShardedState, per_shard.faults_of)
    faults_of.register(ShardedSample, per_shard.faults_of_batch)
