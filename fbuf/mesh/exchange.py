"""The exchange: rows go from the devices that have them to their places in the batch.

Draw `i` of a batch of `B` belongs on device `i // (B / D)`. The device that has its row sends it
there. What goes from one shard to one device is a bucket, of a fixed size, a little larger than
what is usual. What does not fit goes in a further round, so the batch is exact however uneven the
shards are. Everyone knows the whole plan, so nobody has to be asked how many rounds there are. A
row is sent as words, all of its leaves together, with its place in the batch: a round is a single
`all_to_all`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.mesh import local
from fbuf.mesh.state import ShardedState
from fbuf.storage import words
from fbuf.xla.varying import varying

_RARE = 0.01
"""The part of batches that may take a second round, if all shards have as much to draw from."""


class Routes(NamedTuple):
    """What the shards of this device send, and where to.

    Attributes:
        own: int32 `[shards_of_device, B]`; the numbers of the draws of each shard, in order.
        begin: int32 `[shards_of_device, num_devices]`; where in `own` those begin that go to each
            device.
        end: The same; where they end.
        rounds: int32 scalar; how many rounds it takes, the same on all devices.
        room: The size of a bucket; static.
    """

    own: jax.Array
    begin: jax.Array
    end: jax.Array
    rounds: jax.Array
    room: int


def bucket_size(part: float, most: int, buckets: int) -> int:
    """How many rows a bucket has room for: so many that a batch rarely takes two rounds.

    `docs/scale.md` has the rounds that this takes, and what other sizes would take.

    Args:
        part: How many rows it gets on average, if all shards have as much to draw from.
        most: The most it can get.
        buckets: How many there are in all.
    """
    fewest = max(math.ceil(part - 12 * math.sqrt(part)), 0)  # fewer never come
    fits = sum(math.exp(_log_poisson(k, part)) for k in range(fewest, math.ceil(part)))
    room = max(math.ceil(part), 1)
    while room < most:
        fits += math.exp(_log_poisson(room, part))
        if buckets * (1 - fits) <= _RARE:
            break
        room += 1
    return min(room, most)


def _log_poisson(count: int, mean: float) -> float:
    """The logarithm of how likely this count is, where so many are expected."""
    return count * math.log(mean) - mean - math.lgamma(count + 1)


def routes(state: ShardedState[Any], shards: jax.Array) -> Routes:
    """The routes of a plan; `shards` is int32 `[B]`: the shard of each draw."""
    batch, devices = shards.shape[0], state.num_devices
    part = batch // devices  # of the batch, on each device
    mine = shards[None] == local.shard_numbers(state)[:, None]
    running = jnp.cumsum(mine, axis=1, dtype=jnp.int32)
    number = jnp.broadcast_to(jnp.arange(batch, dtype=jnp.int32), mine.shape)
    row = jnp.arange(mine.shape[0], dtype=jnp.int32)[:, None]
    own = jnp.zeros_like(number).at[row, jnp.where(mine, running - 1, batch)]
    end = running[:, part - 1 :: part]
    begin = jnp.concatenate([jnp.zeros_like(end[:, :1]), end[:, :-1]], axis=1)
    buckets = state.num_shards * devices
    room = bucket_size(part / state.num_shards, part, buckets)
    bucket = shards * devices + jnp.arange(batch, dtype=jnp.int32) // part
    full = jnp.zeros(buckets, jnp.int32).at[bucket].add(1, mode="drop").max()
    return Routes(
        own.set(number, mode="drop", unique_indices=True), begin, end, -(-full // room), room
    )


def fetched(
    state: ShardedState[Any],
    plan: Routes,
    read: Callable[[Any, jax.Array, jax.Array], Any],
) -> tuple[Any, jax.Array]:
    """The rows of this device's part of the batch.

    Args:
        state: The blocks of this device.
        plan: The routes.
        read: What to send, called with a shard, int32 `[n]` numbers of draws, and bool `[n]`: which
            of them are meant. A pytree, leaves `[n, ...]`.

    Returns:
        The same pytree, leaves `[B / num_devices, ...]`, and which of the rows have come.
    """
    devices, count = state.num_devices, state.shards_of_device
    part = plan.own.shape[1] // devices
    to = jnp.arange(devices, dtype=jnp.int32)[:, None]

    def send(turn: jax.Array) -> Any:
        """What goes in a turn, leaves `[count, devices * room, ...]`, with places in the batch."""
        at = plan.begin[:, :, None] + turn * plan.room + jnp.arange(plan.room, dtype=jnp.int32)
        meant = at < plan.end[:, :, None]
        at = jnp.minimum(at, plan.own.shape[1] - 1).reshape(count, -1)
        numbers = jnp.take_along_axis(plan.own, at, axis=1).reshape(meant.shape)
        numbers = jnp.where(meant, numbers, 0)
        place = jnp.where(meant, numbers - to * part, part)
        rows = local.in_shards(read, state, numbers.reshape(count, -1), meant.reshape(count, -1))
        return place, rows

    def packed(turn: jax.Array) -> jax.Array:
        """The same for each device, as words: `[devices, n, words]`."""
        place, rows = send(turn)
        leaves = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in jax.tree.leaves(rows)]
        sent = words.packed([place.reshape(-1), *leaves])
        sent = sent.reshape(count, devices, plan.room, -1)
        return jnp.swapaxes(sent, 0, 1).reshape(devices, count * plan.room, -1)

    _, rows = jax.eval_shape(send, jnp.int32(0))
    specs = [
        jax.ShapeDtypeStruct((part, *leaf.shape[2:]), leaf.dtype) for leaf in jax.tree.leaves(rows)
    ]
    width = jax.eval_shape(packed, jnp.int32(0)).shape[-1]

    def body(turn: jax.Array, made: jax.Array) -> jax.Array:
        got = lax.all_to_all(packed(turn), state.axis, 0, 0, tiled=True).reshape(-1, width)
        place = got[:, 0].astype(jnp.int32)
        return made.at[place].set(got, mode="drop", unique_indices=True)

    # A place is kept with its row, plus 1 where one has come: rows that nobody sent have 0.
    made = varying(jnp.full((part, width), part, jnp.uint32), plan.own)
    made = lax.fori_loop(0, plan.rounds, body, made)
    come = made[:, 0] == jnp.arange(part, dtype=jnp.uint32)
    return jax.tree.unflatten(jax.tree.structure(rows), words.unpacked(made[:, 1:], specs)), come
