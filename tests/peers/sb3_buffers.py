"""The buffers of `fbuf_adapters.sb3`, with what Stable-Baselines3's tests take for granted."""

from __future__ import annotations

from typing import Any

import numpy as np
from fbuf_adapters import sb3
from fbuf_adapters.sb3._columns import map_columns


class Buffer(sb3.ReplayBuffer):
    """Rows of zeros stand for those that a test takes for full without adding any."""

    @property
    def full(self) -> bool:
        return super().full

    @full.setter
    def full(self, value: bool) -> None:
        make = lambda column: np.zeros((self.n_envs, *column.shape), column.dtype)
        rows = map_columns(make, self._columns)
        observations, zeros = rows["observations"], np.zeros(self.n_envs)
        infos = [{} for _ in range(self.n_envs)]
        for _ in range(self.buffer_size):
            self.add(observations, observations, rows["actions"], zeros, zeros, infos)


class NStep(sb3.ReplayBuffer):
    """The defaults of the n-step buffer."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **options: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **options)


class Her(sb3.HerReplayBuffer, Buffer):
    """Two arrays of episodes, which a test reads."""

    @property
    def _current_ep_start(self) -> Any:
        """The row behind the newest end, for each environment."""
        rows = np.arange(self.buffer_size)[:, None]
        return np.where(self.dones > 0, rows + 1, 0).max(axis=0)

    @property
    def ep_length(self) -> Any:
        """A number that is not 0 at the last row of an ended episode."""
        return self.dones
