"""A lock on a disk without locks: a file that only one process can make.

A file stays when its process is killed. Another process of the same machine takes the file over
once its process is gone. A process elsewhere may be alive or not, so the user is asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
from collections.abc import Generator

from fbuf.checks import foreign

NAME = "LOCK-HELD"
_GUARD = "LOCK-TAKEN-OVER"
"""Held during a takeover: otherwise two processes could delete each other's lock."""

_LONGEST = 2**16
"""The longest such file, in bytes."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process, identified among all processes.

    Attributes:
        process: Its number.
        host: The name of its machine.
        place: The boot of the machine, and the name space of the number. A number has a meaning
            only within one place.
        started: The start time of the process; empty if unknown.
    """

    process: int
    host: str
    place: str
    started: str


def _started(process: int) -> str | None:
    """Return the start time of a process in this name space; None if it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        pass
    else:
        state, *numbers = stat.rpartition(")")[2].split()
        return None if state in "ZX" else numbers[18]  # a zombie holds nothing
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def _own() -> Holder:
    """Return this process."""
    place = ""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return Holder(os.getpid(), socket.gethostname(), place, _started(os.getpid()) or "")


def _made(path: pathlib.Path, own: Holder) -> bool:
    """Make the file; return False if it exists."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(file, json.dumps(dataclasses.asdict(own)).encode())
    except BaseException:  # on a full disk it would stay without an owner
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return True


def _holder(path: pathlib.Path) -> Holder | None:
    """Return the process that made the file; None if the file is not readable, or not yet."""
    try:
        found = json.loads(foreign.read(path, _LONGEST))
        kinds = {name: type(value) for name, value in found.items()}
        is_whole = kinds.pop("process") is int and set(kinds.values()) == {str}
        return Holder(**found) if is_whole else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _is_gone(holder: Holder | None, own: Holder) -> bool:
    """Return whether a process has certainly ended."""
    if holder is None or not own.place or (holder.host, holder.place) != (own.host, own.place):
        return False
    started = _started(holder.process)
    # Without a start time, the number may have a new owner.
    return started is None or ("" not in (started, holder.started) and started != holder.started)


def _busy(path: pathlib.Path, holder: Holder | None) -> BlockingIOError:
    host = foreign.printable(holder.host) if holder else ""
    who = f"process {holder.process} on {host}" if holder else "another process"
    return BlockingIOError(
        f"fbuf.save: {path.parent} is being written by {who}; save to another directory, or end "
        f"that process. If it has ended, delete {path}: this disk has no locks, so the file stays "
        "when a process is killed"
    )


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Generator[None]:
    """Hold the lock of a directory.

    Raises:
        BlockingIOError: If another process holds it, or may hold it.
    """
    path, own = folder / NAME, _own()
    if not _made(path, own):
        _take_over(path, own)
    try:
        yield
    finally:
        if os.getpid() == own.process and _holder(path) == own:  # and not a forked one
            path.unlink(missing_ok=True)


def _take_over(path: pathlib.Path, own: Holder) -> None:
    """Replace the file of a process that has ended; refuse if the process may live."""
    guard = path.with_name(_GUARD)
    if not _made(guard, own):
        raise _busy(guard, _holder(guard))
    try:
        if not _is_gone(holder := _holder(path), own):
            raise _busy(path, holder)
        path.unlink(missing_ok=True)
        if not _made(path, own):
            raise _busy(path, _holder(path))
    finally:
        guard.unlink(missing_ok=True)
