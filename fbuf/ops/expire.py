"""Retiring the rows of policies that are too old."""

from __future__ import annotations

import dataclasses
from typing import Any, overload

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.ops.uses import limited_of
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.tie import tie


@overload
def expire(state: State[Item], version: Array | int, *, donate: bool = True) -> State[Item]: ...
@overload
def expire(
    state: ShardedState[Item], version: Array | int, *, donate: bool = True
) -> ShardedState[Item]: ...
@operation_of_both(checks={"version": check.count})
def expire(state: State[Item], version: Array | int, *, donate: bool = True) -> State[Item]:
    """Retire rows of lower versions: no later batch has them.

    The buffer must be made with `fbuf.Limited(version="...")`. Call it when the policy of the
    learner gets a new version. Rows that are added later with a lower version are not drawn either.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        version: The lowest version that may be drawn, an integer of at least 0; may be traced. One
            that is lower than before changes nothing.
        donate: As for `fbuf.add`.

    Returns:
        The buffer, in which these rows stay stored.

    Raises:
        ValueError: When traced, if the sampler has no versions.
        ValueError: If `version` is out of range.
        TypeError: If `version` is no integer.
        RuntimeError: If `state` has been consumed.

    Cost: O(log N) for each row that is retired, and for the 1,024 rows behind them. Under `vmap`
    the index is copied.

    Over a mesh: all processes give the same `version`, and nothing is sent. With several shards a
    device the index is copied, as under `vmap`: make as many shards as devices.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"x": jnp.int32(0), "version": jnp.int32(0)}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Limited(version="version"))
        >>> rows = {"x": jnp.arange(4, dtype=jnp.int32), "version": jnp.int32([1, 1, 2, 3])}
        >>> state = fbuf.expire(fbuf.add(state, rows), 2)
        >>> sorted(set(fbuf.sample(state, jax.random.key(0), 32).data["x"].tolist()))
        [2, 3]
    """
    with_versions("expire", state)
    return without_older(state, version)


def with_versions(function: str, state: State[Any]) -> None:
    """Refuse a buffer without versions."""
    if limited_of(function, state)[1].lives.versions is None:
        raise ValueError(
            f"fbuf.{function}: Limited has no versions; make the buffer with "
            'sampler=fbuf.Limited(version="version"), the name of the field with the version'
        )


def without_older(state: State[Item], version: Array | int) -> State[Item]:
    """Retire the rows of lower versions."""
    sampler, index = limited_of("expire", state)
    lowest = tie(jnp.asarray(version, jnp.int32), state.fault)
    return dataclasses.replace(state, index=sampler.expired(index, state.ring, lowest))
