"""The returns and lengths of episodes that ended."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._chunk import StepChunk

_RECENT = 100


class EpisodeStats:
    """Follows episodes through chunks."""

    def __init__(self, num_envs: int, autoreset: str) -> None:
        self.count = 0
        self._returns: collections.deque[Any] = collections.deque(maxlen=_RECENT)
        self._lengths: collections.deque[int] = collections.deque(maxlen=_RECENT)
        self._dummies = int(autoreset == "next_step")
        self._begin = np.zeros(num_envs, np.int64)
        """The first step of the open episodes, counted from the next chunk's first step."""
        self._gained: list[Any] = [0.0] * num_envs
        """The sum of their rewards so far; an array if rewards are vectors."""

    def see(self, chunk: StepChunk, envs: slice = slice(None)) -> None:
        """Add some environments' part of a chunk to the statistics. No number raises."""
        fresh = np.broadcast_to(chunk.fresh, len(self._begin))[envs]
        self._begin[envs][fresh] = 0
        kept = zip(self._gained[envs], fresh.tolist(), strict=True)
        gained = [0.0 if anew else sum_ for sum_, anew in kept]
        ended = (chunk.terminated | chunk.truncated)[:, envs]
        step, env = ended.nonzero()
        sums = _of_parts(chunk.reward[:, envs], ended)
        # Lists, because Python takes much longer to read and write single entries of arrays.
        begin = self._begin[envs].tolist()
        with np.errstate(all="ignore"):
            for s, e in zip(step.tolist(), env.tolist(), strict=True):
                self._returns.append(gained[e] + next(sums[e]))
                self._lengths.append(s + 1 - begin[e])
                gained[e], begin[e] = 0.0, s + 1 + self._dummies
            self._gained[envs] = [sum_ + next(sums[e], 0.0) for e, sum_ in enumerate(gained)]
        self.count += len(step)
        self._begin[envs] = begin
        self._begin[envs] -= chunk.steps

    def stats(self) -> dict[str, Any]:
        """Return the number of ended episodes and the means of the last hundred; None before one.

        Returns that are not finite are in no mean. If rewards are vectors, the mean is a list.
        """
        parts = [np.atleast_1d(returned).tolist() for returned in self._returns]
        means = [_mean(list(of_part)) for of_part in zip(*parts, strict=True)]
        scalar = not self._returns or np.ndim(self._returns[0]) == 0
        return {
            "episodes": self.count,
            "mean_return": next(iter(means), None) if scalar else means,
            "mean_length": statistics.fmean(self._lengths) if self._lengths else None,
        }


def _mean(numbers: list[float]) -> float | None:
    """Return the mean of the finite numbers; inf if it is too large for a float."""
    finite = [number for number in numbers if math.isfinite(number)]
    with np.errstate(all="ignore"):
        return float(np.mean(finite)) if finite else None


def _of_parts(reward: Any, ended: Any) -> list[Iterator[Any]]:
    """Return for each environment the sum of rewards up to each end, and after the last end.

    A NaN or a huge reward affects the sum of its own episode only.
    """
    with np.errstate(all="ignore"):
        whole = np.add.reduce(reward, axis=0, dtype=np.float64)
        scalar = whole.ndim == 1
        sums = [iter([of_env]) for of_env in (whole.tolist() if scalar else whole)]
        for env in ended.any(axis=0).nonzero()[0].tolist():
            behind = ended[:, env].nonzero()[0] + 1
            starts = [0, *behind[behind < len(ended)].tolist()]
            parts = np.add.reduceat(reward[:, env].astype(np.float64), starts)
            sums[env] = iter(parts.tolist() if scalar else parts)
    return sums
