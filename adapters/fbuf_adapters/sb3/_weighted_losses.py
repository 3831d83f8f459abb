"""Losses that weigh rows by importance, in algorithms that know no weights.

The losses of Stable-Baselines3 are means over a batch of `mse_loss` or `smooth_l1_loss`, of values
and targets. Targets are made of the rewards of the batch. So the rewards are tensors that remember
their weights, and so is all that is computed from them. In the loss they weigh each row, and note
its TD error. The code of the algorithm stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import fbuf


@dataclasses.dataclass
class Losses:
    """The losses of one batch.

    Attributes:
        weights: float32 `[B, 1]`.
        ids: The ids of the rows.
        errors: The absolute TD errors of each loss, `[B, 1]`.
    """

    weights: Any
    ids: fbuf.Ids[Any]
    errors: list[torch.Tensor] = dataclasses.field(default_factory=list[torch.Tensor])

    def td_error(self) -> torch.Tensor:
        """Return the mean absolute TD error of each row, over the losses: `[B]`."""
        if not self.errors:
            raise RuntimeError(
                "fbuf_adapters.sb3: no loss of the last batch was mse_loss or smooth_l1_loss of "
                "torch.nn.functional, so the importance weights were not used; weigh the loss by "
                "batch.weights yourself, and call update_priority(batch.ids, td_error)"
            )
        return torch.stack(self.errors).mean(dim=0).reshape(-1)

    def weighted(
        self, loss: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Return the weighted mean of a loss, and note the TD errors."""
        if kwargs.get("reduction", "mean") != "mean" or len(args) > 2:
            raise ValueError(
                f"fbuf_adapters.sb3: {loss.__name__} is weighted as a mean over the batch, got "
                f"{kwargs}; weigh it by batch.weights yourself"
            )
        value, target = (torch.Tensor.as_subclass(x, torch.Tensor) for x in args)
        if value.shape != self.weights.shape or target.shape != self.weights.shape:
            raise ValueError(
                f"fbuf_adapters.sb3: {loss.__name__} must be of values and targets "
                f"{tuple(self.weights.shape)}, got {tuple(value.shape)} and {tuple(target.shape)}; "
                "weigh it by batch.weights yourself"
            )
        self.errors.append((value - target).detach().abs())
        return (loss(value, target, **{**kwargs, "reduction": "none"}) * self.weights).mean()


class WeightedRewards(torch.Tensor):
    """Rewards, or targets made of them, that weigh the losses that they are in."""

    losses: Losses

    @classmethod
    def of(cls, rewards: torch.Tensor, losses: Losses) -> WeightedRewards:
        """Return rewards that belong to the losses of a batch."""
        made = rewards.as_subclass(cls)
        made.losses = losses
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch; a loss is weighted."""
        mine = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, WeightedRewards)]
        losses = next((x.losses for x in mine if hasattr(x, "losses")), None)
        if func in _LOSSES and losses is not None:
            return losses.weighted(func, *args, **(kwargs or {}))
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, WeightedRewards) and losses is not None:
            result.losses = losses
        return result


_LOSSES = (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss)
