"""Making a buffer."""

from __future__ import annotations

from typing import Any, get_args

import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.door import batches
from fbuf.samplers.protocol import Sampler
from fbuf.samplers.uniform import Uniform
from fbuf.state import State
from fbuf.storage import next_obs as next_observations
from fbuf.storage import ring as rings
from fbuf.storage import store
from fbuf.storage.episodes import Autoreset
from fbuf.storage.store import Item
from fbuf.xla.varying import varying


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
) -> State[Item]:
    """Make an empty buffer.

    All memory is taken here; nothing grows later. The state's arrays are those of the default
    device; `jax.device_put` moves them, with a sharding if you like.

    Args:
        item: One unbatched item: any pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`
            (so that `jax.eval_shape` of a step function will do). Only shapes and dtypes are read.
        capacity: How many rows to keep, from 1 to 2**31 - 17. When they are used up, the oldest
            row makes way for the next one. A multiple of `num_envs`.
        num_envs: How many environments step together. Each then has a lane of
            `capacity // num_envs` rows, and `fbuf.add` takes a leading axis of this length.
            None is for rows that need not be told apart, or come from one environment.
        sampler: Which rows may be drawn, and how likely each is.
        autoreset: What an environment does when an episode has ended, as Gymnasium has it.
            `"same_step"` (gymnax, brax and most others in JAX): the step that ends one also resets,
            and the next row begins the next episode. `"next_step"` (Gymnasium's default): the next
            step ignores its action and resets; its row is kept, but never drawn, and in no window.
            `"disabled"`: you reset yourself; for a buffer the same as `"same_step"`.
        lockstep: Whether the environments always step together. False is for collectors whose
            environments come at times of their own: each gets a head, and `fbuf.add` a `mask` of
            those that have stepped. It costs a little more at every call.
        next_of: The name of a field (`"a.b"` for one in another) of which not only the value a step
            began with is wanted, but also the one it led to: the observation. `fbuf.add` then takes
            `next_observation`, and `fbuf.Transition` and `fbuf.NStep` give it back, read from the
            following row instead of stored twice.
        max_ends: Of how many ends of episodes to keep what they led to, which no following row has.
            None is a sixteenth of the capacity; `Fault.LOST_NEXT` tells if that was too few. With
            `lockstep=False` every environment has its share of them.

    Returns:
        The state: zeros, and no row that can be drawn.

    Raises:
        ValueError: If an argument is out of range, `capacity` is no multiple of `num_envs`,
            `item` holds no array, or the sampler cannot do with lanes of this length.
        TypeError: If a leaf cannot be stored as it is: 64-bit with 64-bit types off, a PRNG key,
            or no array at all.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"obs": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
        >>> state = fbuf.init(item, capacity=1000, sampler=fbuf.Prioritized(alpha=0.6))
        >>> int(fbuf.size(state))
        0
    """
    capacity = check.integer("init", "capacity", capacity, check.LARGEST_CAPACITY)
    specs = batches.item_specs("init", item)
    check.instance("init", "sampler", sampler, Sampler, "fbuf.Uniform()")
    num_envs = _environments(num_envs, capacity, lockstep)
    check.choice("init", "autoreset", autoreset, get_args(Autoreset))
    ring = rings.empty(capacity, num_envs, lockstep, autoreset, sampler.follows_episodes)
    storage, next_obs = store.empty(specs, capacity), None
    if next_of is not None:
        ends = max(capacity // 16, ring.lanes)
        if max_ends is not None:
            ends = check.integer("init", "max_ends", max_ends, capacity)
        next_obs = next_observations.empty(storage, ring, next_of, ends)
    elif max_ends is not None:
        raise ValueError(
            "fbuf.init: max_ends is about what next_of names, but there is no next_of; name the "
            "field, or leave max_ends out"
        )
    return varying(
        State(
            storage=storage,
            ring=ring,
            next_obs=next_obs,
            index=sampler.init(ring),
            fault=jnp.uint32(0),
            sampler=sampler,
        )
    )


def _environments(num_envs: Any, capacity: int, lockstep: Any) -> int | None:
    """How many environments there are, each with a lane of the same length."""
    check.boolean("init", "lockstep", lockstep)
    if num_envs is None:
        if not lockstep:
            raise ValueError(
                "fbuf.init: lockstep=False gives each environment a head of its own, but there is "
                "no num_envs; say how many environments there are"
            )
        return None
    num_envs = check.integer("init", "num_envs", num_envs, capacity)
    if capacity % num_envs:
        raise ValueError(
            f"fbuf.init: capacity must be a multiple of num_envs, {num_envs}, for each "
            f"environment has a lane of the same length, got {capacity}; take "
            f"{capacity // num_envs * num_envs}"
        )
    return num_envs
