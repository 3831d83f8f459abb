"""Making a buffer, and knowing its size beforehand."""

from __future__ import annotations

from typing import Any, get_args

import jax
import jax.numpy as jnp

from fbuf import _check, _ring, _storage
from fbuf._episodes import Autoreset
from fbuf._state import Item, State
from fbuf.samplers._protocol import Sampler
from fbuf.samplers.uniform import Uniform


def init(
    item: Item,
    capacity: int,
    *,
    num_envs: int | None = None,
    sampler: Sampler = Uniform(),
    autoreset: Autoreset = "same_step",
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

    Returns:
        The state: zeros, and no row that can be drawn.

    Raises:
        ValueError: If an argument is out of range, `capacity` is no multiple of `num_envs`,
            `item` holds no array, or the sampler cannot do with lanes of this length.
        TypeError: If a leaf cannot be stored as it is: 64-bit with 64-bit types off, a PRNG key,
            or no array at all.

    Example:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"obs": jnp.zeros(4), "action": jnp.int32(0), "reward": 0.0}
        >>> state = fbuf.init(item, capacity=1000, sampler=fbuf.Prioritized(alpha=0.6))
        >>> int(fbuf.size(state))
        0
    """
    capacity = _check.positive_int("init", "capacity", capacity, _check.LARGEST_CAPACITY)
    specs = _check.item_specs("init", item)
    if isinstance(sampler, type):
        raise TypeError(
            f"fbuf.init: sampler must be a sampler, got the class {sampler.__name__}; call it: "
            f"fbuf.{sampler.__name__}()"
        )
    if not hasattr(sampler, "flags_of_new_rows"):
        raise TypeError(
            f"fbuf.init: sampler must be a sampler, such as fbuf.Uniform(), got {sampler!r}"
        )
    if num_envs is not None:
        num_envs = _check.positive_int("init", "num_envs", num_envs, capacity)
        if capacity % num_envs:
            raise ValueError(
                f"fbuf.init: capacity must be a multiple of num_envs, {num_envs}, for each "
                f"environment has a lane of the same length, got {capacity}; take "
                f"{capacity // num_envs * num_envs}"
            )
    if autoreset not in get_args(Autoreset):
        raise ValueError(
            f"fbuf.init: autoreset must be one of {get_args(Autoreset)}, got {autoreset!r}"
        )
    ring = _ring.empty(capacity, num_envs, autoreset, sampler.follows_episodes)
    return State(
        storage=_storage.empty(specs, capacity),
        ring=ring,
        index=sampler.init(ring),
        fault=jnp.uint32(0),
        sampler=sampler,
    )


def nbytes(
    item: Any,
    capacity: int,
    *,
    num_envs: int | None = None,
    sampler: Sampler = Uniform(),
    autoreset: Autoreset = "same_step",
) -> int:
    """How many bytes `init` would take with these arguments; allocates nothing.

    Args:
        item: As for `fbuf.init`.
        capacity: As for `fbuf.init`.
        num_envs: As for `fbuf.init`.
        sampler: As for `fbuf.init`.
        autoreset: As for `fbuf.init`.

    Returns:
        The size of the whole state in bytes.

    Raises:
        ValueError: As `fbuf.init`.
        TypeError: As `fbuf.init`.

    Example:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> frame = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
        >>> f"{fbuf.nbytes(frame, 1_000_000) / 2**30:.1f} GiB"
        '26.3 GiB'
    """
    specs = _check.item_specs("nbytes", item)
    capacity = _check.positive_int("nbytes", "capacity", capacity, _check.LARGEST_CAPACITY)
    options: dict[str, Any] = {"num_envs": num_envs, "sampler": sampler, "autoreset": autoreset}
    state = jax.eval_shape(lambda: init(specs, capacity, **options))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
