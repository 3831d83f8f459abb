"""Compiled programs kept from one run of the tests to the next; knows nothing of JAX."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import platform

MOST = 500 * 2**20
"""Bytes that are kept when a run begins."""


def folder():
    """A folder of the user's, one for each kind of processor: programs are for one alone."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    kind = platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        kind += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return pathlib.Path(home) / "fbuf-tests" / hashlib.sha256(kind.encode()).hexdigest()[:12]


def bound(folder, most=MOST):
    """Delete the oldest files of a folder until so many bytes are left."""
    if not folder.is_dir():
        return
    files = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run deletes, too
            files.append((entry.stat().st_mtime, entry.stat().st_size, entry))
    files.sort()
    total = sum(size for _, size, _ in files)
    for _, size, entry in files:
        if total <= most:
            return
        total -= size
        entry.unlink(missing_ok=True)
