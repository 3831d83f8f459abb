"""Gathering the totals of all shards, so that every device plans the same batch.

One collective gathers the totals, and the arguments of the call. Processes with different keys
would each plan another batch, and send rows that no device expects. So all use the key of the first
shard's process. If the keys differ, they mask the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.mesh import per_device
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.xla.across import largest, summed
from fbuf.xla.varying import varying


class Totals(NamedTuple):
    """The totals of all shards and the arguments of the call, the same on all devices.

    Attributes:
        shards: The totals of all shards, leaves `[S, ...]`.
        key: The key of the batch.
        numbers: The other arguments of the call: int32 scalars.
        alike: bool scalar; whether all processes were called with the same arguments.
    """

    shards: Any
    key: jax.Array
    numbers: tuple[jax.Array, ...]
    alike: jax.Array


def with_largest_priority(state: ShardedState[Any]) -> jax.tree_util.Partial:
    """Return a function that tells a shard the largest priority of all shards, for new rows.

    It is a tree with that priority as a leaf, and may be an argument of other functions.
    """
    sampler = cast(PlannedSampler, state.blocks.sampler)
    mine = per_device.in_shards(lambda shard: sampler.largest_priority(shard.index), state)
    if mine is None:
        return jax.tree_util.Partial(_informed)
    return jax.tree_util.Partial(_informed, largest(mine.max(), (state.axis,)))


def _informed(*known: Any) -> State[Any]:
    """Return a shard, the last argument, with the largest priority of all shards, if known."""
    *of_all, shard = known
    sampler = cast(PlannedSampler, shard.sampler)
    index = sampler.with_largest_priority(shard.index, *of_all) if of_all else shard.index
    return dataclasses.replace(shard, index=index)


def gather_totals(
    state: ShardedState[Any],
    sampler: PlannedSampler,
    key: jax.Array,
    numbers: tuple[jax.Array, ...],
    powers: tuple[jax.Array, ...],
) -> Totals:
    """Gather the totals of all shards, and compare the arguments of all processes.

    Args:
        state: The blocks of this device.
        sampler: The sampler of the state.
        key: The key of the call.
        numbers: int32 scalars, arguments of the call.
        powers: float32 scalars, arguments of the call.
    """
    mine = per_device.in_shards(lambda shard: sampler.shard_totals(shard.index, shard.ring), state)
    leaves, tree = jax.tree.flatten(mine)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    called = [*jax.random.key_data(key).reshape(-1), *numbers, *powers]
    rows = [_word(leaf).reshape(leaf.shape[0], -1) for leaf in leaves]
    ends = list(itertools.accumulate(row.shape[1] for row in rows))
    rows += [jnp.broadcast_to(_word(number), (rows[0].shape[0], 1)) for number in called]
    # A sum of the rows of each device, instead of a gather. So JAX knows that the result, and all
    # values computed from it, are the same on all devices.
    own = jnp.concatenate(rows, axis=1)
    blank = jnp.zeros((state.num_shards, own.shape[1]), jnp.uint32)
    at = per_device.device_number(state) * state.shards_of_device
    gathered = summed(lax.dynamic_update_slice_in_dim(blank, own, at, axis=0), (state.axis,))
    calls = gathered[:, ends[-1] :]
    alike = (calls == calls[:1]).all()
    # Processes may lie along another axis of the mesh, each with a copy of the buffer.
    others = per_device.other_axes(state)
    if others:
        differ = jnp.logical_not(alike).astype(jnp.uint32)[None]
        most = largest(jnp.concatenate([calls[0], ~calls[0], differ]), others)
        size = calls.shape[1]
        alike = (most[:size] == ~most[size : 2 * size]).all() & (most[-1] == 0)
    gathered = varying(gathered, own)  # like the rows of the device, for computations with them
    parts = [gathered[:, begin:end] for begin, end in itertools.pairwise([0, *ends])]
    totals = [
        lax.bitcast_convert_type(part, leaf.dtype).reshape(-1, *leaf.shape[1:])
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    calls = gathered[:, ends[-1] :]
    shape, impl = jax.random.key_data(key).shape, jax.random.key_impl(key)
    words = math.prod(shape)
    return Totals(
        shards=jax.tree.unflatten(tree, totals),
        key=jax.random.wrap_key_data(calls[0, :words].reshape(shape), impl=impl),
        numbers=tuple(calls[0, words : words + len(numbers)].astype(jnp.int32)),
        alike=alike,
    )


def _word(number: jax.Array) -> jax.Array:
    """Return the bits of 32-bit numbers as uint32."""
    return lax.bitcast_convert_type(number, jnp.uint32)
