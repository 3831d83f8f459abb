"""Reports and pictures of the object for PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402

import fbuf  # noqa: E402 (after the skip)


def rows(count):
    return {"observation": torch.randn(count, 3), "reward": torch.zeros(count)}


def names(buffer):
    return [finding.name for finding in fbuf.report(buffer).findings]


@pytest.mark.parametrize("options", [{}, {"host": True}])
def test_a_report(options):
    buffer = ReplayBuffer(200, batch_size=8, **options)
    assert names(buffer) == ["empty"]
    buffer.extend(rows(100))
    assert names(buffer) == ["rewards_zero"]
    buffer.extend(rows(10) | {"reward": torch.full((10,), torch.nan)})
    assert names(buffer) == ["not_finite"]
    assert buffer.sample().data["reward"].shape == (8,)
    buffer.close()
    with pytest.raises(RuntimeError, match="closed"):
        fbuf.report(buffer)


def test_a_picture():
    pytest.importorskip("matplotlib")
    buffer = ReplayBuffer(200, batch_size=8, host=True)
    buffer.extend(rows(100))
    assert fbuf.plot(buffer).axes[0].get_title() == "200 slots"
