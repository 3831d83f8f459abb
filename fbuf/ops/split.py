"""Splitting a buffer into two, episode by episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf._arrays import PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch.call import operation, refuse_consumed, require_state
from fbuf.ops.init import empty_like
from fbuf.ops.lanes import filled, in_one_lane
from fbuf.samplers.protocol.placing import refuse
from fbuf.state import State
from fbuf.storage import tags
from fbuf.storage.episode_order import whole_episodes
from fbuf.storage.store import Item
from fbuf.xla.place import settled
from fbuf.xla.varying import varying


def split(
    state: State[Item], key: PRNGKey | None, fraction: float
) -> tuple[State[Item], State[Item]]:
    """Divide the episodes among two buffers, such as one for training and one for validation.

    Every row is in exactly one of the two, and no episode is in both. Flags, priorities, next
    observations and removed rows stay as they are.

    Call it from Python: the sizes of the parts depend on the ends of episodes.

    Args:
        state: The buffer; never consumed. All three are in memory until you drop this one.
        key: A key of `jax.random`: the episodes of each part are drawn at random. None is by time:
            the episodes that ended first go into the first part.
        fraction: The fraction of the episodes that go into the first part, a Python number above 0
            and below 1. Their number is rounded, and each part gets at least one. Episodes count
            alike, however long.

    Returns:
        Two buffers without `num_envs`, of the sampler of `state`, and just large enough. Their
        episodes are whole, one after another, in the order of their ends. Episodes that ended at
        one time go environment by environment. To add more rows, give a part another capacity with
        `fbuf.resize`, or add it to a buffer of environments' rows with `fbuf.extend`. Faults stay
        set in both.

        An open episode counts as an episode; it is truncated. No row counts as the first step of an
        episode whose first rows have been overwritten. Neither part has rows of resets, or episodes
        of which every row was removed.

    Raises:
        ValueError: If there are fewer than two episodes, or if `fraction` is out of range. Also if
            `state` is a batch of buffers, or if its rows are used once.
        TypeError: If `state` is not a `fbuf.State`, or lies over a mesh; if an argument is traced.
        RuntimeError: If `state` has been consumed.

    Cost: O(N log N). Each size of a part compiles a program of its own.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=100)
        >>> steps = jnp.arange(40, dtype=jnp.int32)
        >>> state = fbuf.add(state, steps, terminated=steps % 4 == 3)
        >>> train, validation = fbuf.split(state, jax.random.key(0), 0.8)
        >>> train, validation
        (State(Uniform, 32 of 32 rows), State(Uniform, 8 of 8 rows))
        >>> fbuf.rows(fbuf.split(state, None, 0.9)[1]).data
        Array([36, 37, 38, 39], dtype=int32)
    """
    _check(state, key, fraction)
    order, number, count = map(jax.device_get, _in_order(state))
    order, number = order[:count], number[:count]
    episodes = int(number[-1]) + 1 if count else 0
    if episodes < 2:
        raise ValueError(
            f"fbuf.split: two parts need two episodes, and the buffer has {episodes}; mark where "
            "episodes end: give terminated or truncated, or call fbuf.end_episode"
        )
    every = jnp.arange(episodes, dtype=jnp.int32)
    shuffled = jax.device_get(every if key is None else jax.random.permutation(key, every))
    first = np.zeros(episodes, bool)
    first[shuffled[: min(max(round(fraction * episodes), 1), episodes - 1)]] = True
    return _part(state, order, number, first), _part(state, order, number, ~first)


def _check(state: Any, key: Any, fraction: Any) -> None:
    """Refuse a buffer that cannot be split."""
    require_state("split", state)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((state, key))):
        raise TypeError("fbuf.split: state or key is traced; call fbuf.split outside of jit")
    if state.fault.ndim:
        raise ValueError(
            f"fbuf.split: state is a batch of buffers of shape {state.fault.shape}; split each by "
            "itself: jax.tree.map(lambda leaf: leaf[0], state) is the first"
        )
    if key is not None:
        check.key("split", key)
    check.number("split", "fraction", fraction)
    if not 0 < fraction < 1:
        raise ValueError(
            f"fbuf.split: fraction must be above 0 and below 1, so that both parts have an "
            f"episode, got {fraction}"
        )
    if state.sampler.is_queue:
        raise ValueError(
            f"fbuf.split: the rows of {type(state.sampler).__name__} are used once, in their "
            "order; take them with fbuf.pop, or make the buffer with another sampler"
        )
    refuse("split", state.sampler)
    refuse_consumed("split", state)


@operation()
def _in_order(state: State[Any]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the slots of all episodes; see `whole_episodes`."""
    return whole_episodes(state.ring)


def _part(
    state: State[Item], order: np.ndarray, number: np.ndarray, chosen: np.ndarray
) -> State[Item]:
    """Return a buffer of the chosen episodes."""
    slots, sampler = order[chosen[number]], state.sampler
    capacity = -(-max(slots.size, sampler.window) // sampler.stride) * sampler.stride
    slots = jax.device_put(slots)
    return settled(_filled(state, slots, capacity=capacity, ends=int(chosen.sum())))


@operation(static=("capacity", "ends"))
def _filled(state: State[Item], slots: jax.Array, *, capacity: int, ends: int) -> State[Item]:
    """Return a buffer of a capacity, with room for some ends, of episodes in their order."""
    # Each part is a separate buffer: ids of one name no rows of the other.
    new = empty_like(state, capacity, None, ends, tag=tags.new())
    count = jnp.int32(slots.shape[0])
    return filled(varying(new), [in_one_lane(state, slots, count)])
