"""Batches as Stable-Baselines3 has them, of the arrays that were drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from stable_baselines3.common import type_aliases
from stable_baselines3.common.vec_env import VecNormalize

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
        item = fields["item"]
        return {
            "observations": self._tensors("observations", item["observation"]),
            "actions": self._tensors("actions", item["action"]),
            "next_observations": self._tensors("observations", fields["next_observation"]),
            "dones": _NUMBER.tensor(fields["done"]),
            "rewards": _NUMBER.tensor(fields["reward"]),
            "discounts": fields.get("discount"),
        }

    def _tensors(self, name: str, tree: Any) -> Any:
        return map_columns(Column.tensor, self.columns[name], tree)

    def normalize(
        self, found: Fields, env: VecNormalize, rewards: Callable[[], tuple[Array, Array]]
    ) -> None:
        """Normalise observations and rewards, as the environment says.

        Args:
            found: The arguments of the batch.
            env: The environment.
            rewards: Returns the rewards of each of several steps, and which there are.
        """
        for name in ("observations", "next_observations"):
            arrays = jax.tree.map(lambda leaf: leaf.cpu().numpy(), found[name])
            found[name] = jax.tree.map(torch.from_numpy, env.normalize_obs(arrays))
        if self.gamma is None or not env.norm_reward:
            sums = env.normalize_reward(found["rewards"].cpu().numpy())
        else:  # rewards are clipped when they are normalised, so each by itself
            each, valid = rewards()
            factors = self.gamma ** np.arange(each.shape[1], dtype=np.float32)
            sums = (env.normalize_reward(each) * valid * factors).sum(axis=1, keepdims=True)
        found["rewards"] = torch.from_numpy(np.asarray(sums, np.float32))

    def deliver(self, found: Fields, fields: Fields, device: torch.device, weigh: bool) -> Any:
        """Return the batch of its arguments, on a device; with `weigh` its rewards weigh losses."""
        if "weight" in fields:
            found["weights"] = fields["weight"][:, None]
        if self.arrays == "jax" or device.type != "cpu":
            place = JaxTensor.of if self.arrays == "jax" else lambda tensor: tensor.to(device)
            found = {
                name: None if value is None else map_columns(place, value)
                for name, value in found.items()
            }
        if "weight" in fields:
            weights, ids = found["weights"], fields["ids"]
            if weigh:
                found["rewards"] = WeightedRewards.of(found["rewards"], Losses(weights, ids))
            return PrioritizedReplayBufferSamples(**found, ids=ids)
        if isinstance(found["observations"], dict):
            return type_aliases.DictReplayBufferSamples(**found)
        return type_aliases.ReplayBufferSamples(**found)


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
