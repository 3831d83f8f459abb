"""A learner in PyTorch that holds its buffer as an object."""

from __future__ import annotations

from typing import assert_type

import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf


def main() -> None:
    buffer = ReplayBuffer(
        10_000,
        sampler=fbuf.Prioritized(window=2),
        view=fbuf.Transition("obs"),
        autoreset="next_step",
        next_of="obs",
        batch_size=32,
        prefetch=2,
        seed=0,
    )
    network = torch.nn.Linear(4, 2)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(100):
        rows = {
            "obs": torch.zeros(8, 4),
            "action": torch.zeros(8, dtype=torch.int32),
            "reward": torch.ones(8),
        }
        ends = torch.zeros(8, dtype=torch.bool)
        buffer.extend(rows, next_observation=rows["obs"], terminated=ends)
        batch = buffer.sample()
        assert_type(batch.weight, torch.Tensor)
        assert_type(batch.ids.slot, torch.Tensor)
        value = network(batch.data.item["obs"]).max(dim=1).values
        error = batch.data.item["reward"] - value
        loss = (batch.weight * batch.mask * error.square()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        buffer.update_priority(batch.ids, error.detach().abs())
        print(batch.probability.max().item())
    for batch in buffer:
        assert_type(batch.terminated, torch.Tensor)
        break
    print(buffer[:]["reward"].mean(), len(buffer))
    buffer.save("run")
    buffer.close()


if __name__ == "__main__":
    main()
