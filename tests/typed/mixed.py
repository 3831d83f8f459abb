"""Environments and replay in JAX, the learner in PyTorch."""

from __future__ import annotations

from typing import assert_type

import jax
import jax.numpy as jnp
import torch
from fbuf_adapters.pytorch import from_torch, to_torch

import fbuf


def main() -> None:
    state = fbuf.init({"obs": jnp.zeros(4), "reward": jnp.zeros(())}, 1000)
    network = torch.nn.Linear(4, 1)
    for step in range(10):
        state = fbuf.add(state, {"obs": jnp.ones((8, 4)), "reward": jnp.ones(8)})
        batch = to_torch(fbuf.sample(state, jax.random.key(step), 16))
        assert_type(batch.weight, torch.Tensor)
        value = network(batch.data["obs"])[:, 0]
        loss = (batch.weight * (batch.data["reward"] - value).square()).mean()
        loss.backward()
        back: jax.Array = from_torch({"loss": loss.detach()[None]})["loss"]
        print(back.sum())


if __name__ == "__main__":
    main()
