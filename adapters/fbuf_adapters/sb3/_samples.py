"""Batches with importance weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import fbuf


class PrioritizedReplayBufferSamples(NamedTuple):
    """A batch that was drawn by priority: that of Stable-Baselines3, and what a loss needs besides.

    Attributes:
        observations: As in `ReplayBufferSamples`, or a dict as in `DictReplayBufferSamples`.
        actions: As there.
        next_observations: As there.
        dones: As there.
        rewards: As there.
        discounts: As there; None without `n_steps`.
        weights: float32 `[B, 1]`, at most 1: the factors of the losses.
        ids: The ids of the rows, for `ReplayBuffer.update_priority`.

    Examples:
        >>> import fbuf, numpy as np
        >>> from gymnasium import spaces
        >>> from fbuf_adapters.sb3 import ReplayBuffer
        >>> buffer = ReplayBuffer(
        ...     8, spaces.Discrete(5), spaces.Discrete(2), sampler=fbuf.Prioritized(), seed=0
        ... )
        >>> one = np.ones(1, int)
        >>> buffer.add(one, one, one, np.ones(1), np.zeros(1), [{}])
        >>> batch = buffer.sample(2)
        >>> batch.weights.tolist()
        [[1.0], [1.0]]
        >>> buffer.update_priority(batch.ids, np.full(2, 0.5))
    """

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any
    discounts: Any
    weights: Any
    ids: fbuf.Ids[Any]
