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
        fresh = np.broadcast_to(chunk.fresh, len(self._begin))[envs]
        self._begin[envs][fresh] = self._before[envs][fresh] = 0
        total = np.cumsum(chunk.reward[:, envs], axis=0, dtype=np.float64)
        ended = (chunk.terminated | chunk.truncated)[:, envs]
        step, env = ended.nonzero()
        # Lists, because Python takes much longer to read and write single entries of arrays.
        begin, before = self._begin[envs].tolist(), self._before[envs].tolist()
        for s, e, sum_ in zip(step.tolist(), env.tolist(), total[ended].tolist(), strict=True):
            self._returns.append(sum_ - before[e])
            self._lengths.append(s + 1 - begin[e])
            before[e], begin[e] = sum_, s + 1 + self._dummies
        self.count += len(step)
        self._begin[envs] = begin
        self._before[envs] = before
        self._begin[envs] -= chunk.steps
        self._before[envs] -= total[-1]

    def stats(self) -> dict[str, Any]:
        """How many ended, and the means of the last hundred; None before the first."""
        return {
            "episodes": self.count,
            "mean_return": statistics.fmean(self._returns) if self._returns else None,
            "mean_length": statistics.fmean(self._lengths) if self._lengths else None,
        }
