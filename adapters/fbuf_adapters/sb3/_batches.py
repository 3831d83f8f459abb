"""Batches as Stable-Baselines3 has them, of the arrays that were drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from stable_baselines3.common import type_aliases

from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._columns import Array, Column, map_columns
from fbuf_adapters.sb3._jax_arrays import JaxTensor
from fbuf_adapters.sb3._memory import Fields, on_host
from fbuf_adapters.sb3._samples import PrioritizedReplayBufferSamples
from fbuf_adapters.sb3._weighted_losses import Losses, WeightedRewards

_NUMBER = Column((1,), np.dtype(np.float32))


@dataclasses.dataclass
class Batches:
    """Makes batches.

    Attributes:
        columns: The columns of `observations` and `actions`.
        gamma: The discount of a step, where rewards of several are summed.
        arrays: `"torch"` or `"jax"`.
    """

    columns: Fields
    gamma: float | None
    arrays: str

    def of(self, fields: Fields) -> Fields:
        """Return the arguments of a batch, tensors on the CPU."""
        item, discount = fields["item"], fields.get("discount")
        return {
            "observations": self._tensors("observations", item["observation"]),
            "actions": self._tensors("actions", item["action"]),
            "next_observations": self._tensors("observations", fields["next_observation"]),
            "dones": _NUMBER.tensor(fields["done"]),
            "rewards": _NUMBER.tensor(fields["reward"]),
            "discounts": None if discount is None else _NUMBER.tensor(discount),
        }

    def _tensors(self, name: str, tree: Any) -> Any:
        return map_columns(Column.tensor, self.columns[name], tree)

    def change_observations(self, found: Fields, change: Callable[[Any], Any]) -> None:
        """Put other observations in the place of those of a batch, such as normalised ones.

        Args:
            found: The arguments of the batch.
            change: Returns them, of an array `[B, ...]` or of a dict of arrays.
        """
        for name in ("observations", "next_observations"):
            arrays = jax.tree.map(on_host, found[name])
            found[name] = jax.tree.map(torch.from_numpy, change(arrays))

    def change_rewards(
        self,
        found: Fields,
        change: Callable[[Array], Any],
        steps: Callable[[], tuple[Array, Array]] | None,
    ) -> None:
        """Put other rewards in the place of those of a batch.

        Args:
            found: The arguments of the batch.
            change: Returns them, of float32 `[B, 1]`, or `[B, n]` for each of n steps.
            steps: Returns the rewards of each of several steps, and which there are; None to change
                their sum.
        """
        if self.gamma is None or steps is None:
            sums = change(on_host(found["rewards"]))
        else:  # rewards are clipped when they are normalised, so each by itself
            each, valid = steps()
            factors = float(self.gamma) ** np.arange(each.shape[1], dtype=np.float32)
            sums = (change(each) * valid * factors).sum(axis=1, keepdims=True)
        found["rewards"] = torch.from_numpy(np.asarray(sums))

    def deliver(
        self,
        arguments: Fields,
        fields: Fields,
        device: torch.device,
        weigh: bool,
        to_torch: Callable[[Array], torch.Tensor] | None,
    ) -> Any:
        """Return the batch of its arguments.

        Args:
            arguments: The arguments of its class, by name.
            fields: The drawn rows.
            device: The device of the batch.
            weigh: Whether its rewards weigh losses.
            to_torch: Makes each tensor of an array; None for tensors on the device.
        """
        if "weight" in fields:
            arguments["weights"] = fields["weight"][:, None]
        if self.arrays == "jax" or device.type != "cpu" or to_torch is not None:
            place = JaxTensor.of if self.arrays == "jax" else lambda tensor: tensor.to(device)
            if to_torch is not None:
                place = lambda tensor: to_torch(on_host(tensor))
            arguments = {
                name: None if value is None else map_columns(place, value)
                for name, value in arguments.items()
            }
        if "weight" in fields:
            weights, ids = arguments["weights"], fields["ids"]
            if weigh:
                arguments["rewards"] = WeightedRewards.of(
                    arguments["rewards"], Losses(weights, ids)
                )
            return PrioritizedReplayBufferSamples(**arguments, ids=ids)
        if isinstance(arguments["observations"], dict):
            return type_aliases.DictReplayBufferSamples(**arguments)
        return type_aliases.ReplayBufferSamples(**arguments)


def valid(fields: Fields) -> Fields:
    """Put other draws of the batch in the place of those that are no rows.

    A view cannot read every row: the frames before the oldest ones have been overwritten. Each of
    these draws becomes one that the sampler might as well have drawn in its place.
    """
    mask = fields.pop("mask")
    if mask is None or (mask := on_host(mask)).all():
        return fields
    (good,) = mask.nonzero()
    if not len(good):
        raise RuntimeError(
            f"{WHERE}.sample: no row can be drawn; there may be too few steps for the sampler, or "
            "all priorities are 0"
        )
    rows = np.arange(len(mask))
    rows[~mask] = np.resize(good, len(mask) - len(good))

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf[rows]
        # Torch cannot index with all dtypes that a space may have.
        return torch.from_numpy(leaf.cpu().numpy()[rows]).to(leaf.device)

    return jax.tree.map(pick, fields)
