"""A disk that is soon full."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
from collections.abc import Generator

import pytest


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: str) -> Generator[pathlib.Path]:
    """A file system of that size, such as `"300k"`; the test is left out if none can be made."""
    small = folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield small
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
