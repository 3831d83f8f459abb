"""Find leftovers of a test."""

import contextlib
import os
import pathlib
import threading


def left():
    """Return all that a test could leave: processes, threads, open files, and shared memory."""
    processes = set()
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                command = (status.parent / "cmdline").read_text()
                processes.add((status.parent.name, command))
        except OSError:
            pass
    return {
        "processes": processes,
        "threads": {thread for thread in threading.enumerate() if not _is_others(thread)},
        "files": sorted(_files()),
    }


def orphans():
    """Return the shared memory that no process holds: other programs have theirs."""
    # Semaphores are those of other tests, which look for them only when they have been made.
    found = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text()
            found -= {name for name in found if name in text}
    return found


def _is_others(thread):
    """Whether it is tqdm's own, or one that Python did not start: JAX's, seen in a callback."""
    return thread.name == "tqdm_monitor" or isinstance(thread, threading._DummyThread)


def _files():
    for file in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            name = os.readlink(file)
            if not name.startswith("/dev/shm/pym-"):  # Python's own, for arrays to come
                yield name.partition(":[")[0]
