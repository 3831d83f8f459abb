"""Closing the episodes that are open."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp

from fbuf import _check, _nexts, _order, _ring
from fbuf._eager import Compiled
from fbuf._fault import collected
from fbuf._state import Item, State


def end_episode(
    state: State[Item], mask: chex.Array | bool | None = None, *, donate: bool = True
) -> State[Item]:
    """Close the open episodes, as when a collector starts anew and its environments are reset.

    The newest row of an environment becomes truncated, and what is added next begins an episode.
    An environment whose newest row has ended an episode already, or that has no row, stays as it
    is; with `autoreset="next_step"` its next row is not taken for the dummy of a reset any more.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        mask: bool `[num_envs]`, or one bool without `num_envs`; whose episodes. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer. With `next_of` the last observation of these episodes is what their newest rows
        were said to have led to.

    Raises:
        ValueError: When traced, if `mask` is of another shape.
        TypeError: When traced, if `mask` is not bool.
        RuntimeError: If `state` has been consumed.

    Faults:
        LOST_NEXT: As for `fbuf.add`.

    Cost: O(num_envs).

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> state = fbuf.add(fbuf.end_episode(state), jnp.arange(1.0))
        >>> state.ring.flags.tolist()
        [0, 0, 2, 0]
    """
    return _end_episode(donate, state, mask)


def _close(state: State[Item], mask: Any) -> State[Item]:
    _check.one_buffer("end_episode", state)
    shape = () if state.ring.num_envs is None else (state.ring.num_envs,)
    lanes = jnp.ones(shape, bool)
    if mask is not None:
        _check.no_list("end_episode", "mask", mask)
        if jnp.shape(mask) != shape:
            raise ValueError(
                f"fbuf.end_episode: mask must be of shape {shape}, one for each environment, got "
                f"shape {jnp.shape(mask)}"
            )
        if jnp.result_type(mask) != jnp.bool_:
            raise TypeError(
                f"fbuf.end_episode: mask must be bool, got {jnp.result_type(mask)}; cast it with "
                ".astype(bool)"
            )
        lanes = jnp.asarray(mask)
    # The fault is known once an update of priorities before this has read the flags.
    lanes = _order.after(lanes.reshape(-1), state.fault == jnp.uint32(2**32 - 1))
    ring, slots = _ring.end(state.ring, lanes)
    nexts, fault = state.nexts, state.fault
    if nexts is not None:
        nexts, lost = _nexts.end(nexts, ring, slots)
        fault = collected(fault, lost)
    return dataclasses.replace(state, ring=ring, nexts=nexts, fault=fault)


_end_episode = Compiled("end_episode", _close)
