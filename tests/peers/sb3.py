"""Stable-Baselines3's own tests, with the buffers of `fbuf_adapters.sb3` in place of its own.

The tests come with the source distribution of the installed version, which pip fetches.
"""

from __future__ import annotations

from pathlib import Path

from tests.peers import fetch

FILES = ("buffers", "her", "n_step_replay", "dict_env", "save_load")
"""Tests of what a buffer is in: `test_*.py`."""

_NEWEST = "rows that are stored do not change; the test writes to an array of the buffer"

KNOWN = {
    "test_n_step_replay.py::test_nstep_no_terminations": _NEWEST,
}
"""Tests that fail, each with its reason."""


def tests(folder: Path) -> list[Path]:
    """Fetch the source distribution, and return its files of tests."""
    unpacked = fetch.tests_of("stable-baselines3", folder)
    return [unpacked / f"test_{name}.py" for name in FILES]


def replace() -> None:
    """Put our classes in the place of theirs, wherever they have been imported to."""
    import stable_baselines3
    import stable_baselines3.her
    from stable_baselines3.common import buffers, off_policy_algorithm
    from stable_baselines3.her import her_replay_buffer

    from tests.peers import sb3_buffers

    ours = {
        "ReplayBuffer": sb3_buffers.Buffer,
        "DictReplayBuffer": sb3_buffers.Buffer,
        "NStepReplayBuffer": sb3_buffers.NStep,
        "HerReplayBuffer": sb3_buffers.Her,
    }
    theirs = stable_baselines3, stable_baselines3.her, buffers
    for module in (*theirs, off_policy_algorithm, her_replay_buffer):
        for name, kind in ours.items():
            if hasattr(module, name):
                setattr(module, name, kind)
