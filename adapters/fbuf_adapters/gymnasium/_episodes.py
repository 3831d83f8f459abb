"""The returns and lengths of episodes that ended."""

from __future__ import annotations

import collections
import statistics
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
        self._before = np.zeros(num_envs, np.float64)
        """The sum of rewards before them, likewise."""

    def see(self, chunk: Chunk, envs: slice = slice(None)) -> None:
        """Take note of some environments' part of a chunk."""
        begin, before = self._begin[envs], self._before[envs]  # which are written to
        fresh = np.broadcast_to(chunk.fresh, len(self._begin))[envs]
        begin[fresh] = before[fresh] = 0
        total = np.cumsum(chunk.reward[:, envs], axis=0, dtype=np.float64)
        ended = (chunk.terminated | chunk.truncated)[:, envs]
        env, step = np.nonzero(ended.T)  # those of an environment behind each other
        if len(env):
            first = np.diff(env, prepend=-1) > 0
            last = np.append(first[1:], True)
            sums, follows = total[step, env], step + 1 + self._dummies
            returns = sums - np.where(first, before[env], np.roll(sums, 1))
            lengths = step + 1 - np.where(first, begin[env], np.roll(follows, 1))
            before[env[last]], begin[env[last]] = sums[last], follows[last]
            in_time = np.argsort(step, kind="stable")
            self.count += len(env)
            self._returns.extend(returns[in_time].tolist())
            self._lengths.extend(lengths[in_time].tolist())
        begin -= chunk.steps
        before -= total[-1]

    def stats(self) -> dict[str, Any]:
        """How many ended, and the means of the last hundred; None before the first."""
        return {
            "episodes": self.count,
            "mean_return": statistics.fmean(self._returns) if self._returns else None,
            "mean_length": statistics.fmean(self._lengths) if self._lengths else None,
        }
