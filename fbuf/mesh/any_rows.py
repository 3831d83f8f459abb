"""Random rows of a buffer over a mesh: all rows of all shards are equally likely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.mesh import per_device
from fbuf.samplers.chance import random_bits, shards
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage import words
from fbuf.views.any_row import any_rows
from fbuf.xla.across import summed
from fbuf.xla.varying import varying


def read_any(
    state: ShardedState[Any], key: jax.Array, shape: tuple[int, ...], leaves: Sequence[int]
) -> list[jax.Array]:
    """Read leaves of random rows of all shards, all equally likely.

    The rows are the same on all devices. Each shard reads a row for each place, and one collective
    selects those of the chosen shards.

    Args:
        state: The blocks of this device.
        key: A key, the same on all devices.
        shape: The shape of the rows.
        leaves: The numbers of the leaves.

    Returns:
        The leaves, `[*shape, *feature]` each; meaningless if there is no row.
    """
    count = math.prod(shape)
    counts = _live(state)
    which, inside = random_bits.split(key, 2)
    shard, _ = shards.by_count(counts, which, random_bits.bits(which, (2, count), counts))
    of_item = [state.blocks.storage.layout.fields[leaf].spec for leaf in leaves]
    specs = [jax.ShapeDtypeStruct((count, *spec.shape), spec.dtype) for spec in of_item]

    def one(mine: State[Any], number: jax.Array) -> jax.Array:
        turn = lambda turn: random_bits.bits(random_bits.fold_in(inside, turn), (2, count))
        slots = any_rows(mine.ring, turn)
        found = words.packed(mine.storage.read_leaves(slots, leaves))
        return jnp.where((shard == number)[:, None], found, 0)

    each = per_device.in_shards(one, state, per_device.shard_numbers(state))
    # For each place, all shards but one contribute zeros.
    made = varying(summed(each.sum(axis=0, dtype=jnp.uint32), (state.axis,)), each)
    return [leaf.reshape(*shape, *leaf.shape[1:]) for leaf in words.unpacked(made, specs)]


def _live(state: ShardedState[Any]) -> jax.Array:
    """Count the live rows of each shard: int32 `[S]`, the same on all devices."""
    mine = per_device.in_shards(lambda shard: shard.ring.live(), state)
    blank = varying(jnp.zeros(state.num_shards, jnp.int32), mine)
    at = per_device.device_number(state) * state.shards_of_device
    own = lax.dynamic_update_slice_in_dim(blank, mine, at, axis=0)
    return varying(summed(own, (state.axis,)), mine)
