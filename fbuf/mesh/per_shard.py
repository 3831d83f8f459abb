"""Functions that act in all shards alike, or return one result of all shards."""

from __future__ import annotations

from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fbuf.checks import sizes
from fbuf.dispatch import parse
from fbuf.mesh import count, per_device
from fbuf.mesh.call import require_sharded, sharded_operation
from fbuf.mesh.count import Count
from fbuf.mesh.gather_totals import with_largest_priority
from fbuf.mesh.read_before_write import tied, waiting
from fbuf.mesh.state import ShardedSample, ShardedState
from fbuf.ops.after import reads_of
from fbuf.ops.can_sample import can_sample as plain_can_sample
from fbuf.ops.clear import clear as plain_clear
from fbuf.ops.end_episode import cut_episodes as plain_cut
from fbuf.ops.end_episode import end_episode as plain_end
from fbuf.ops.raise_on_fault import raise_for, refuse_traced
from fbuf.ops.size import size as plain_size
from fbuf.ops.stats import stats as plain_stats
from fbuf.samplers.protocol.planned import PlannedSampler
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
        >>> add = jax.shard_map(fbuf.sharded.add, mesh=mesh, in_specs=(spec, jax.P("data")),
        ...                     out_specs=spec)
        >>> int(fbuf.sharded.size(jax.jit(add)(state, rows)))
        6
    """
    require_sharded("sharded.specs", state)
    return jax.tree.map(lambda _: state.spec, state)


@sharded_operation()
def end_episode(
    state: ShardedState[Item], *, mask: chex.Array | bool | None = None, donate: bool = True
) -> ShardedState[Item]:
    """End the open episodes; as `fbuf.end_episode`.

    Inside `shard_map`, `mask` has the environments of this device.

    Cost: that of `fbuf.end_episode` on each device, and no collective.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, num_envs=2, shards=2)
        >>> state = fbuf.sharded.end_episode(fbuf.sharded.add(state, jnp.arange(2.0)))
        >>> state.blocks.ring.flags.tolist()
        [2, 0, 0, 0, 2, 0, 0, 0]
    """
    state = tied("end_episode", state)
    envs = state.num_envs
    here = envs if envs is None or not per_device.is_inside(state) else envs // state.num_devices
    shape = () if here is None else (here,)
    parse.mask("sharded.end_episode", mask, shape, "the environments")

    def run(state: ShardedState[Item], mask: Any) -> ShardedState[Item]:
        def one(shard: State[Item], mask: Any) -> State[Item]:
            return plain_end(shard, mask=mask)

        return per_device.changed(one, state, per_device.by_shard(state, mask))

    specs = (per_device.along(state, mask),)
    return per_device.on_devices("end_episode", run, state, (mask,), specs, state.spec)


@sharded_operation()
def cut_episodes(state: ShardedState[Item], *, donate: bool = True) -> ShardedState[Item]:
    """End the open episodes as `end_episode` does, and mark that their rest never comes."""
    run = lambda state: per_device.changed(plain_cut, state)
    return per_device.on_devices("load", run, state, out=state.spec)


@sharded_operation()
def clear(state: ShardedState[Item], *, donate: bool = True) -> ShardedState[Item]:
    """Remove all rows and all faults; as `fbuf.clear`.

    Cost: that of `fbuf.clear` on each device, and no collective.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh)
        >>> state = fbuf.sharded.add(state, jnp.arange(6.0))
        >>> int(fbuf.sharded.size(fbuf.sharded.clear(state)))
        0
    """
    run = lambda state: per_device.changed(plain_clear, state)
    return per_device.on_devices("clear", run, state, out=state.spec)


@sharded_operation()
def size(state: ShardedState[Any]) -> jax.Array | Count:
    """Count the rows in all shards, without removed ones.

    Args:
        state: The buffer; never consumed.

    Returns:
        int32 scalar, the same on all devices. A `fbuf.sharded.Count` if the capacity is 2**31 or
        more. `int(...)` works for both.

    Raises:
        RuntimeError: If `state` has been consumed.

    Cost: one collective of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> int(fbuf.sharded.size(fbuf.sharded.add(state, jnp.arange(10.0))))
        8
    """
    run = lambda state: count.total(state, per_device.in_shards(plain_size, state))
    return per_device.on_devices("size", run, state)


@sharded_operation(plain_can_sample)
def can_sample(state: ShardedState[Any], min_size: chex.Array | int = 1) -> jax.Array:
    """Tell whether there is a row to draw in any shard, and at least `min_size` rows in all.

    As `fbuf.can_sample`; the result is the same on all devices.

    Cost: two collectives of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh)
        >>> bool(fbuf.sharded.can_sample(state))
        False
    """

    def run(state: ShardedState[Any], min_size: Any) -> jax.Array:
        def one(shard: State[Any]) -> tuple[jax.Array, jax.Array]:
            return plain_size(shard), shard.sampler.can_sample(shard.index, shard.ring)

        sizes, can = per_device.in_shards(one, state)
        enough = count.at_least(count.total(state, sizes), jnp.asarray(min_size, jnp.int32))
        return enough & (largest(can.any().astype(jnp.int32), (state.axis,)) > 0)

    return per_device.on_devices("can_sample", run, state, (min_size,), (PartitionSpec(),))


@sharded_operation()
def stats(state: ShardedState[Any]) -> dict[str, jax.Array]:
    """Return figures for a log, of all shards together.

    Args:
        state: The buffer; never consumed.

    Returns:
        The figures of `fbuf.stats` by the same names, the same on all devices. They are sums over
        all shards; `oldest` is the largest value, and `fault` has all bits. The figures `size`,
        `capacity` and `removed` are float32. If the capacity is 2**31 or more, all counts are.

        The figure `shards` is the number of shards. The largest and the smallest part of all rows
        in a shard are `largest_share` and `smallest_share`.

    Raises:
        RuntimeError: If `state` has been consumed.

    Cost: a few collectives of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh, shards=2)
        >>> found = fbuf.sharded.stats(fbuf.sharded.add(state, jnp.arange(6.0)))
        >>> float(found["size"]), float(found["largest_share"])
        (6.0, 0.5)
    """
    return per_device.on_devices("stats", _stats, state)


def _stats(state: ShardedState[Any]) -> dict[str, jax.Array]:
    axes, informed = (state.axis,), with_largest_priority(state)
    sampler = cast(PlannedSampler, state.blocks.sampler)
    each = per_device.in_shards(lambda shard: plain_stats(informed(shard)), state)

    def together(name: str, figures: jax.Array) -> jax.Array:
        # In the order of the shards, whatever devices they are on.
        every = lax.all_gather(figures, state.axis, tiled=True)
        if count.is_wide(state):  # sums of counts may pass int32
            every = every.astype(jnp.float32)
        if name in sampler.smallest_stats:
            return smallest(every.min(), axes)
        if name in sampler.largest_stats:
            return largest(every.max(), axes)
        return largest(every.sum(dtype=jnp.int32 if every.dtype == bool else every.dtype), axes)

    size_, removed = count.total(state, each["size"]), count.total(state, each["removed"])
    filled = count.total(state, each["size"] + each["removed"])
    whole = jnp.maximum(count.as_float(size_), 1)
    found = {
        "size": count.as_float(size_),
        "capacity": jnp.float32(state.capacity),
        "fill": count.as_float(filled) / state.capacity,
        "oldest": largest(each["oldest"].max(), axes),
        "removed": count.as_float(removed),
        "bytes": jnp.float32(sizes.nbytes(state.shard) * state.num_shards),
        "fault": _all_bits(state),
    }
    of_sampler = {name: together(name, each[name]) for name in each if name not in found}
    shares = {
        "shards": jnp.int32(state.num_shards),
        "largest_share": largest(each["size"].max(), axes).astype(jnp.float32) / whole,
        "smallest_share": smallest(each["size"].min(), axes).astype(jnp.float32) / whole,
    }
    return found | shares | of_sampler


def _all_bits(state: ShardedState[Any]) -> jax.Array:
    """The fault bits of all shards: uint32 scalar."""
    bit = jnp.arange(len(Fault), dtype=jnp.uint32)
    there = (state.fault[:, None] >> bit[None] & 1).max(axis=0)
    return jnp.sum(largest(there, (state.axis,)) << bit, dtype=jnp.uint32)


@sharded_operation()
def _raise_on_fault(state: ShardedState[Any]) -> tuple[jax.Array, jax.Array]:
    """Return all fault bits, and whether a shard is full while no shard has a row to draw."""

    def run(state: ShardedState[Any]) -> tuple[jax.Array, jax.Array]:
        def one(shard: State[Any]) -> tuple[jax.Array, jax.Array]:
            can = shard.sampler.can_sample(shard.index, shard.ring)
            return shard.ring.has_come_around(), can

        full, can = per_device.in_shards(one, state)
        either = jnp.stack([full.any(), can.any()]).astype(jnp.int32)
        full, can = largest(either, (state.axis,)) > 0
        return _all_bits(state), full & ~can

    return per_device.on_devices("raise_on_fault", run, state)


def raise_on_fault(
    state: ShardedState[Any] | ShardedSample[Any], *, ignore: Fault = Fault.STALE_ID
) -> None:
    """Raise if compiled code has skipped a bad value in any shard.

    As `fbuf.raise_on_fault`, but `state` may also be a batch that was drawn from the buffer: it
    raises if processes drew the batch with different keys. In several processes all must call it,
    and all raise.

    Cost: it waits until the state is computed; two collectives of some bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> fbuf.sharded.raise_on_fault(fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh))
    """
    name = "sharded.raise_on_fault"
    if not isinstance(state, ShardedSample):
        require_sharded(name, state)
    refuse_traced(name, state.fault)
    if isinstance(state, ShardedSample):
        return raise_for(name, Fault(int(jax.device_get(state.fault))) & ~ignore)
    fault, nothing = _raise_on_fault(state)
    bits = Fault(int(fault))
    if state.blocks.sampler.may_draw_nothing:
        bits = (bits | Fault.NOTHING_TO_DRAW) if nothing else (bits & ~Fault.NOTHING_TO_DRAW)
    raise_for(name, bits & ~ignore)


def after(state: ShardedState[Item], batch: Any) -> ShardedState[Item]:
    """Make the next write to a buffer wait until a batch is read; as `fbuf.after`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 8, mesh=mesh)
        >>> @jax.jit
        ... def step(state, key):
        ...     batch = fbuf.sharded.sample(state, key, 2)
        ...     return fbuf.sharded.add(fbuf.sharded.after(state, batch), jnp.ones(1))
        >>> int(fbuf.sharded.size(step(state, jax.random.key(0))))
        1
    """
    require_sharded("sharded.after", state)
    reads = reads_of("sharded.after", state, batch, ShardedSample)
    return state if reads is None else waiting(state, reads)
