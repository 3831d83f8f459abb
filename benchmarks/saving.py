"""Saving and loading a buffer, beside orbax, TorchRL and NumPy.

    python -m benchmarks.saving            some minutes, and 6 GB of disk
    python -m benchmarks.saving --quick    small buffers

It needs fbuf, JAX, orbax and TorchRL. A library that is not installed is left out of the tables.

A full buffer of a million rows is saved to an empty directory. Then 1 % of its rows are added, and
it is saved again to the same place. Then fbuf writes the new rows only; the other libraries write
everything, to a new directory. "Stopped" is the time that the call keeps the training loop with
`background=True`; the time of a save is until all is on the disk. The loop goes on with the
buffer that `fbuf.save` returns. All figures are medians over the saves, after one that compiles.

A file of fbuf is brought to the disk (`fsync`) before it counts, and a load holds all bytes against
checksums. A save that is stopped leaves the one before it. The saver of orbax is its
`StandardCheckpointer`. TorchRL (`dumps` of a `TensorDictReplayBuffer`) and NumPy (`savez`) leave
the bytes to the operating system, and check nothing.

Memory is the growth of the process while it saves or loads, at its highest, of the size of the
buffer. A buffer that is loaded is itself 1.00 of that. "Resident" is how much larger the process is
once it has made and filled a buffer, of its size. "Programs" is how much it keeps when the first
such buffer has gone: compiled programs, and what XLA and the allocator keep for their threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import pathlib
import shutil
import tempfile
import time
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task

WIDTHS = {"1 kB": 254, "40 bytes": 10}
"""Numbers of float32 in a row, by what a row is called."""

LIBRARIES = ("fbuf", "orbax", "torchrl", "numpy")
_PARTS = 100
"""In how many parts a buffer is filled."""

_LATER = 5
"""Times that 1 % is added and saved again."""


# --- memory ---------------------------------------------------------------------------------------


def _status(name: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(found) * 1024


def _resident() -> int:
    """Return the bytes that the process holds, once it has given back all free memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _status("VmRSS")


