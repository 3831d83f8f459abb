"""Functions that do the same in all shards, or return one result for all shards."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf._arrays import Array
from fbuf.checks import sizes
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation
from fbuf.dispatch.read_before_write import tied
from fbuf.mesh import count, per_device
from fbuf.mesh.call import OVER_MESH, require_sharded
from fbuf.mesh.gather_totals import with_largest_priority
from fbuf.ops.clear import clear as plain_clear
from fbuf.ops.end_episode import cut_episodes as plain_cut
from fbuf.ops.end_episode import end_episode as plain_end
from fbuf.ops.size import size as plain_size
from fbuf.ops.stats import stats as plain_stats
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.sharded_state import Count, ShardedSample, ShardedState
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.store import Item
from fbuf.xla.across import largest, smallest


def specs(state: ShardedState[Any]) -> Any:
    """Return the layout of a state: `in_specs` and `out_specs` of your own `shard_map`.

    Args:
        state: The buffer.

    Returns:
        The tree of the state, of `jax.sharding.PartitionSpec`.

    Raises:
        TypeError: If `state` is no `ShardedState`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh)
        >>> spec = fbuf.sharded.specs(state)
        >>> rows = jax.device_put(jnp.arange(6.0), jax.NamedSharding(mesh, jax.P("data")))
        >>> add = jax.shard_map(fbuf.add, mesh=mesh, in_specs=(spec, jax.P("data")),
        ...                     out_specs=spec)
        >>> int(fbuf.size(jax.jit(add)(state, rows)))
        6
    """
    require_sharded("sharded.specs", state)
    return jax.tree.map(lambda _: state.spec, state)


def end_episode(state: ShardedState[Item], *, mask: Any = None) -> ShardedState[Item]:
    """End the open episodes of all shards; see `fbuf.end_episode`."""
    state = tied("end_episode", state)
    envs = state.num_envs
    here = envs if envs is None or not per_device.is_inside(state) else envs // state.num_devices
    shape = () if here is None else (here,)
    parse.mask("end_episode", mask, shape, "the environments")

    def run(state: ShardedState[Item], mask: Any) -> ShardedState[Item]:
        def one(shard: State[Item], mask: Any) -> State[Item]:
            return plain_end(shard, mask=mask)

        return per_device.changed(one, state, per_device.by_shard(state, mask))

    specs = (per_device.along(state, mask),)
    return per_device.on_devices("end_episode", run, state, (mask,), specs, state.spec)


def cut_episodes(state: ShardedState[Item]) -> ShardedState[Item]:
    """End the open episodes of all shards, and mark them as unfinished."""
    run = lambda state: per_device.changed(plain_cut, state)
    return per_device.on_devices("sharded.load", run, state, out=state.spec)


def clear(state: ShardedState[Item]) -> ShardedState[Item]:
    """Remove all rows and all faults; see `fbuf.clear`."""
    run = lambda state: per_device.changed(plain_clear, state)
    return per_device.on_devices("clear", run, state, out=state.spec)


def size(state: ShardedState[Any]) -> jax.Array | Count:
    """Count the rows in all shards; see `fbuf.size`."""
    run = lambda state: count.total(state, per_device.in_shards(plain_size, state))
    return per_device.on_devices("size", run, state)


def can_sample(state: ShardedState[Any], min_size: Array | int = 1) -> jax.Array:
    """Tell whether there is a row to draw in any shard; see `fbuf.can_sample`."""

    def run(state: ShardedState[Any], min_size: Any) -> jax.Array:
        def one(shard: State[Any]) -> tuple[jax.Array, jax.Array]:
            return plain_size(shard), shard.sampler.can_sample(shard.index, shard.ring)

        sizes, can = per_device.in_shards(one, state)
        enough = count.at_least(count.total(state, sizes), jnp.asarray(min_size, jnp.int32))
        return enough & (largest(can.any().astype(jnp.int32), (state.axis,)) > 0)

    return per_device.on_devices("can_sample", run, state, (min_size,), (PartitionSpec(),))


def stats(state: ShardedState[Any], *, detailed: bool = False) -> dict[str, jax.Array]:
    """Return metrics of all shards together; see `fbuf.stats`."""
    return per_device.on_devices("stats", _stats, state)


def _stats(state: ShardedState[Any]) -> dict[str, jax.Array]:
    axes, informed = (state.axis,), with_largest_priority(state)
    sampler = cast(PlannedSampler, state.blocks.sampler)
    each = per_device.in_shards(lambda shard: plain_stats(informed(shard)), state)

    def together(name: str, figures: jax.Array) -> jax.Array:
        # In the order of the shards, on any number of devices.
        every = lax.all_gather(figures, state.axis, tiled=True)
        if count.is_wide(state):  # sums of counts may exceed int32
            every = every.astype(jnp.float32)
        if name in sampler.smallest_stats:
            return smallest(every.min(), axes)
        if name in sampler.largest_stats:
            return largest(every.max(), axes)
        return largest(every.sum(dtype=jnp.int32 if every.dtype == bool else every.dtype), axes)

    size_, removed = count.total(state, each["size"]), count.total(state, each["removed"])
    filled = count.total(state, each["size"] + each["removed"])
    whole = jnp.maximum(count.as_float(size_), 1)
    stats = {
        "size": count.as_float(size_),
        "capacity": jnp.float32(state.capacity),
        "fill": count.as_float(filled) / state.capacity,
        "oldest": largest(each["oldest"].max(), axes),
        "removed": count.as_float(removed),
        "bytes": jnp.float32(sizes.nbytes(state.shard) * state.num_shards),
        "fault": _all_bits(state),
    }
    of_sampler = {name: together(name, each[name]) for name in each if name not in stats}
    shares = {
        "shards": jnp.int32(state.num_shards),
        "largest_share": largest(each["size"].max(), axes).astype(jnp.float32) / whole,
        "smallest_share": smallest(each["size"].min(), axes).astype(jnp.float32) / whole,
    }
    return stats | shares | of_sampler


def _all_bits(state: ShardedState[Any]) -> jax.Array:
    """The fault bits of all shards: uint32 scalar."""
    bit = jnp.arange(len(Fault), dtype=jnp.uint32)
    there = (state.fault[:, None] >> bit[None] & 1).max(axis=0)
    return jnp.sum(largest(there, (state.axis,)) << bit, dtype=jnp.uint32)


@operation(state_type=OVER_MESH)
def _raise_on_fault(state: ShardedState[Any]) -> tuple[jax.Array, jax.Array]:
    """Return all fault bits, and whether a shard is full and no shard has a row to draw."""

    def run(state: ShardedState[Any]) -> tuple[jax.Array, jax.Array]:
        def one(shard: State[Any]) -> tuple[jax.Array, jax.Array]:
            can = shard.sampler.can_sample(shard.index, shard.ring)
            return shard.ring.has_come_around(), can

        full, can = per_device.in_shards(one, state)
        either = jnp.stack([full.any(), can.any()]).astype(jnp.int32)
        full, can = largest(either, (state.axis,)) > 0
        return _all_bits(state), full & ~can

    return per_device.on_devices("raise_on_fault", run, state)


def faults_of_batch(batch: ShardedSample[Any], ignore: Fault) -> tuple[Fault, str]:
    """Return the faults of a batch; see `fbuf.ops.raise_on_fault.faults_of`."""
    return Fault(int(jax.device_get(batch.fault))), ""


def faults_of(state: ShardedState[Any], ignore: Fault) -> tuple[Fault, str]:
    """Return the faults of all shards; see `fbuf.ops.raise_on_fault.faults_of`."""
    fault, nothing = _raise_on_fault(state)
    bits = Fault(int(fault))
    if state.blocks.sampler.may_draw_nothing:
        bits = (bits | Fault.NOTHING_TO_DRAW) if nothing else (bits & ~Fault.NOTHING_TO_DRAW)
    return bits, ""
