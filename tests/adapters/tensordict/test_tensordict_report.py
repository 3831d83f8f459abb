"""Reports of the object with TorchRL's methods."""

from __future__ import annotations

import pytest

pytest.importorskip("tensordict")

import torch
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from tensordict import TensorDict

import fbuf


def test_a_report():
    buffer = TensorDictReplayBuffer(200, batch_size=8)
    assert [finding.name for finding in fbuf.report(buffer).findings] == ["empty"]
    done = torch.arange(100)[:, None] % 7 == 6
    data = {
        "observation": torch.randn(100, 3),
        "action": torch.randint(0, 4, (100,)),
        "next": {
            "observation": torch.randn(100, 3),
            "reward": torch.zeros(100, 1),
            "done": done,
            "terminated": done,
        },
    }
    buffer.extend(TensorDict(data, [100]))
    report = fbuf.report(buffer)
    assert [finding.name for finding in report.findings] == ["rewards_zero"]
    assert report.figures["reward"] == "next.reward"
    assert report.figures["episodes"] == 14
