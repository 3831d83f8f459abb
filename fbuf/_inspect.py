"""What can be known of a buffer without drawing from it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _check, _ring
from fbuf._eager import Compiled
from fbuf._state import State


def size(state: State[Any]) -> jax.Array:
    """How many rows can be found in the buffer; removed rows do not count.

    Args:
        state: The buffer; never consumed.

    Returns:
        int32 scalar, from 0 to the capacity.

    Raises:
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> int(fbuf.size(fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))))
        2
    """
    return _size(False, state)


def can_sample(state: State[Any]) -> jax.Array:
    """Whether there is any row to draw: one that is stored, and of a priority above 0.

    With a window it takes a row from which so many steps are there.

    It says nothing about how many: wait for `fbuf.size(state) >= 1000` or the like to warm up.

    Args:
        state: The buffer; never consumed.

    Returns:
        bool scalar.

    Raises:
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> bool(fbuf.can_sample(fbuf.init(jnp.zeros(()), capacity=2)))
        False
    """
    return _can_sample(False, state)


def stats(state: State[Any]) -> dict[str, jax.Array]:
    """Figures for a log: scalars, cheap, and without effect on the buffer.

    Args:
        state: The buffer; never consumed.

    Returns:
        `size`, `capacity`, `removed` (rows taken out and not yet overwritten, dummies included),
        `fault` (bits of `fbuf.Fault`), and what the sampler adds: with a window how many `starts`
        there are, by episode how many `episodes` with one, and for `Prioritized` the sum of all
        stored priorities and the one a new row would get.

    Raises:
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))
        >>> {name: int(figure) for name, figure in fbuf.stats(state).items()}
        {'capacity': 2, 'fault': 0, 'removed': 0, 'size': 2}
    """
    return _stats(False, state)


def _count(state: State[Any]) -> jax.Array:
    _check.one_buffer("size", state)
    return _ring.count(state.ring) - state.ring.removed


def _ready(state: State[Any]) -> jax.Array:
    _check.one_buffer("can_sample", state)
    return state.sampler.can_sample(state.index, state.ring)


def _figures(state: State[Any]) -> dict[str, jax.Array]:
    _check.one_buffer("stats", state)
    return {
        "size": _count(state),
        "capacity": jnp.int32(state.capacity),
        "removed": state.ring.removed,
        "fault": state.fault,
        **state.sampler.stats(state.index, state.ring),
    }


_size = Compiled("size", _count)
_can_sample = Compiled("can_sample", _ready)
_stats = Compiled("stats", _figures)
