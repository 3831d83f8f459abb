"""Paths that a user names."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a URL; `pathlib` merges two slashes. A drive has a single letter."""


def local(where: str, path: Any) -> pathlib.Path:
    """Return the full path of a file or directory that a user names.

    `~` is the home directory, as in a shell, and links are followed.

    Args:
        where: The function to name in errors, such as `"fbuf.save"`.
        path: The argument of the user.

    Raises:
        ValueError: If it is empty, or a URL.
        TypeError: If it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{where}: path must be a str or a path, got {type(path).__name__}")
    named = str(os.fspath(path))
    if not named:
        raise ValueError(f"{where}: path is empty; give a directory")
    if _URL.match(named):
        raise ValueError(
            f"{where}: {named!r} is a URL, and fbuf reads and writes the files of this machine "
            "only; copy what is there. docs/do/copy_to_a_bucket.md says how to copy a checkpoint "
            "to a bucket and back"
        )
    try:
        return pathlib.Path(named).expanduser().resolve()
    except RuntimeError as error:  # the user does not exist
        raise ValueError(f"{where}: {named!r} cannot be found: {error}") from None
