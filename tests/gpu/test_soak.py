"""The soak: ten minutes of threads, which run only where they are asked for: `pytest -m soak`."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("psutil")

import soak  # noqa: E402 (after the skip)
import stage  # noqa: E402 (after the skip)

needs_benchmarks = pytest.mark.skipif(
    not stage.BENCHMARKS.exists(), reason="needs the benchmarks, for the report"
)


def run(monkeypatch, seconds, folder):
    """The script, which exits with an error if anything was wrong; and what it found."""
    options = ["--seconds", str(seconds), "--results", str(folder)]
    monkeypatch.setattr(sys, "argv", ["soak.py", *options])
    soak.main()
    (found,) = json.loads((folder / "soak.json").read_text())["records"]
    return found


@pytest.mark.soak
@needs_benchmarks
def test_ten_minutes(monkeypatch, tmp_path):
    found = run(monkeypatch, 600, tmp_path)
    assert found["rows written"] > 1000
    assert found["batches drawn"] > 1000


@pytest.mark.sweep
@needs_benchmarks
def test_a_few_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(soak, "MOST_GROWTH", 200e6)  # pools have not filled by then
    found = run(monkeypatch, 12, tmp_path)
    assert found["rows written"] > 0
    assert found["batches drawn"] > 0


def batch():
    rows = soak.fill(soak.memory_on(torch.device("cpu")), writer=2, number=70_000)
    item = {key: leaf.clone().unflatten(0, (-1, soak.SLICE)) for key, leaf in rows.items()}
    mask = torch.ones(soak.ROWS // soak.SLICE, dtype=torch.bool)
    return SimpleNamespace(data=SimpleNamespace(item=item), mask=mask)


@pytest.mark.parametrize(
    "tear",
    [
        lambda words: words[3, 5:].copy_(words[4, 5:].clone()),
        lambda words: words[3].copy_(words[4].clone()),
        lambda words: words[3, -1:].add_(1),
        lambda words: words[3].zero_(),
    ],
    ids=["half of another row", "another row", "one word", "nothing"],
)
def test_a_torn_row_is_found(tear):
    rows = batch()
    assert soak.torn(rows) == 0
    tear(rows.data.item["words"].flatten(0, 1))
    assert soak.torn(rows) == 1
    rows.mask[0] = False  # its slice is none at all
    assert soak.torn(rows) == 0


def test_a_slice_of_two_episodes_is_found():
    rows = batch()
    rows.data.item["number"][1, 2] += 1
    assert soak.torn(rows) >= 1
