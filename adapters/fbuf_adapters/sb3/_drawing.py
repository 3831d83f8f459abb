"""The way batches are drawn, and the arrays that a batch then has."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import BufferSpec, View

Fields = dict[str, Any]
"""The arrays of a batch, by name."""


class Drawing(NamedTuple):
    """The way batches are drawn, static.

    Attributes:
        view: The view of a drawn row.
        gamma: The discount of a step, to return those of n steps; None returns none.
        named: Whether to return ids, too.
        weighted: Whether to return importance weights.
        arrays: `"torch"`, or `"jax"` for tensors in memory that JAX can take over.
    """

    view: View
    gamma: float | None
    named: bool
    weighted: bool = False
    arrays: str = "torch"

    def by_numpy(self, spec: BufferSpec, device: Any) -> bool:
        """Whether NumPy can draw them: transitions on the CPU, and no stacks of frames."""
        plain = _is_plain(self.view) and not self.weighted and self.arrays == "torch"
        return plain and spec.sampler == fbuf.Uniform() and device.platform == "cpu"

    def fields(self, batch: Any) -> Fields:
        """Return the arrays of a batch that was read through the view."""
        data, item = batch.data, batch.data.item
        reward = item["reward"] if self.gamma is None else data.reward
        columns = {
            "item": item,
            "next_observation": data.next_observation,
            "reward": reward[:, None],
            "done": batch.terminated.astype(jnp.float32)[:, None],
            "mask": batch.mask,
        }
        if self.gamma is not None:
            discount = self.gamma ** data.steps.astype(jnp.float32)
            columns["discount"] = jnp.where(batch.mask, discount, 0)[:, None]
        if isinstance(self.view, fbuf.Hindsight):
            columns["relabelled"] = data.relabelled
        if self.named:
            columns["ids"] = batch.ids
        if self.weighted and isinstance(batch, fbuf.Sample):
            columns["weight"] = batch.weight
        return columns


def _is_plain(view: View) -> bool:
    """Tell whether a view has no option but those of Stable-Baselines3; a derived buffer may."""
    if isinstance(view, fbuf.NStep):
        return not isinstance(view.n, tuple) and view == fbuf.NStep(view.n, gamma=view.gamma)
    if isinstance(view, fbuf.Hindsight):
        others = {"discount": None, "nearest": 0, "copies": None, "next_of": None, "fields": None}
        names = {"goal": "observation.desired_goal", "achieved": "achieved", "reward": "reward"}
        plain = view == dataclasses.replace(view, **others, **names)
        return plain and view.strategy in ("future", "final", "episode")
    return view == fbuf.Transition()
