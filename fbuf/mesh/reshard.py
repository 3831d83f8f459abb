"""Changing the number of shards: whole environments move from shard to shard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch.call import refuse_consumed
from fbuf.mesh.call import require_sharded
from fbuf.mesh.init import check_room
from fbuf.mesh.per_device import refuse_set_mesh
from fbuf.mesh.shards import assembled, shards_here
from fbuf.ops import lost_next
from fbuf.ops.init import empty_like
from fbuf.ops.lanes import Lanes, filled
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.place import allocating


def reshard(state: ShardedState[Item], shards: int) -> ShardedState[Item]:
    """Make a buffer of another number of shards that holds the same rows.

    You need it only to go on with a number of devices that does not divide the shards. Rows, flags,
    priorities, next observations and open episodes are kept. Batches of another number of shards
    are other batches, drawn as exactly. Ids from before are stale, as after `fbuf.resize`.

    In several processes this cannot be done in memory: save the buffer, and give `shards` to
    `fbuf.sharded.load`.

    Args:
        state: The buffer; never consumed. Both are in memory until you drop this one.
        shards: The number of shards, a multiple of the devices along the axis. It must divide
            `num_envs`: an environment lives whole in one shard.

    Returns:
        The buffer, on the same mesh. Faults stay set.

    Raises:
        ValueError: If `shards` does not divide, or the sampler cannot serve that number. Also if
            the buffer was made without `num_envs`: then a shard is one sequence of rows, and cannot
            be divided or joined with other shards.
        RuntimeError: If `state` has been consumed, or lies on devices of several processes.
        MemoryError: If a device has no room for both.

    Faults:
        LOST_NEXT: As for `fbuf.resize`; each shard has an equal share of the room for ends.

    Cost: O(N log N) time for the N rows of a shard; it moves those that change their device.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> state = fbuf.sharded.init(jnp.zeros(()), 24, mesh=mesh, num_envs=6, shards=6)
        >>> state = fbuf.add(state, jnp.arange(6.0))
        >>> fbuf.sharded.reshard(state, 2)
        ShardedState(Uniform, room for 24 rows, 2 shards on 1 device)
    """
    name = "sharded.reshard"
    require_sharded(name, state)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state)):
        raise TypeError(f"fbuf.{name}: state is traced; call it outside of jit")
    refuse_set_mesh(name)
    refuse_consumed(name, state)
    if not state.fault.is_fully_addressable:
        raise RuntimeError(
            f"fbuf.{name}: the buffer lies on devices of several processes; save it with "
            "fbuf.save, and give shards= to fbuf.sharded.load"
        )
    shards = check_shards(name, shards, state.num_devices, state.num_envs)
    each = sizes.nbytes(state.shard) * state.num_shards // state.num_devices
    check_room(name, state.mesh, each)
    with allocating():
        old = dict(shards_here(state))
    lap = latest_lap(shard.ring.cursor for shard in old.values())
    lanes = state.shard.ring.lanes
    make = regrouping(old.__getitem__, lap, lanes, state.num_shards, shards)
    new = assembled(state.mesh, state.axis, shards, make)
    if state.blocks.next_obs is not None:
        known, _ = lost_next.counted(list(old.values()))
        room = f"make the buffer with a larger max_ends: {lost_next.ROOM}"
        here = [shard for _, shard in shards_here(new)]
        lost_next.of_states(f"fbuf.{name}", here, room, before=known)
    return new


def check_shards(function: str, shards: Any, devices: int, num_envs: int | None) -> int:
    """Return a number of shards that hold whole environments; refuse any other."""
    shards = check.integer(function, "shards", shards)
    if num_envs is None:
        raise ValueError(
            f"fbuf.{function}: the buffer was made without num_envs, so each shard is one sequence "
            "of rows that cannot be divided or joined; leave shards as it is"
        )
    if shards % devices or num_envs % shards:
        fits = [n for n in range(devices, num_envs + 1, devices) if num_envs % n == 0]
        raise ValueError(
            f"fbuf.{function}: shards must be a multiple of the {devices} devices and divide the "
            f"{num_envs} environments, got {shards}; take one of {fits}"
        )
    return shards


def latest_lap(cursors: Iterable[Any]) -> np.ndarray:
    """Return the latest lap of all lanes of all shards, from the cursors of their rings: int32.

    A slot then belongs to another lane. So the new lap must come after all laps, or old ids would
    not be stale.
    """
    laps = np.concatenate([jax.device_get(cursor)[1] for cursor in cursors]).view(np.uint32)
    ahead = (laps - laps[0]).view(np.int32).max(keepdims=True)  # laps wrap around
    return (laps[:1] + ahead.view(np.uint32)).view(np.int32)


def regrouping(
    source: Callable[[int], State[Any]], lap: np.ndarray, each: int, before: int, after: int
) -> Callable[[int], State[Any]]:
    """Return a function that makes the new shard of a number from the old shards.

    Args:
        source: Returns the old shard of a number, as a plain buffer.
        lap: `latest_lap` of all old shards.
        each: The number of environments of an old shard.
        before: The number of old shards.
        after: The number of new shards.
    """

    def make(number: int) -> State[Any]:
        envs = each * before // after
        first, last = number * envs, (number + 1) * envs
        own = list(range(first // each, -(-last // each)))
        places = tuple(
            (max(first - of * each, 0), min(last - of * each, each) - max(first - of * each, 0))
            for of in own
        )
        device = next(iter(jnp.zeros(()).devices()))
        states = tuple(jax.device_put(source(of), device) for of in own)
        return _regrouped(states, lap, places, envs, after)

    return make


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _regrouped(
    states: tuple[State[Any], ...],
    lap: jax.Array,
    places: tuple[tuple[int, int], ...],
    envs: int,
    shards: int,
) -> State[Any]:
    """Make one of `shards` shards, with `envs` environments, from lanes of the old shards."""
    old, kept = states[0].ring, states[0].next_obs
    ends = None
    if kept is not None:
        ends = max(round((kept.owner.shape[0] - old.lanes) * envs / old.lanes), 1)
    new = empty_like(states[0], old.lane_length * envs, envs, ends, shards=shards)
    return filled(new, [Lanes(s, *place) for s, place in zip(states, places, strict=True)], lap)
