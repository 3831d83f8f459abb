"""Making a buffer, and knowing its size beforehand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _check, _ring, _storage
from fbuf._state import Item, State
from fbuf.samplers._protocol import Sampler
from fbuf.samplers.uniform import Uniform


def init(item: Item, capacity: int, *, sampler: Sampler = Uniform()) -> State[Item]:
    """Make an empty buffer.

    All memory is taken here; nothing grows later. The state's arrays are those of the default
    device; `jax.device_put` moves them, with a sharding if you like.

    Args:
        item: One unbatched item: any pytree of arrays, Python scalars or `jax.ShapeDtypeStruct`
            (so that `jax.eval_shape` of a step function will do). Only shapes and dtypes are read.
        capacity: How many rows to keep, from 1 to 2**31 - 17. When they are used up, the oldest
            row makes way for the next one.
        sampler: Which rows may be drawn, and how likely each is.

    Returns:
        The state: zeros, and no row that can be drawn.

    Raises:
        ValueError: If `capacity` is out of range, or `item` holds no array.
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
    return State(
        storage=_storage.empty(specs, capacity),
        ring=_ring.empty(capacity),
        index=sampler.init(capacity),
        fault=jnp.uint32(0),
        sampler=sampler,
    )


def nbytes(item: Any, capacity: int, *, sampler: Sampler = Uniform()) -> int:
    """How many bytes `init` would take with these arguments; allocates nothing.

    Args:
        item: As for `fbuf.init`.
        capacity: As for `fbuf.init`.
        sampler: As for `fbuf.init`.

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
    state = jax.eval_shape(lambda: init(specs, capacity, sampler=sampler))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
