"""Priorities of drawn rows: the part of a buffer that learns them from losses."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

import fbuf
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._memory import Memory
from fbuf_adapters.sb3._weighted_losses import Losses


class Priorities:
    """Updates the priorities of drawn rows, and sees to it that somebody does.

    Attributes:
        memory: The rows. `memory.state` is the `fbuf.State`.
        beta: The exponent of importance weights; None is that of the sampler.
    """

    memory: Memory
    beta: float | None
    _losses: Losses | None
    _weighs: bool
    _drew: bool
    _was_updated: bool

    def update_priority(self, ids: fbuf.Ids[Any], priority: Any) -> None:
        """Give rows new priorities: the absolute TD errors of your loss.

        Args:
            ids: `batch.ids`. A row that was overwritten since is left out.
            priority: `[B]` or `[B, 1]`, finite: a tensor or an array. Its sign does not matter.

        Raises:
            ValueError: If the sampler keeps no priorities, or if the shape is another one. Also if
                a priority is not finite: the run has diverged.
        """
        if not self.memory.drawing.weighted:
            raise ValueError(
                f"{WHERE}.update_priority: the sampler keeps no priorities; make the buffer with "
                "sampler=fbuf.Prioritized()"
            )
        if isinstance(priority, torch.Tensor):
            priority = priority.detach().cpu().numpy()
        errors = np.abs(np.asarray(priority, np.float32))
        wrong = errors[~np.isfinite(errors)]
        if wrong.size:
            raise ValueError(
                f"{WHERE}.update_priority: TD errors must be finite, got {wrong[0]}; look at the "
                "loss, which has diverged"
            )
        self.memory.update_priority(ids, errors.reshape(np.shape(ids.slot)))
        self._was_updated = True

    @contextlib.contextmanager
    def weighted_losses(self) -> Generator[None]:
        """Weigh the losses of a block, and take TD errors from them; see `WeightedRewards`.

        Raises:
            RuntimeError: If a batch was drawn in the block, and no loss was computed from it.
        """
        self._weighs = True
        try:
            yield
            self.settle()
        finally:
            self._weighs, self._losses = False, None

    def settle(self) -> None:
        """Update the priorities of the batch whose losses were weighted."""
        losses, self._losses = self._losses, None
        if losses is not None:
            self.update_priority(losses.ids, losses.td_error())

    def _check_updated(self) -> None:
        """Refuse a second batch by priority if no priority was updated since the first."""
        if not self.memory.drawing.weighted or self._weighs or self._was_updated:
            return
        if self._drew:
            raise RuntimeError(
                f"{WHERE}.sample: rows are drawn by priority, and no priority was updated since "
                "the first batch. A loss that knows no weights learns from biased batches. Use "
                "PrioritizedDQN, PrioritizedSAC or PrioritizedTD3 of fbuf_adapters.sb3; in a loss "
                "of your own weigh by batch.weights and call update_priority(batch.ids, td_error). "
                "For SBX, whose losses know no weights, leave the sampler out"
            )
        self._drew = True