@contextlib.contextmanager
def phase(found: dict[str, float], name: str) -> Generator[None]:
    """Take note of the seconds of a block, and of how many bytes the process grows at most."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the highest mark
    before, begun = _status("VmRSS"), time.perf_counter()
    yield
    found[name] = time.perf_counter() - begun
    found[f"{name} memory"] = _status("VmHWM") - before


# --- the libraries --------------------------------------------------------------------------------


def make(rows: int, width: int) -> fbuf.State[Any]:
    """A full buffer of random rows, which nothing can make smaller."""
    state = fbuf.init(jnp.zeros(width), rows, sampler=fbuf.Prioritized())
    for key in jax.random.split(jax.random.key(0), _PARTS):
        state = fbuf.add(state, jax.random.normal(key, (rows // _PARTS, width)))
    return jax.block_until_ready(state)


def of_fbuf(folder: pathlib.Path, rows: int, width: int) -> dict[str, float]:
    """Saves and loads of fbuf's own."""
    path, new, found = folder / "saved", jnp.ones((rows // 100, width)), dict[str, float]()
    size = fbuf.nbytes(jnp.zeros(width), rows, sampler=fbuf.Prioritized())
    jax.block_until_ready(new)
    first = _resident()
    make(rows, width)  # compiles what can be
    before = _resident()
    state = make(rows, width)
    found["programs"], found["resident"] = before - first, _resident() - before
    fbuf.save(folder / "warm", state)
    with phase(found, "full"):
        state = fbuf.save(path, state)
    stopped: list[float] = []
    new_rows: list[float] = []
    for _ in range(1 + _LATER):
        state = jax.block_until_ready(fbuf.add(state, new))
        begun = time.perf_counter()
        state = fbuf.save(path, state, background=True)
        stopped.append(time.perf_counter() - begun)
        fbuf.wait()
        new_rows.append(time.perf_counter() - begun)
    del state
    with phase(found, "load"):
        loaded = fbuf.load(path).state
    assert int(fbuf.size(loaded)) == rows
    return {
        **found,
        "bytes": size,
        "stopped": harness.median(stopped[1:]),
        "new": harness.median(new_rows[1:]),
    }


def of_orbax(folder: pathlib.Path, rows: int, width: int) -> dict[str, float]:
    """The same state through orbax."""
    import orbax.checkpoint as ocp

    found: dict[str, float] = {}
    state = make(rows, width)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    with ocp.StandardCheckpointer() as saver:
        for name in ("warm", "full", "new"):
            with phase(found, name):
                saver.save(folder / name, state)
                saver.wait_until_finished()
        del state
        with phase(found, "load"):
            jax.block_until_ready(saver.restore(folder / "new", like))
    return found


def of_torchrl(folder: pathlib.Path, rows: int, width: int) -> dict[str, float]:
    """A buffer of TorchRL's with the same rows, drawn uniformly: its sum tree may not load."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    found: dict[str, float] = {}
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=1)
    for _ in range(_PARTS):
        data = {"x": torch.randn(rows // _PARTS, width)}
        rb.extend(TensorDict(data, batch_size=[rows // _PARTS]))
    for name in ("full", "new"):
        with phase(found, name):
            rb.dumps(folder / name)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=1)
    with phase(found, "load"):
        rb.loads(folder / "new")
    return found


def of_numpy(folder: pathlib.Path, rows: int, width: int) -> dict[str, float]:
    """The arrays of the state in one file."""
    found: dict[str, float] = {}
    state = make(rows, width)
    for name in ("full", "new"):
        with phase(found, name):
            arrays = {str(n): np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(state))}
            np.savez(folder / f"{name}.npz", **arrays)
            del arrays
    del state
    with phase(found, "load"), np.load(folder / "new.npz") as saved:
        jax.block_until_ready([jnp.copy(saved[name]) for name in saved.files])
    return found


_OF = {"fbuf": of_fbuf, "orbax": of_orbax, "torchrl": of_torchrl, "numpy": of_numpy}


# --- measuring ------------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    count = 20_000 if quick else 1_000_000
    return [
        {"label": f"{library}, rows of {row}", "library": library, "row": row, "rows": count}
        for row in WIDTHS
        for library in LIBRARIES
        for _ in range(1 if quick else 2)
    ]


def measure(task: Task) -> Measured:
    """Do one task."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fbuf-saving-"))
    try:
        found = _OF[task["library"]](folder, task["rows"], WIDTHS[task["row"]])
    except ImportError as error:
        return Measured([], [f"{task['library']}: {error}"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    of = {"library": task["library"], "row": task["row"], "rows": task["rows"]}
    return Measured([{**of, "what": what, "value": value} for what, value in found.items()])


def tables(records: list[Record]) -> list[str]:
    """Seconds, and memory."""
    lines: list[str] = []
    find = report.Find(records, "value")
    for row in WIDTHS:
        size = find(library="fbuf", row=row, what="bytes") or 1.0
        names = ("full", "new", "load", "full memory", "load memory")
        body = []
        for library in LIBRARIES:
            of = {name: find(library=library, row=row, what=name) for name in names}
            memory = [of[name] and of[name] / size for name in names[3:]]
            cells = [*(report.number(of[name]) for name in names[:3]), *map(report.number, memory)]
            body.append([library, *cells])
        head = ["", "save, s", "save with 1 % new, s", "load, s", "memory to save", "to load"]
        title = f"Rows of {row}: {size / 10**6:,.0f} MB"
        lines += report.section(title, head, body)
    own = lambda what, row: find(library="fbuf", row=row, what=what)
    body = [
        [
            f"rows of {row}",
            *(report.number((own(what, row) or 0) * 1000) for what in ("stopped", "new")),
            report.number((own("resident", row) or 0) / (own("bytes", row) or 1)),
            report.number((own("programs", row) or 0) / 10**6),
        ]
        for row in WIDTHS
    ]
    head = [
        "fbuf, 1 % new",
        "stopped, ms",
        "saved, ms",
        "resident",
        "programs, MB",
    ]
    return lines + report.section("The cost of a save to the loop", head, body)


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    find = report.Find(records, "value")
    own = lambda what: find(library="fbuf", row="1 kB", what=what) or float("nan")
    share, stopped = own("new") / own("full"), own("stopped") * 1000
    memory, resident = own("load memory") / own("bytes"), own("resident") - own("bytes")
    return [
        report.bar(f"1 % new takes {share:.3f} of a full save, at most 0.05", share <= 0.05),
        report.bar(f"the loop is stopped for {stopped:.1f} ms, at most 20", stopped <= 20),
        report.bar(f"memory to load is {memory:.2f} of the buffer, at most 1.10", memory <= 1.1),
        report.bar(
            f"resident is {resident / own('bytes'):+.3f} of the size, at most 0.02",
            abs(resident) <= 0.02 * own("bytes"),
        ),
    ]


if __name__ == "__main__":
    report.script(
        title="Saving and loading",
        packages=("fbuf", "jax", "jaxlib", "orbax-checkpoint", "torchrl", "numpy"),
        keys=("library", "row", "rows", "what"),
        figures=("value",),
    )
