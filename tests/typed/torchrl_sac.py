"""A program that came from TorchRL: TensorDicts in, TensorDicts out."""

from __future__ import annotations

import torch
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from tensordict import TensorDict

import fbuf


def main() -> None:
    buffer = TensorDictReplayBuffer(
        10_000,
        sampler=fbuf.Prioritized(),
        batch_size=16,
        priority_key="td_error",
        transform=lambda batch: batch,
    )
    network = torch.nn.Linear(4, 1)
    for _ in range(10):
        steps = TensorDict(
            {
                "observation": torch.zeros(8, 4),
                "next": {
                    "observation": torch.ones(8, 4),
                    "reward": torch.ones(8, 1),
                    "done": torch.zeros(8, 1, dtype=torch.bool),
                },
            },
            [8],
        )
        buffer.extend(steps)
        batch = buffer.sample()
        error = batch["next", "reward"] - network(batch["observation"])
        batch["td_error"] = error.detach().abs().squeeze(-1)
        buffer.update_tensordict_priority(batch)
    print(len(buffer), buffer[:].batch_size)


if __name__ == "__main__":
    main()
