"""Making a buffer."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch import flax, parse
from fbuf.samplers.protocol import row_fields
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.samplers.uniform import Uniform
from fbuf.state import State
from fbuf.storage import next_obs as next_observations
from fbuf.storage import ring as rings
from fbuf.storage import store, tags
from fbuf.storage.episodes import Autoreset
from fbuf.storage.ring import Ring
from fbuf.storage.store import Item, Storage
from fbuf.xla.filled import traced, zeros
from fbuf.xla.place import allocating, settled
from fbuf.xla.varying import varying

_CHEAP = 2**20
"""Bytes that do not matter: ends of episodes may take them beyond a sixteenth of the rows."""


def init(
    item: Item,
    capacity: int,
    *,
    num_envs: int | None = None,
    sampler: Sampler = Uniform(),
    autoreset: Autoreset = "same_step",
    lockstep: bool = True,
    next_of: str | None = None,
    max_ends: int | None = None,
    removable: bool = True,
) -> State[Item]:
    """Make an empty buffer.

    `init` allocates all memory; nothing grows later. The arrays lie on JAX's default device.
    `jax.device_put` moves them, with a sharding if you like. Made inside `jax.default_device`, the
    buffer stays on that device.

    Args:
        item: One unbatched item: any pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`
            (so that `jax.eval_shape` of a step function will do). Only shapes and dtypes are read.
            Values come back bit for bit.
        capacity: How many rows to keep, from 1 to 2**31 - 17. In a full buffer the next row
            replaces the oldest one. Must be a multiple of `num_envs`.
        num_envs: How many environments there are. Each has a lane of `capacity // num_envs` rows,
            and `fbuf.add` takes rows with a leading axis of this length. None is for one
            environment, and for rows whose order does not matter.
        sampler: Which rows may be drawn, and how likely each is.
        autoreset: The reset of an environment at the end of an episode, in Gymnasium's words. With
            `"same_step"` (gymnax, brax and most others in JAX) the step that ends an episode also
            resets, and the next row begins the next episode. With `"next_step"` (Gymnasium's
            default) the next step ignores its action and resets. The buffer stores the row of that
            step, but never draws it. With `"disabled"` you reset; the buffer treats it like
            `"same_step"`.
        lockstep: Whether all environments step together. With False each lane has a write position
            of its own, and `fbuf.add` takes a `mask` of the environments that have stepped. It
            costs a little more at every call.
        next_of: The name of the observation among the item's fields (`"a.b"` for a field in a
            field). Give it to have next observations without storing them twice: `fbuf.add` then
            takes `next_observation`, and `fbuf.Transition`, `fbuf.NStep` and `fbuf.Hindsight` read
            it from the following row.
        max_ends: The number of ends of episodes whose last observation to keep, because no
            following row has it. None is a sixteenth of the capacity, or up to a quarter where that
            takes less than 1 MiB. The fault `LOST_NEXT` says that the number was too small. With
            `lockstep=False` every environment has an equal share.
        removable: Whether rows can be removed. With False `fbuf.add` costs less, but not with
            windows. With `fbuf.Uniform` a draw on a GPU does, too. `fbuf.remove` then refuses. So
            does `fbuf.extend` where `other` may have removed rows, or would leave slots empty. The
            argument `autoreset="next_step"` needs True: it removes the rows of resets.

    Returns:
        An empty buffer.

    Raises:
        MemoryError: If the device has no room for the buffer. Nothing has been allocated then. The
            message says how much was asked, how much is free, and which capacity would fit. Inside
            `jit` nothing is checked, nor on a device that does not say how much it has.
        ValueError: If an argument is out of range, or `capacity` is not a multiple of `num_envs`.
            Also if `item` holds no array, or the lanes are too short for the sampler's window.
        TypeError: If the buffer cannot store a leaf as it is. The leaf is 64-bit while JAX's 64-bit
            types are off, or it is a PRNG key, or it is not an array.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"observation": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
        >>> state = fbuf.init(item, capacity=1000, sampler=fbuf.Prioritized(alpha=0.6))
        >>> int(fbuf.size(state))
        0
    """
    flax.register(State)
    capacity = check.integer("init", "capacity", capacity, check.LARGEST_CAPACITY)
    specs = parse.item_specs("init", item)
    options = num_envs, sampler, autoreset, lockstep, next_of, max_ends
    make = maker(specs, capacity, *options, removable=removable)
    with allocating():
        check_room("init", specs, capacity, (num_envs or 1) * sampler.stride, make)
        return settled(varying(make(capacity)))


def maker(
    specs: Any,
    capacity: int,
    num_envs: int | None,
    sampler: Sampler,
    autoreset: Autoreset,
    lockstep: bool,
    next_of: str | None,
    max_ends: int | None,
    shards: int = 1,
    *,
    removable: bool,
) -> Callable[..., State[Any]]:
    """Check options of `init`, and return a function that makes such a buffer.

    The function takes a capacity, and maybe a tag. The buffer is one of `shards` of a buffer over a
    mesh.
    """
    check.instance("init", "sampler", sampler, Sampler, "fbuf.Uniform()")
    num_envs = _environments(num_envs, capacity, lockstep)
    check.choice("init", "autoreset", autoreset, get_args(Autoreset))
    if sampler.places and (num_envs is not None or next_of is not None):
        given = "next_of" if num_envs is None else "num_envs"
        raise ValueError(
            f"fbuf.init: the rows of {type(sampler).__name__} lie in no order of time, so there is "
            f"no row that follows another; leave {given} out, or take another sampler"
        )
    if sampler.places and autoreset == "next_step":
        raise ValueError(
            f"fbuf.init: {type(sampler).__name__} knows no steps of environments; leave out the "
            'rows of resets by mask, and autoreset="next_step"'
        )
    if not check.boolean("init", "removable", removable) and autoreset == "next_step":
        raise ValueError(
            'fbuf.init: autoreset="next_step" removes the rows of resets, and removable is False; '
            "leave removable out"
        )
    if max_ends is not None:
        if next_of is None:
            raise ValueError(
                "fbuf.init: max_ends is for buffers with next_of, and next_of is None; name the "
                "observation with next_of, or leave max_ends out"
            )
        max_ends = check.integer("init", "max_ends", max_ends, capacity)

    def make(capacity: int, tag: Any = None) -> State[Any]:
        follow = sampler.follows_episodes
        places = sampler.places
        ring = rings.empty(
            *(capacity, num_envs, lockstep, autoreset, follow, shards, places),
            tag=tags.new() if tag is None else tag,
            removable=removable,
        )
        return of_ring(specs, ring, sampler, next_of, max_ends)

    return make


def of_ring(
    specs: Any, ring: Ring, sampler: Sampler, next_of: str | None, max_ends: int | None
) -> State[Any]:
    """Return a buffer without rows, for an empty ring."""
    storage, next_obs = store.empty(specs, ring.capacity), None
    if next_of is not None:
        ends = max_ends or ends_by_default(ring, storage, next_of)
        next_obs = next_observations.empty(storage, ring, next_of, ends)
    row_fields.check(sampler, storage.layout)
    return State(storage, ring, next_obs, sampler.init(ring), zeros((), np.uint32), sampler)


def empty_like(
    state: State[Any],
    capacity: int,
    num_envs: int | None,
    max_ends: int | None,
    *,
    shards: int = 1,
    tag: jax.Array | int | None = None,
) -> State[Any]:
    """Return an empty buffer like `state`, with other lanes, and with its own or another tag."""
    old, kept = state.ring, state.next_obs
    lockstep = old.lockstep or num_envs is None
    follow, tag = old.open is not None, old.tag[0] if tag is None else tag
    places = old.writes is not None
    options = num_envs, lockstep, old.autoreset, follow, shards, places, tag
    ring = rings.empty(capacity, *options, removable=old.removable)
    next_of, ends = (None, None) if kept is None else (kept.field, max_ends)
    return of_ring(state.storage.item, ring, state.sampler, next_of, ends)


def ends_by_default(ring: Ring, storage: Storage[Any], next_of: str) -> int:
    """Return the default of `max_ends`.

    In a short lane the number of ends is sometimes far from its mean. On-policy rollouts are short,
    with short episodes at first. More room for ends is cheap there.
    """
    cheap = _CHEAP // sizes.nbytes(next_observations.of_one_end(storage, next_of))
    return max(ring.capacity // 16, ring.lanes, min(ring.capacity // 4, cheap))


def check_room(
    function: str, specs: Any, capacity: int, step: int, make: Callable[[int], State[Any]]
) -> None:
    """Refuse a buffer that does not fit the device, before any allocation.

    Args:
        function: The called function, for errors.
        specs: The item.
        capacity: The number of rows.
        step: The divisor of a valid capacity.
        make: Makes a buffer of a capacity.
    """
    if traced():
        return
    device = next(iter(zeros((), np.uint8).devices()))
    free = sizes.free(device)
    # The exact size takes a trace, which is too slow for a buffer far below the free memory.
    if free is None or capacity * (3 * sizes.nbytes(specs) + 64) < free:
        return
    takes = lambda capacity: sizes.nbytes(jax.eval_shape(lambda: make(capacity)))
    asked = takes(capacity)
    if asked <= free:
        return
    fitting = bisect.bisect_right(range(step, capacity + 1, step), free, key=takes) * step
    raise MemoryError(
        f"fbuf.{function}: {capacity} rows take {sizes.in_words(asked)}, and {device} has "
        f"{sizes.in_words(free)} free; "
        + (f"capacity={fitting} would fit" if fitting else "not one row would fit")
        + " (fbuf.capacity_for and fbuf.nbytes tell beforehand)"
    )


def _environments(num_envs: Any, capacity: int, lockstep: Any) -> int | None:
    """Return the number of environments, each with a lane of the same length."""
    check.boolean("init", "lockstep", lockstep)
    if num_envs is None:
        if not lockstep:
            raise ValueError(
                "fbuf.init: lockstep=False is for buffers with num_envs, and num_envs is None; "
                "give num_envs, or leave lockstep out"
            )
        return None
    num_envs = check.integer("init", "num_envs", num_envs, capacity)
    if capacity % num_envs:
        raise ValueError(
            f"fbuf.init: capacity must be a multiple of num_envs ({num_envs}), because all lanes "
            f"have the same length, got {capacity}; take {capacity // num_envs * num_envs}"
        )
    return num_envs
