"""The returns and lengths of episodes that ended."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._chunk import Chunk

_RECENT = 100


class Episodes:
    """Follows episodes through chunks."""

    def __init__(self, num_envs: int, autoreset: str) -> None:
        self.count = 0
        self._returns: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self._lengths: collections.deque[int] = collections.deque(maxlen=_RECENT)
        self._dummies = int(autoreset == "next_step")
        self._begin = np.zeros(num_envs, np.int64)
        """The first step of the open episodes, counted from the next chunk's first step."""
        self._gained = np.zeros(num_envs, np.float64)
        """The sum of their rewards so far."""

    def see(self, chunk: Chunk, envs: slice = slice(None)) -> None:
        """Take note of some environments' part of a chunk. No number in it raises."""
        fresh = np.broadcast_to(chunk.fresh, len(self._begin))[envs]
        self._begin[envs][fresh] = self._gained[envs][fresh] = 0
        ended = (chunk.terminated | chunk.truncated)[:, envs]
        step, env = ended.nonzero()
        sums = _of_parts(chunk.reward[:, envs], ended)
        # Lists, because Python takes much longer to read and write single entries of arrays.
        begin, gained = self._begin[envs].tolist(), self._gained[envs].tolist()
        for s, e in zip(step.tolist(), env.tolist(), strict=True):
            self._returns.append(gained[e] + next(sums[e]))
            self._lengths.append(s + 1 - begin[e])
            gained[e], begin[e] = 0.0, s + 1 + self._dummies
        self.count += len(step)
        self._begin[envs] = begin
        self._begin[envs] -= chunk.steps
        self._gained[envs] = [sum_ + next(sums[e], 0.0) for e, sum_ in enumerate(gained)]

    def stats(self) -> dict[str, Any]:
        """How many ended, and the means of the last hundred; None before the first.

        A return that is not finite is in no mean.
        """
        finite = [gained for gained in self._returns if math.isfinite(gained)]
        return {
            "episodes": self.count,
            "mean_return": _mean(finite) if finite else None,
            "mean_length": statistics.fmean(self._lengths) if self._lengths else None,
        }


def _mean(numbers: list[float]) -> float:
    """Their mean; it may be too large for a float, and is infinite then."""
    with np.errstate(all="ignore"):
        return float(np.mean(numbers))


def _of_parts(reward: Any, ended: Any) -> list[Iterator[float]]:
    """The sums of rewards `[T, E]` up to each end, and behind the last: of each environment.

    Each sum is of its own rewards only: a NaN or a huge reward is in no other episode's.
    """
    steps, envs = reward.shape
    if not steps:
        return [iter(())] * envs
    flat = reward.T.astype(np.float64).reshape(-1)
    behind = np.flatnonzero(ended.T) + 1
    first = np.arange(envs) * steps
    starts = np.union1d(first, behind[behind < flat.size])
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(flat, starts).tolist()
    cuts = [*np.searchsorted(starts, first).tolist(), len(sums)]
    return [iter(sums[cuts[e] : cuts[e + 1]]) for e in range(envs)]
