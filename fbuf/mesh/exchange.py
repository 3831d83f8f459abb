"""The exchange: devices send rows to their places in the batch.

Draw `i` of a batch of `B` belongs on device `i // (B / D)`. The device that stores its row sends
the row there. The rows from one shard to one device are a bucket of a fixed size, a little above
the mean. Rows that do not fit go in a further round. So the batch is exact for any distribution
over shards. Every device knows the whole plan, and with it the number of rounds. A row is sent as
words, all leaves together with its place in the batch. So a round is a single `all_to_all`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.mesh import per_device
from fbuf.sharded_state import ShardedState
from fbuf.storage import words
from fbuf.xla.platform import by_platform
from fbuf.xla.rows import flat
from fbuf.xla.varying import varying

_RARE = 0.01
"""The share of batches that may take a second round, if all shards have equal totals."""


_COMPARED = 2**13
"""The most draws of one device to compare pairwise at once."""


class Routes(NamedTuple):
    """The draws that the shards of this device send, and their destinations.

    Attributes:
        own: int32 `[shards_of_device, num_devices, places]`; the draws of each shard for each
            device, in order, padded with -1. Draws without a read have the batch size added to
            their numbers.
        rounds: int32 scalar; the number of rounds, the same on all devices.
        bucket: The size of a bucket; static.
    """

    own: jax.Array
    rounds: jax.Array
    bucket: int


def bucket_size(part: float, most: int, buckets: int) -> int:
    """Return a bucket size with which a batch rarely takes two rounds.

    The report `benchmarks/results/exchange_rounds.md` has the rounds of this size, and of others.

    Args:
        part: The average number of rows in a bucket, if all shards have equal totals.
        most: The most rows for a bucket.
        buckets: The number of all buckets.
    """
    fewest = max(math.ceil(part - 12 * math.sqrt(part)), 0)  # fewer hardly ever come
    fits = sum(math.exp(_log_poisson(k, part)) for k in range(fewest, math.ceil(part)))
    room = max(math.ceil(part), 1)
    while room < most:
        fits += math.exp(_log_poisson(room, part))
        if buckets * (1 - fits) <= _RARE:
            break
        room += 1
    return min(room, most)


def _log_poisson(count: int, mean: float) -> float:
    """Return the logarithm of the probability of a count, given its mean."""
    return count * math.log(mean) - mean - math.lgamma(count + 1)


def routes(state: ShardedState[Any], shards: jax.Array, there: jax.Array) -> Routes:
    """Return the routes of a plan.

    Args:
        state: The blocks of this device.
        shards: int32 `[B]`; the shard of each draw.
        there: bool `[B]`; True for a draw that reads a row.
    """
    batch, devices, count = shards.shape[0], state.num_devices, state.shards_of_device
    part = batch // devices  # of the batch, on each device
    room = bucket_size(part / state.num_shards, part, state.num_shards * devices)
    parts = shards.reshape(devices, part)
    place = _places(parts, state.num_shards)
    mine = parts - per_device.device_number(state) * count
    # A shard of another device becomes out of range: a negative place would count from the end.
    mine = jnp.where(mine < 0, count, mine)
    to = jnp.arange(devices, dtype=jnp.int32)[:, None]
    number = to * part + jnp.arange(part, dtype=jnp.int32)[None]
    number = jnp.where(there.reshape(devices, part), number, number + batch)
    own = jnp.full((count, devices, -(-part // room) * room), -1, jnp.int32)
    own = own.at[mine, to, place].set(number, mode="drop", unique_indices=True)
    return Routes(own, lax.div(place.max(), jnp.int32(room)) + 1, room)


def _places(parts: jax.Array, num_shards: int) -> jax.Array:
    """Count the equal entries before each entry of its row: int32 of `[rows, n]` shards."""

    def counted(parts: jax.Array) -> jax.Array:
        # Counts and places are in one array: with two, XLA would copy the counts at every turn.
        count, size = parts.size, parts.shape[1]
        flat = parts.reshape(-1)

        def body(at: jax.Array, made: jax.Array) -> jax.Array:
            bucket = count + at // size * num_shards + flat[at]
            place = made[bucket]
            made = lax.dynamic_update_slice_in_dim(made, place[None], at, axis=0)
            return lax.dynamic_update_slice_in_dim(made, place[None] + 1, bucket, axis=0)

        made = varying(jnp.zeros(count + parts.shape[0] * num_shards, jnp.int32), parts)
        return lax.fori_loop(0, count, body, made)[:count].reshape(parts.shape)

    # Each form makes its own numbers: a form for another platform must be traced as a whole.
    size = parts.shape[1]  # not `parts`, which the kept form would keep alive
    numbers = lambda: jnp.arange(size, dtype=jnp.int32)

    def compared(parts: jax.Array) -> jax.Array:
        at = numbers()
        # One kernel; a running count for each shard would be several.
        same = (parts[:, :, None] == parts[:, None, :]) & (at[:, None] > at[None, :])[None]
        return jnp.sum(same, axis=2, dtype=jnp.int32)

    def ordered(parts: jax.Array) -> jax.Array:
        at = numbers()
        # Entries of a shard lie side by side; their counts begin at the first one.
        order = jnp.argsort(parts, axis=1, stable=True).astype(jnp.int32)
        sorted_ = jnp.take_along_axis(parts, order, axis=1)
        is_first = jnp.pad(sorted_[:, 1:] != sorted_[:, :-1], ((0, 0), (1, 0)))
        place = at[None] - lax.cummax(jnp.where(is_first, at[None], 0), axis=1)
        row = jnp.arange(parts.shape[0], dtype=jnp.int32)[:, None]
        return jnp.zeros_like(parts).at[row, order].set(place, unique_indices=True)

    default = compared if parts.shape[1] <= _COMPARED else ordered
    return by_platform(parts, cpu=counted, default=default)


def fetched(
    state: ShardedState[Any],
    part: int,
    plan: Routes,
    read: Callable[[Any, jax.Array, jax.Array], Any],
) -> tuple[Any, jax.Array]:
    """Fetch the rows of this device's part of the batch.

    Args:
        state: The blocks of this device.
        part: The number of these rows.
        plan: The routes.
        read: Reads the rows to send: a pytree, leaves `[n, ...]`. Called with a shard, int32 `[n]`
            numbers of draws, and bool `[n]`, True for draws that read a row.

    Returns:
        The same pytree, leaves `[B / num_devices, ...]`, and whether each row has come.
    """
    count, devices, _ = plan.own.shape
    batch = part * devices
    # These numbers are constants: on a GPU they would be one more kernel.
    first = np.arange(devices, dtype=np.int32)[None, :, None] * np.int32(part)

    def send(turn: jax.Array) -> Any:
        """Return the rows of a turn, leaves `[count, devices * bucket, ...]`, and their places."""
        numbers = lax.dynamic_slice_in_dim(plan.own, turn * plan.bucket, plan.bucket, axis=2)
        meant, there = numbers >= 0, (numbers >= 0) & (numbers < batch)
        numbers = jnp.where(numbers < batch, numbers, numbers - batch)
        place = jnp.where(meant, numbers - first, part)
        numbers = jnp.where(meant, numbers, 0)
        rows = per_device.in_shards(
            read, state, numbers.reshape(count, -1), there.reshape(count, -1)
        )
        return place, rows

    def packed(turn: jax.Array) -> jax.Array:
        """Return the rows of a turn for each device, as words: `[devices, n, words]`."""
        place, rows = send(turn)
        leaves = [flat(leaf) for leaf in jax.tree.leaves(rows)]
        sent = words.packed([place.reshape(-1), *leaves])
        sent = sent.reshape(count, devices, plan.bucket, -1)
        return jnp.swapaxes(sent, 0, 1).reshape(devices, count * plan.bucket, -1)

    _, rows = jax.eval_shape(send, jnp.int32(0))
    specs = [
        jax.ShapeDtypeStruct((part, *leaf.shape[2:]), leaf.dtype) for leaf in jax.tree.leaves(rows)
    ]
    width = jax.eval_shape(packed, jnp.int32(0)).shape[-1]

    def body(turn: jax.Array, made: jax.Array) -> jax.Array:
        got = lax.all_to_all(packed(turn), state.axis, 0, 0, tiled=True).reshape(-1, width)
        place = got[:, 0].astype(jnp.int32)
        return made.at[place].set(got, mode="drop", unique_indices=True)

    # The first word of each row is its place. A missing row has another number there, and zeros.
    blank = np.where(np.arange(width) == 0, part, 0).astype(np.uint32)
    made = varying(jnp.tile(blank, (part, 1)), plan.own)
    made = lax.fori_loop(0, plan.rounds, body, made)
    come = made[:, 0] == jnp.arange(part, dtype=jnp.uint32)
    return jax.tree.unflatten(jax.tree.structure(rows), words.unpacked(made[:, 1:], specs)), come
