"""What all devices know of each other before they plan a batch: one collective.

They tell each other the masses of their shards, and what they were called with. Processes that are
called with different keys would each plan a batch of their own, and send rows that nobody expects.
So all take the key of the first shard's process, and the batch is masked.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.mesh import per_device
from fbuf.mesh.state import ShardedState
from fbuf.samplers.planned import PlannedSampler
from fbuf.xla.across import largest, summed
from fbuf.xla.varying import varying


class Agreement(NamedTuple):
    """What is the same on all devices.

    Attributes:
        masses: Those of all shards, leaves `[S]`.
        key: The key of the batch.
        numbers: What else they were called with: int32 scalars.
        alike: bool scalar; all were called with the same.
    """

    masses: Any
    key: jax.Array
    numbers: tuple[jax.Array, ...]
    alike: jax.Array


def agreed(
    state: ShardedState[Any],
    sampler: PlannedSampler,
    key: jax.Array,
    numbers: tuple[jax.Array, ...],
    powers: tuple[jax.Array, ...],
) -> Agreement:
    """Tell each other.

    Args:
        state: The blocks of this device.
        sampler: That of the state.
        key: The key that this device was called with.
        numbers: int32 scalars that it was called with.
        powers: float32 scalars that it was called with.
    """
    mine = per_device.in_shards(lambda shard: sampler.shard_totals(shard.index, shard.ring), state)
    leaves, tree = jax.tree.flatten(mine)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    called = [*jax.random.key_data(key).reshape(-1), *numbers, *powers]
    rows = [_word(leaf) for leaf in leaves]
    rows += [jnp.broadcast_to(_word(number), rows[0].shape) for number in called]
    # A sum to which each gives its own rows, and not a gather: JAX then knows that the result is
    # the same on all devices, and so is what follows from it, without asking again.
    own = jnp.stack(rows, axis=1)
    blank = jnp.zeros((state.num_shards, own.shape[1]), jnp.uint32)
    at = per_device.device_number(state) * state.shards_of_device
    told = summed(lax.dynamic_update_slice_in_dim(blank, own, at, axis=0), (state.axis,))
    calls = told[:, len(leaves) :]
    alike = (calls == calls[:1]).all()
    # Processes may lie along another axis of the mesh, each with a copy of the buffer.
    others = per_device.other_axes(state)
    if others:
        differ = jnp.logical_not(alike).astype(jnp.uint32)[None]
        most = largest(jnp.concatenate([calls[0], ~calls[0], differ]), others)
        size = calls.shape[1]
        alike = (most[:size] == ~most[size : 2 * size]).all() & (most[-1] == 0)
    told = varying(told, own)  # as the rows of the device are, which it is computed with
    masses = [lax.bitcast_convert_type(told[:, at], leaf.dtype) for at, leaf in enumerate(leaves)]
    calls = told[:, len(leaves) :]
    shape, impl = jax.random.key_data(key).shape, jax.random.key_impl(key)
    words = math.prod(shape)
    return Agreement(
        masses=jax.tree.unflatten(tree, masses),
        key=jax.random.wrap_key_data(calls[0, :words].reshape(shape), impl=impl),
        numbers=tuple(calls[0, words : words + len(numbers)].astype(jnp.int32)),
        alike=alike,
    )


def _word(number: jax.Array) -> jax.Array:
    """Numbers of 32 bits as uint32."""
    return lax.bitcast_convert_type(number, jnp.uint32)
