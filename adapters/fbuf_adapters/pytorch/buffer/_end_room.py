"""Room for the last observations of episodes: more of it, before one is lost.

A buffer with `next_of` has room for the last observations of some episodes. The number in use is on
the device, and a look at it in each call would wait. So ends are counted here as they are added.
The state is looked at only where the counted ones might fill the room.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import free_for_ends, room_for_ends, warn, with_room_for_ends
from fbuf_adapters.pytorch._spec import Spec, where
from fbuf_adapters.pytorch.buffer._backend import Backend

_FLAGS = ("terminated", "truncated")

_TIMES = 4
"""The factor by which the room grows. Each size of it compiles its own programs."""


class EndRoom:
    """Counts the ends that a buffer takes, and makes room. Call it with the lock held.

    Attributes:
        counts: Whether the buffer keeps last observations, and nobody was warned of their number.
    """

    def __init__(self, spec: Spec) -> None:
        """Count for a buffer of these arguments; nothing is known of its state yet."""
        buffer = spec.buffer
        self.counts = buffer.next_of is not None
        self._lanes = buffer.num_envs or 1
        self._grows = buffer.max_ends is None and not spec.on_host
        self._capacity, self._on_host = buffer.capacity, spec.on_host
        self._left = 0

    def forget(self) -> None:
        """Look at the state before the next end: it is another one."""
        self._left = 0

    def fits(self, flags: Mapping[str, Any]) -> bool:
        """Count the ends in some flags; return whether there is surely room for them."""
        left = self._left
        for name in _FLAGS:
            flag = flags.get(name)
            if flag is not None and flag is not False:
                left -= _most(flag)
        if left < 0:
            return False
        self._left = left
        return True

    def grown(self, backend: Backend, flags: Mapping[str, Any], time_major: bool) -> Any:
        """Return the state with room for all these ends; None if it is to stay as it is.

        Call it where `fits` has returned False. Where the room must not grow, it warns once.
        """
        try:
            count = _exactly(flags, time_major)
        except (RuntimeError, TypeError, ValueError):
            return None  # the call itself says what is wrong with them
        left = int(backend.look(free_for_ends))
        room = room_for_ends(backend.state)
        if room >= self._capacity:
            self._left = 2**62  # there is room for an end of each row
            return None
        # With less than a margin each of the next calls might look again.
        if left - count >= (room // 16 if self._grows else 0):
            self._left = left - count
            return None
        if not self._grows:
            self._warn(room)
            return None
        most = min(max(room - left + count, _TIMES * room), self._capacity)
        try:
            state = _with_room(backend.state, most)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            self._warn(room, f"there is no memory for more ({error})")
            return None
        self._left = int(_free(state)) - count
        return state

    def all_ends(self, mask: Any) -> dict[str, Any]:
        """Return the flags of a step at which the open episodes of these environments end."""
        return {"truncated": np.ones(self._lanes, np.bool_) if mask is None else mask}

    def _warn(self, room: int, why: str = "") -> None:
        self.counts = False
        if not why:
            why = "and rows on the host get no more room" if self._on_host else "by max_ends"
        warn(
            f"{where('add')} more episodes have ended than the buffer keeps last observations of, "
            f"{room}, {why}; draws of their last rows are masked, with weight 0. Make the buffer "
            f"with a larger max_ends, such as twice the capacity over the mean length of an "
            f"episode; max_ends={self._capacity} always suffices"
        )


_free = jax.jit(free_for_ends)


def _with_room(state: fbuf.State[Any], ends: int) -> fbuf.State[Any]:
    """Return the state with room for more ends, in memory of its own for these alone."""
    ends = -(-ends // state.ring.heads) * state.ring.heads
    return dataclasses.replace(state, next_obs=_grown(state, ends))


def _grown_next_obs(state: fbuf.State[Any], ends: int) -> Any:
    return with_room_for_ends(state, ends).next_obs


_grown = jax.jit(_grown_next_obs, static_argnums=1)


def _most(flag: Any) -> int:
    """Return a number of ends that flags do not exceed, without waiting for a GPU."""
    if not isinstance(flag, torch.Tensor):
        return int(np.count_nonzero(flag))
    try:
        # PyTorch's own function takes longer than NumPy's on so few flags.
        return int(np.count_nonzero(flag.numpy())) if flag.is_cpu else flag.numel()
    except (RuntimeError, TypeError):  # no tensor with memory, or of a dtype of PyTorch alone
        return flag.numel()


def _exactly(flags: Mapping[str, Any], time_major: bool) -> int:
    """Return how many of the rows end an episode."""
    ended = np.zeros((), np.bool_)
    for name in _FLAGS:
        if flags.get(name) is not None:
            ended = ended | _of_host(flags[name])
    if flags.get("mask") is None:
        return int(np.count_nonzero(ended))
    mask = _of_host(flags["mask"])
    if mask.ndim == 1 and ended.ndim == 2 and time_major:  # a mask of whole steps
        mask = mask[:, None]
    return int(np.count_nonzero(ended & mask))


def _of_host(flag: Any) -> np.ndarray[Any, Any]:
    return np.asarray(flag.cpu() if isinstance(flag, torch.Tensor) else flag) != 0
