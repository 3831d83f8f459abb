"""Runs the notebooks that `tests.peers.flashbax_notebooks` has written to the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path.cwd()


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("scripts/*.py"))])
def test_all_cells_run(name: str) -> None:
    needs = [str(FOLDER / "needs_of" / name), str(FOLDER / "needs")]
    paths = os.pathsep.join([*needs, os.environ["PYTHONPATH"]])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", f"scripts/{name}.py"],
        cwd=FOLDER,
        # Plots are drawn, and shown nowhere.
        env=os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
