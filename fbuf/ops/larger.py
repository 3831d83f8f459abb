"""Larger buffers in place of small ones, as shapes: XLA copies a small array as it likes."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax

from fbuf.ops.buffers_in import LARGE, bytes_on_a_device, with_buffers
from fbuf.ops.resize import empty_as
from fbuf.state import State

_ROWS = 8 * LARGE
"""The fewest rows of a larger buffer: its smallest array has one bit a row."""


def enlarged(tree: Any) -> Any:
    """Return a tree with shapes of larger buffers in place of all small ones."""
    return with_buffers(lambda buffer: _enlarged(buffer) if is_small(buffer) else buffer, tree)


def is_small(buffer: Any) -> bool:
    """Tell whether a copy of a buffer's flags would be too small to count."""
    state = buffer if isinstance(buffer, State) else buffer.blocks
    return bytes_on_a_device(buffer, state.ring.flags) < LARGE


def _enlarged(buffer: Any) -> Any:
    """Return the shapes of a buffer of some times the capacity, otherwise alike."""
    if isinstance(buffer, State):
        make = _larger
        for _ in buffer.fault.shape:
            make = jax.vmap(make)  # each axis is from a vmap
        larger = jax.eval_shape(make, cast(State[Any], buffer))
        sharding = getattr(buffer.fault, "sharding", None)
        return _placed(larger, sharding) if isinstance(sharding, jax.NamedSharding) else larger
    if len(buffer.fault.shape) > 1:
        raise ValueError("a batch of buffers over a mesh")
    shard = jax.eval_shape(_larger, buffer.shard)

    def of_all(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        first, *rest = leaf.shape or (1,)
        return jax.ShapeDtypeStruct((first * buffer.num_shards, *rest), leaf.dtype)

    blocks = _placed(jax.tree.map(of_all, shard), jax.NamedSharding(buffer.mesh, buffer.spec))
    leaves = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(shard))
    return dataclasses.replace(buffer, blocks=blocks, leaves=leaves)


def _placed(tree: Any, sharding: jax.NamedSharding) -> Any:
    """Return shapes on the devices of a buffer's arrays: a batch may lie on several."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _larger(state: State[Any]) -> State[Any]:
    """Return an empty buffer of some times the capacity."""
    # A multiple fits the environments and the stride. Few other arrays have an odd multiple as
    # their size.
    times = -(-_ROWS // state.capacity) | 1
    return empty_as(state, state.capacity * times)
