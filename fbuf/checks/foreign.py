"""The gate for files that somebody else may have written: checkpoints, and data sets.

Such a file is opened only if it is a plain file that lies inside of its directory. The sizes that
it declares are held against its own before memory is taken for them. All refusals are of one class,
which the caller names: `CheckpointError`, or `DatasetError`.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import stat
from collections.abc import Sequence
from typing import BinaryIO

from fbuf.checks import sizes

LONGEST = 1024
"""The longest path within a directory, in characters."""

_FREE = 2**30
"""Bytes that any file may become, however small it is."""

_TIMES = 250
"""The most growth of a file above `_FREE`, in multiples of its size.

Images, sensors and actions are far below it, and so are flags that are mostly False.
"""

_MOST_VALUES = 2**24
"""The most values of a JSON file; each takes some hundred bytes as an object of Python."""

_BLOB = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
"""The name of a file in a cache of the Hugging Face hub: a SHA-1 or a SHA-256."""

_CACHE = re.compile(r"(datasets|models|spaces)--[^/]+")


class Refusal(ValueError):
    """A file that is not opened; the message says why, without its name."""


def size(path: pathlib.Path) -> int:
    """Return the bytes of a plain file, which is not opened.

    To open a pipe waits for somebody who writes to it, and to open a device may change it.

    Raises:
        Refusal: If it is a directory, a pipe, a device or a socket.
        OSError: If it cannot be found; `FileNotFoundError` if there is none.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise Refusal(f"it is {_kind(found.st_mode)}, and no plain file")
    return found.st_size


def opened(path: pathlib.Path) -> BinaryIO:
    """Open a plain file to be read.

    Raises:
        Refusal: As `size`.
        OSError: If it cannot be opened; `FileNotFoundError` if there is none.
    """
    size(path)
    return open(path, "rb", opener=_without_waiting)


def read(path: pathlib.Path, most: int) -> bytes:
    """Return all of a plain file.

    Raises:
        Refusal: As `size`; and if it has more bytes than `most`.
        OSError: As `opened`.
    """
    with opened(path) as file:
        there = os.fstat(file.fileno()).st_size
        found = file.read(min(there, most) + 1)  # memory is taken for as many as are asked for
    if len(found) > most:
        raise Refusal(f"it has more than {most:,} bytes")
    return found


def _without_waiting(path: str, flags: int) -> int:
    """Open a file that may be a pipe by now."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(mode: int) -> str:
    """Return in words what a file is that is no plain one."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "of an unknown kind")


def inside(root: pathlib.Path, name: str, *, links: bool) -> pathlib.Path:
    """Return the path of a file that a file of the same directory names.

    With `links`, a link may lead to another place in the directory. It may also lead to a blob in a
    cache of the Hugging Face hub, where all files are links. Such a blob is called by its checksum,
    in `datasets--owner--name/blobs`.

    Args:
        root: The directory, without links in its own path.
        name: The name of the file within it.
        links: Whether links are followed at all.

    Raises:
        Refusal: If the name or a link leads anywhere else.
    """
    if len(name) > LONGEST:
        raise Refusal(f"its name has {len(name):,} characters, and {LONGEST:,} are allowed")
    if not name.isprintable() or os.path.isabs(name) or "\\" in name:
        raise Refusal("its name is no plain path within the directory")
    parts = name.split("/")
    if any(part in ("", ".", "..") or ":" in part for part in parts):
        raise Refusal("its name leads out of the directory")
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink() and not (links and _may_lead(root, path)):
            raise Refusal(
                f"{part} is a link to {printable(os.path.realpath(path))}"
                + (", which lies outside of the directory; copy the files into it" * links)
            )
    return path


def _may_lead(root: pathlib.Path, link: pathlib.Path) -> bool:
    """Return whether a link leads to a place in a directory, or to a blob of the hub's cache."""
    target = pathlib.Path(os.path.realpath(link))
    if target.is_relative_to(root):
        return True
    blobs = target.parent
    is_blob = _BLOB.fullmatch(target.name) and blobs.name == "blobs"
    return bool(is_blob and _CACHE.fullmatch(blobs.parent.name))


def require_size(declared: int, stored: int) -> None:
    """Refuse a file that would become far larger than it is.

    Args:
        declared: The bytes that its arrays take in memory.
        stored: The bytes of the file.

    Raises:
        Refusal: If it is more than 1 GiB, and more than 250 times the size of the file.
    """
    if declared > max(_FREE, _TIMES * stored):
        raise Refusal(
            f"its {sizes.in_words(stored)} declare arrays of {sizes.in_words(declared)}; if you "
            "trust it, read it yourself and use from_arrays"
        )


def require_json(text: bytes) -> None:
    """Refuse JSON with so many values that they could fill the memory.

    Raises:
        Refusal: If there are more than 2**24.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise Refusal(f"it has more than {_MOST_VALUES:,} values")


def require_shape(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array of a declared shape.

    Raises:
        Refusal: If an axis or the whole is no size of an array.
    """
    if any(size < 0 for size in shape) or len(shape) > 32:
        raise Refusal(f"it declares an array of shape {tuple(shape)[:40]}")
    count = math.prod(shape) * itemsize
    if count >= 2**63:
        raise Refusal("it declares an array of more than 2**63 bytes")
    return count


def printable(text: str) -> str:
    """Return a text of somebody else as one line that can be printed.

    A terminal obeys escape sequences, and a line break could feign a line of a report. So all
    characters that do not show are written as escapes.
    """
    if text.isprintable():
        return text
    escaped = lambda char: char.encode("unicode_escape").decode("ascii")
    return "".join(char if char.isprintable() else escaped(char) for char in text)
