"""`make matrix` finds an operation whose time grows with the capacity."""

from __future__ import annotations

import pathlib
import shutil
import sys

import matrix
import pytest

ROOT = pathlib.Path(__file__).parents[2]
WRITE = 'return leaf.at[slots].set(rows, mode="drop", unique_indices=True)'
WRITE_ALL = WRITE.replace("leaf", "(leaf + (slots[0] < 0).astype(leaf.dtype))", 1)


@pytest.mark.sweep
@pytest.mark.optimised
def test_adds_that_write_every_row_are_not_flat(tmp_path, monkeypatch):
    """And no other operation, nor these as they are."""
    monkeypatch.setattr(matrix, "HOME", tmp_path)
    shutil.copytree(ROOT / "fbuf", tmp_path / "fbuf")
    file = tmp_path / "fbuf" / "xla" / "rows.py"
    text = file.read_text()
    assert text.count(WRITE) == 1
    assert matrix.is_flat("here", matrix.step_times(sys.executable, ROOT, PYTHONPATH=str(ROOT)))
    file.write_text(text.replace(WRITE, WRITE_ALL))
    times = matrix.step_times(sys.executable, ROOT, PYTHONPATH=str(tmp_path))
    for name in ("add", "add of bfloat16"):
        assert not matrix.is_flat("here", {name: times.pop(name)})
    assert matrix.is_flat("here", times)
