"""Runs the scripts of CleanRL that `tests.peers.cleanrl` has written to the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.cleanrl import SCRIPTS

FOLDER = Path.cwd()


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("scripts/*.py"))])
def test_a_script_ends_and_returns_are_told(name: str) -> None:
    paths = os.pathsep.join([str(FOLDER / "needs"), os.environ["PYTHONPATH"]])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", f"scripts/{name}.py", *SCRIPTS[name]],
        cwd=FOLDER,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "episodic_return=" in run.stdout
    assert "SPS:" in run.stdout  # which is said where a batch was learned from
