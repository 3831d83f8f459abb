"""Free memory, and sizes as people write them."""

from __future__ import annotations

import math
import pathlib
import re
import resource
from typing import Any

import jax
import numpy as np

_UNITS = {"": 1, "B": 1}
_UNITS.update({f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)})
# 24G is 24 * 1024**3 bytes to ls, du, Docker and SLURM.
for _ending in ("", "I", "IB"):
    _UNITS.update({f"{letter}{_ending}": 1024**n for n, letter in enumerate("KMGTP", start=1)})

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def size(function: str, argument: str, value: Any) -> int:
    """Return a number of bytes, at least 1, given as an int or as words such as `"24GiB"`."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.replace("_", ""))
        unit = None if found is None else _UNITS.get(found[2].upper())
        if found is None or unit is None:
            raise ValueError(
                f"fbuf.{function}: {argument} must be a number of bytes, or one with a unit such "
                f"as '24GiB' or '500 MB', got {value!r}"
            )
        value = math.floor(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(
            f"fbuf.{function}: {argument} must be an int or a str such as '24GiB', got {value!r}"
        )
    if value < 1:
        raise ValueError(f"fbuf.{function}: {argument} must be at least 1 byte, got {value}")
    return int(value)


def nbytes(tree: Any) -> int:
    """Count the bytes of all arrays, or of all `jax.ShapeDtypeStruct`, of a tree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def in_words(count: int) -> str:
    """Return a number of bytes as people write it: `1.5 GiB`."""
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:,.1f} {'KMGT'[power - 1]}iB"


def free(device: Any) -> int | None:
    """Return the bytes that can be allocated on a device; None if they are unknown."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_of_host() if device.platform == "cpu" else None


def free_of_host() -> int | None:
    """Return the available bytes on Linux, swap included, within the container's limit."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    known = {name: int(rest.split()[0]) * 1024 for name, rest in (x.split(":") for x in lines)}
    if "MemAvailable" not in known:
        return None
    available = known["MemAvailable"] + known.get("SwapFree", 0)
    addresses = free_addresses()
    limits = [*_left_of_container(), *([] if addresses is None else [addresses])]
    return min([available, *limits])


def free_addresses() -> int | None:
    """Return the bytes that the process may still map (`ulimit -v`); None for no limit.

    A file that is mapped counts, too, though its pages take no memory for long.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return None
    return max(limit - pages * resource.getpagesize(), 0)


def _left_of_container() -> list[int]:
    """List the bytes that a control group's limit leaves; the cache of files counts as free."""
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        stat = dict(x.split() for x in (group / "memory.stat").read_text().splitlines())
        return [int(limit) - int(used) + int(stat.get("inactive_file", 0))]
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return []
