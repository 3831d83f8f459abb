"""Rows on the host: in memory, in files, ahead of the learner, and beside TorchRL's memory map.

    python -m benchmarks.host            about 15 minutes, 23 GB of disk and 10 GB of memory
    python -m benchmarks.host --quick    small buffers

It needs Linux, fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

The device is the CPU: a batch crosses no bus, and "on the device" is memory like any other. No
figure was taken on a GPU.

- "Mapped": 200 million rows of 1 or of 100 bytes, the latter 20 GB, all of them written, in
  episodes of 500. The store of fbuf is `HostStore(files=...)`, and a batch is on the device when
  its time ends. TorchRL's is a `ReplayBuffer` with `LazyMemmapStorage`, with one thread or all,
  whichever is the faster.
- A batch is 256 rows (`Uniform()`; `RandomSampler`), or 256 windows of 4 rows of an episode that is
  drawn uniformly. Windows are `Sequence(4)` over `Uniform(window=4, by="episode")`, or those of
  `SliceSampler` with an end key and `cache_values`, which hold as nobody writes. JAX is told to run
  programs in the thread that waits (`jax_cpu_enable_async_dispatch` off; elsewhere it is as it
  comes). Both read the same file of rows: TorchRL's is a hard link to that of fbuf. TorchRL has the
  ends of episodes in a file of its own, which a batch of windows reads, too; fbuf has them on the
  device.
- "Warm": 64 batches in turn, whose pages have all been read before. "Cold": each batch is a new
  one, after all pages of all files were dropped from the memory of this machine. `madvise` and
  `posix_fadvise` with DONTNEED drop them, and `mincore` must find less than 1 % there. Layers below
  this machine, as the host of a virtual disk, may still remember them. "MB read" are the bytes that
  a cold batch brought into memory.
- "Ahead": a learner that takes 2 ms, which is a sleep: a GPU would be busy, and this thread is
  free. "Fetching" is the time that `sample` keeps such a loop, all results waited for. "Waiting" is
  the time that `next` of `batches(prefetch=2)` does. Each is the mean of a round.
- "Tiers": a batch of 256 of the standard row (a million of them) or of frames (40,000), uniform, by
  where the rows lie. "In scan" is 50 batches in one program, all rows added up. "Files" and
  "checkpoint" (`HostStore.open`) are warm or cold as above. Bytes a row are those of
  `HostStore.stats`, and of the files.

All that is compared takes turns in one process; each figure is the median over rounds.
The files lose their names as soon as they are mapped: none stays behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.peers import ITEMS, faster_threads, random_rows
from benchmarks.report import Find, number
from fbuf.host import HostStore

PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "torchrl", "tensordict", "numpy")
FBUF, PEER = "fbuf", "torchrl"
BATCH, LENGTH, EPISODE = 256, 4, 500
MAPPED, AHEAD, TIERS = "mapped", "ahead", "tiers"
"""The parts."""
KINDS = ROWS, WINDOWS = "256 rows", "256 windows of 4"
WIDTHS = 1, 100
"""Bytes of a mapped row."""
WARM, COLD = "warm", "cold"
STORED = 200 * 10**6
CHUNK = 10**6
"""Rows written at a time; the length of an episode divides it."""
AT_ONCE = 2 * 10**9
"""Bytes written before they are brought to the disk, and dropped from memory."""
SPARE = 2 * 10**9
"""Bytes to leave free on the disk."""
SEVERAL = 64
"""Batches that are drawn in turn."""
LEARNER = 0.002
"""Seconds."""
FETCHED = {"256 rows": ("row", 256), "32 frames": ("frame", 32), "64 frames": ("frame", 64)}
"""Batches to have ahead."""
FETCHING, WAITING = "fetching", "waiting"
TOO_SLOW = (
    "Where fetching takes longer than learning, the thread cannot keep up. Else the learner waits "
    "mostly for the other thread: only one at a time runs Python"
)
"""Why a learner may wait."""
TIER_ROWS = {"row": 10**6, "frame": 40_000}
STEPS = 50
"""Batches in one scan."""
SCAN, PYTHON = "on the device, in scan", "on the device, from Python"
HOST, HOST_AHEAD = "host memory", "host memory, ahead"
FILES, OPENED = "files", "checkpoint"

Step = Callable[[int], Any]
"""Makes a batch, by its number, and waits for it."""
Figure = Callable[[], float]
"""Takes one round: microseconds a batch."""


# --- files, and what of them is in memory --------------------------------------------------------


class Files:
    """A directory of files that are mapped into memory.

    Attributes:
        folder: Where they are made.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._open: list[int] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def forget_names(self) -> None:
        """Delete the names of the files, which then last as long as they are mapped or open."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                self._open.append(os.open(path, os.O_RDWR))
        shutil.rmtree(self.folder)

    def drop(self) -> None:
        """Bring everything to the disk, and have nothing of it in memory."""
        for _, begin, length in self._mapped():
            self._call("madvise", begin, length, 4)  # MADV_DONTNEED: of this process
        for file in self._open:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def in_memory(self) -> int:
        """Return the bytes of them in memory; a part that is mapped twice counts once."""
        pages: dict[Any, int] = {}
        for part, begin, length in self._mapped():
            found = np.zeros(-(-length // PAGE), np.uint8)
            self._call("mincore", begin, length, found.ctypes.data)
            pages[part] = int((found & 1).sum())
        return sum(pages.values()) * PAGE

    def size(self) -> int:
        """Return the bytes of all files; a file with two names counts once."""
        return sum(
            {(found := os.fstat(file)).st_ino: found.st_size for file in self._open}.values()
        )

    def close(self) -> None:
        """Give them back."""
        for file in self._open:
            os.close(file)

    def _mapped(self) -> list[tuple[Any, int, int]]:
        """The parts of files that are mapped, and at which address, and how long they are."""
        found: list[tuple[Any, int, int]] = []
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
            if str(self.folder) in line:
                where, _, offset, _, inode, *_ = line.split()
                begin, end = (int(address, 16) for address in where.split("-"))
                found.append(((inode, offset), begin, end - begin))
        return found

    def _call(self, name: str, address: int, length: int, last: int) -> None:
        call = getattr(self._libc, name)
        if call(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_void_p(last)):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


PAGE = os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def files() -> Generator[Files]:
    """A directory that is gone afterwards."""
    found = Files(pathlib.Path(tempfile.mkdtemp(prefix="fbuf-host-")))
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(found.folder, ignore_errors=True)


@contextlib.contextmanager
def named_files() -> Generator[None]:
    """Have a store make files with names, to open them again: its own have none."""
    unnamed = tempfile.TemporaryFile
    tempfile.TemporaryFile = functools.partial(tempfile.NamedTemporaryFile, delete=False)
    try:
        yield
    finally:
        tempfile.TemporaryFile = unnamed


# --- rounds --------------------------------------------------------------------------------------


def warm(step: Step, seconds: float) -> Figure:
    """Batches whose rows are in memory."""
    for batch in range(SEVERAL):
        step(batch)
    return harness.timed(harness.repeated(lambda i: step(i % SEVERAL), seconds))


def cold(step: Step, of: Files, read: list[int]) -> Figure:
    """A batch whose rows are not in memory; takes note of how much each has read."""
    batch = SEVERAL

    def figure() -> float:
        nonlocal batch
        batch += 1
        of.drop()
        if (left := of.in_memory()) > 0.01 * of.size():
            raise RuntimeError(f"{left:,} bytes stay in memory; is it a disk?")
        begun = time.perf_counter()
        step(batch)
        taken = time.perf_counter() - begun
        read.append(of.in_memory() - left)
        return taken * 1e6

    return figure


def learning(fetch: Callable[[], Any], steps: int) -> Figure:
    """Return a figure: the microseconds that a learner waits for a batch."""

    def figure() -> float:
        waited = 0.0
        for _ in range(steps):
            begun = time.perf_counter()
            jax.block_until_ready(fetch())
            waited += time.perf_counter() - begun
            time.sleep(LEARNER)
        return waited / steps * 1e6

    return figure


def keys() -> list[Any]:
    """A key for every batch, warm or cold."""
    return list(jax.random.split(jax.random.key(1), 4 * SEVERAL))


# --- mapped rows, beside TorchRL -----------------------------------------------------------------


def rows(start: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose bytes say in which order they were written, and the ends of episodes."""
    order = np.arange(start, start + count)
    values = (order % (EPISODE // 2)).astype(np.uint8)
    values = values if width == 1 else np.repeat(values[:, None], width, axis=1)
    return values, order % EPISODE == EPISODE - 1


class Fbuf:
    """A store of mapped rows."""

    def __init__(self, kind: str, width: int, stored: int, folder: pathlib.Path) -> None:
        windows = kind == WINDOWS
        shape = () if width == 1 else (width,)
        with named_files():
            self.store = HostStore(
                jax.ShapeDtypeStruct(shape, jnp.uint8),
                stored,
                sampler=fbuf.Uniform(window=LENGTH, by="episode") if windows else fbuf.Uniform(),
                files=folder / FBUF,
            )
        self.view = fbuf.Sequence(LENGTH) if windows else fbuf.Item()
        self.keys = keys()

    def add(self, values: np.ndarray, ends: np.ndarray) -> None:
        """Write rows."""
        self.store.add(values, truncated=ends)

    def draw(self, batch: int) -> Any:
        """Draw a batch."""
        drawn = self.store.sample(self.keys[batch], BATCH, view=self.view)
        return jax.block_until_ready(drawn)

    def values(self, drawn: Any) -> np.ndarray:
        """The rows of a batch."""
        return np.asarray(drawn.data if isinstance(self.view, fbuf.Item) else drawn.data.item)


class TorchRL:
    """TorchRL's buffer over the same file."""

    def __init__(self, kind: str, width: int, stored: int, folder: pathlib.Path) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, ReplayBuffer, SliceSampler
        from torchrl.data.replay_buffers import RandomSampler

        self.torch, self.of, self.windows = torch, TensorDict, kind == WINDOWS
        (file,) = (folder / FBUF).iterdir()
        if file.stat().st_size != width * stored:
            raise RuntimeError(f"{file}: the rows of fbuf do not lie as those of TorchRL")
        (folder / PEER).mkdir()
        os.link(file, folder / PEER / "item.memmap")
        self.generator = torch.Generator()
        sampler = SliceSampler(
            slice_len=LENGTH, end_key=("next", "truncated"), truncated_key=None,
            cache_values=True, strict_length=True,
        )  # fmt: skip
        self.buffer = ReplayBuffer(
            storage=LazyMemmapStorage(stored, scratch_dir=folder / PEER, existsok=True),
            sampler=sampler if self.windows else RandomSampler(),
            batch_size=BATCH * (LENGTH if self.windows else 1),
            generator=self.generator,
        )

    def add(self, values: np.ndarray, ends: np.ndarray) -> None:
        """Write rows."""
        given: dict[Any, Any] = {"item": self.torch.from_numpy(values)}
        if self.windows:
            given["next", "truncated"] = self.torch.from_numpy(ends)
        self.buffer.extend(self.of(given, batch_size=[len(values)]))

    def draw(self, batch: int) -> Any:
        """Draw a batch."""
        self.generator.manual_seed(batch)
        return self.buffer.sample()

    def values(self, drawn: Any) -> np.ndarray:
        """The rows of a batch."""
        found = drawn["item"].numpy()
        return found.reshape(BATCH, LENGTH, *found.shape[1:]) if self.windows else found

    def choose_threads(self) -> None:
        """Have the faster number of threads."""
        self.torch.set_num_threads(faster_threads(lambda: self.draw(0)))


def check(name: str, values: np.ndarray, kind: str, width: int) -> None:
    """Raises if a batch is not of whole rows, or windows not of rows in order."""
    lead = (BATCH, LENGTH) if kind == WINDOWS else (BATCH,)
    values = values.reshape(*lead, -1).astype(int)
    if values.shape != (*lead, width) or (values != values[..., :1]).any():
        raise RuntimeError(f"{name}: a row is not as it was written: {values.shape}")
    if kind == WINDOWS and not (np.diff(values[..., 0]) % (EPISODE // 2) == 1).all():
        raise RuntimeError(f"{name}: a window is not of rows in order")


def mapped(task: Task) -> Measured:
    """Batches of mapped rows, warm and cold, of both libraries."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # before the first use of a device
    kind, width, stored, quick = (task[name] for name in ("kind", "width", "stored", "quick"))
    label = task["label"]
    with files() as of:
        free = shutil.disk_usage(of.folder).free
        if free < (width + 1) * stored + SPARE:
            return Measured(notes=[f"{label}: the disk has {free / 1e9:.0f} GB free"])
        libraries: dict[str, Any] = {FBUF: Fbuf(kind, width, stored, of.folder)}
        try:
            libraries[PEER] = TorchRL(kind, width, stored, of.folder)
        except ImportError as error:
            return Measured(notes=[f"{PEER}: {error}"])
        chunk = min(CHUNK, stored)
        for start in range(0, stored, chunk):
            written = rows(start, chunk, width)
            for library in libraries.values():
                library.add(*written)
            if start == 0:
                of.forget_names()
            if width * start % AT_ONCE < width * chunk:
                of.drop()
        for name, library in libraries.items():
            check(name, library.values(library.draw(0)), kind, width)
        libraries[PEER].choose_threads()
        gc.collect()
        measured = Measured()
        record = {"part": MAPPED, "what": kind, "width": width, "stored": stored}
        seconds, rounds = (0.02, 3) if quick else (0.05, 15)
        few = 3 if quick else 5  # a cold batch of TorchRL takes seconds
        read: dict[str, list[int]] = {name: [] for name in libraries}
        modes = {
            WARM: {name: warm(of_it.draw, seconds) for name, of_it in libraries.items()},
            COLD: {name: cold(of_it.draw, of, read[name]) for name, of_it in libraries.items()},
        }
        for mode, figures in modes.items():
            for name, taken in harness.by_turns(figures, few if mode == COLD else rounds).items():
                one = {**record, "peer": name, "mode": mode, "us": harness.median(taken)}
                if mode == COLD:
                    one["bytes"] = harness.median(read[name])
                measured.records.append({**one, "rounds": taken})
        index = float(libraries[FBUF].store.stats()["bytes"])
        measured.records.append({**record, "peer": FBUF, "mode": "index", "bytes": index})
        return measured


# --- batches ahead of a learner ------------------------------------------------------------------


def fill(add: Callable[[Any], Any], item: Any, capacity: int) -> None:
    """Fill a buffer with random rows."""
    chunk = capacity // 100
    some = random_rows(item, chunk, seed=0)
    for _ in range(capacity // chunk):
        add(some)


def ahead(task: Task) -> Measured:
    """Measure the time that a learner waits, with batches ahead and without."""
    measured = Measured()
    figures: dict[tuple[str, str], Figure] = {}
    steps, rounds = (20, 3) if task["quick"] else (100, 9)
    with contextlib.ExitStack() as opened:
        stores: dict[str, HostStore[Any]] = {}
        for what, (of, size) in FETCHED.items():
            if of not in stores:
                capacity = TIER_ROWS[of] // (20 if task["quick"] else 2)
                stores[of] = HostStore(ITEMS[of], capacity)
                fill(stores[of].add, ITEMS[of], capacity)
            figures[what, FETCHING] = without_ahead(stores[of], size, steps)
            figures[what, WAITING] = with_ahead(stores[of], size, steps, opened)
        for (what, way), taken in harness.by_turns(figures, rounds).items():
            record = {"part": AHEAD, "what": what, "mode": way, "us": harness.median(taken)}
            measured.records.append({**record, "rounds": taken})
    return measured


def without_ahead(store: HostStore[Any], size: int, steps: int) -> Figure:
    """A learner that fetches its batches."""
    of = keys()
    number = iter(range(2**31))
    return learning(lambda: store.sample(of[next(number) % len(of)], size), steps)


def with_ahead(
    store: HostStore[Any], size: int, steps: int, opened: contextlib.ExitStack
) -> Figure:
    """A learner whose batches are fetched ahead."""
    batches = opened.enter_context(store.batches(jax.random.key(2), size, prefetch=2))
    return learning(lambda: next(batches), steps)


# --- where rows may lie --------------------------------------------------------------------------


def in_scan(state: fbuf.State[Any]) -> Figure:
    """Batches in one program."""
    given = jax.random.split(jax.random.key(3), STEPS)

    def draw(state: Any, key: Any) -> Any:
        return fbuf.sample(state, key, BATCH).data

    used = harness.zeros_like(jax.eval_shape(draw, state, given[0]))

    @jax.jit
    def run(state: Any, used: Any, given: Any) -> Any:
        return jax.lax.scan(lambda u, key: (harness.use(u, draw(state, key)), None), used, given)

    def steps() -> int:
        jax.block_until_ready(run(state, used, given))
        return STEPS

    return harness.timed(steps)


def tiers(task: Task) -> Measured:
    """A batch, by where the rows lie, and how many bytes lie where."""
    item, quick = ITEMS[task["item"]], task["quick"]
    capacity = TIER_ROWS[task["item"]] // (20 if quick else 1)
    of = keys()
    with files() as mapped_files, files() as saved, contextlib.ExitStack() as opened:
        state = fbuf.init(item, capacity)

        def add(some: Any) -> None:
            nonlocal state
            state = fbuf.add(state, some)

        fill(add, item, capacity)
        host = HostStore(item, capacity)
        fill(host.add, item, capacity)
        with named_files():
            in_files = HostStore(item, capacity, files=mapped_files.folder)
        fill(in_files.add, item, capacity)
        mapped_files.forget_names()
        host.save(saved.folder)
        checkpoint, _ = HostStore.open(saved.folder)
        saved.forget_names()

        def drawn(sample: Callable[..., Any]) -> Step:
            return lambda batch: jax.block_until_ready(sample(of[batch], BATCH))

        seconds, rounds = (0.02, 3) if quick else (0.1, 9)
        read: list[int] = []
        figures: dict[tuple[str, str], Figure] = {
            (SCAN, ""): in_scan(state),
            (PYTHON, ""): warm(drawn(lambda key, size: fbuf.sample(state, key, size)), seconds),
            (HOST, ""): warm(drawn(host.sample), seconds),
            (HOST_AHEAD, ""): with_ahead(host, BATCH, 20 if quick else 100, opened),
            (FILES, WARM): warm(drawn(in_files.sample), seconds),
            (OPENED, WARM): warm(drawn(checkpoint.sample), seconds),
        }
        taken = harness.by_turns(figures, rounds)
        cold_ones: dict[tuple[str, str], Figure] = {
            (FILES, COLD): cold(drawn(in_files.sample), mapped_files, read),
            (OPENED, COLD): cold(drawn(checkpoint.sample), saved, read),
        }
        taken |= harness.by_turns(cold_ones, rounds)
        record = {"part": TIERS, "item": task["item"], "stored": capacity}
        found = [
            {**record, "what": tier, "mode": mode, "us": harness.median(us), "rounds": us}
            for (tier, mode), us in taken.items()
        ]
        for tier, store, disk in (
            (PYTHON, None, 0),
            (HOST, host, 0),
            (FILES, in_files, mapped_files.size()),
            (OPENED, checkpoint, saved.size()),
        ):
            stats = fbuf.stats(state) if store is None else store.stats()
            lie = {"device": float(stats["bytes"]), "disk": disk}
            # Those of `files` are in files of its own.
            lie["host"] = 0 if store in (None, in_files) else stats["host_bytes"]
            found += [
                {**record, "what": tier, "mode": where, "bytes": size}
                for where, size in lie.items()
            ]
        return Measured(found)


# --- the report ----------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    stored = CHUNK if quick else STORED
    of_mapped = [
        {
            "label": f"{kind}, {width} bytes each", "part": MAPPED, "kind": kind, "width": width,
            "stored": stored,
        }
        for width in WIDTHS
        for kind in KINDS
    ]  # fmt: skip
    of_ahead = [{"label": "batches ahead", "part": AHEAD}]
    of_tiers = [{"label": f"tiers, {item}", "part": TIERS, "item": item} for item in TIER_ROWS]
    return [{**task, "quick": quick} for task in (*of_ahead, *of_tiers, *of_mapped)]


def measure(task: Task) -> Measured:
    """Do one task."""
    return {MAPPED: mapped, AHEAD: ahead, TIERS: tiers}[task["part"]](task)


Table = tuple[list[str], list[list[str]]]


def mapped_table(records: list[Record]) -> Table:
    """Batches of mapped rows beside TorchRL."""
    us, size = Find(records), Find(records, "bytes")
    head = ["a batch", "bytes a row", "GB of rows"]
    head += [f"{name}, {mode}" for mode in (WARM, COLD) for name in (FBUF, PEER)]
    head += ["MB read cold, fbuf", PEER, "MB on the device"]
    body = []
    for kind in KINDS:
        for width in WIDTHS:
            of = {"part": MAPPED, "what": kind, "width": width}
            stored = next((r["stored"] for r in records if of.items() <= r.items()), None)
            if stored is None:
                continue
            ours, theirs = (
                {mode: us(**of, mode=mode, peer=p) for mode in (WARM, COLD)} for p in (FBUF, PEER)
            )
            read = [size(**of, mode=COLD, peer=peer) for peer in (FBUF, PEER)]
            index = size(**of, mode="index")
            line = [kind, str(width), number(width * stored / 1e9)]
            for mode in (WARM, COLD):
                ours, theirs = (us(**of, mode=mode, peer=peer) for peer in (FBUF, PEER))
                line += [number(ours), report.beside(theirs, ours)]
            body.append([*line, *(number(b and b / 1e6) for b in (*read, index))])
    return head, body


def ahead_table(records: list[Record]) -> Table:
    """Return the table of the time that a learner waits."""
    us = Find(records)
    body = []
    for what in FETCHED:
        fetching, waiting = (us(part=AHEAD, what=what, mode=way) for way in (FETCHING, WAITING))
        if fetching and waiting:
            body.append([what, number(fetching), number(waiting), f"{waiting / fetching:.3f}"])
    return ["a batch", "fetching, µs", "waiting with batches ahead, µs", "share"], body


LINES = (
    (SCAN, "", PYTHON), (PYTHON, "", PYTHON), (HOST, "", HOST), (HOST_AHEAD, "", HOST),
    (FILES, WARM, FILES), (FILES, COLD, FILES), (OPENED, WARM, OPENED), (OPENED, COLD, OPENED),
)  # fmt: skip
"""Each tier, how it is read, and whose bytes are its."""


def tiers_table(records: list[Record]) -> Table:
    """Return the table of a batch, by where the rows lie."""
    us = Find(records)
    body = [
        [
            f"{tier}, {mode}" if mode else tier,
            *(number(us(part=TIERS, what=tier, mode=mode, item=item)) for item in TIER_ROWS),
        ]
        for tier, mode, _ in LINES
    ]
    return ["rows", "256 rows of 97 bytes, µs", "256 frames of 28 kB, µs"], body


def bytes_table(records: list[Record]) -> Table:
    """Return the table of bytes, by where they lie."""
    size = Find(records, "bytes")
    stored = {r["item"]: r["stored"] for r in records if r["part"] == TIERS}
    body = []
    for tier in dict.fromkeys(of for *_, of in LINES):
        line = [tier.partition(",")[0]]
        for item in TIER_ROWS:
            for where in ("device", "host", "disk"):
                found = size(part=TIERS, what=tier, mode=where, item=item)
                line.append(number(None if not found else found / stored[item]))
        body.append(line)
    head = [f"{item}: {where}" for item in TIER_ROWS for where in ("device", "host", "disk")]
    return ["bytes a row", *head], body


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    titles: dict[str, Table] = {
        "Mapped rows: microseconds a batch (and times that of fbuf)": mapped_table(records),
        "Batches ahead of a learner that takes 2 ms": ahead_table(records),
        "Where rows may lie: a batch": tiers_table(records),
        "Where rows may lie: memory": bytes_table(records),
    }
    return [line for title, table in titles.items() for line in report.section(title, *table)]


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    us, found = Find(records), list[str]()
    for what in FETCHED:
        fetching, waiting = (us(part=AHEAD, what=what, mode=way) for way in (FETCHING, WAITING))
        if fetching and waiting:
            text = (
                f"{what} ahead: waiting takes {waiting / fetching:.3f} of the time of fetching, "
                "less than 0.1 wanted"
            )
            found.append(report.bar(text, waiting < 0.1 * fetching, TOO_SLOW))
    return found


if __name__ == "__main__":
    report.script(
        title="Rows on the host",
        packages=PACKAGES,
        keys=("part", "what", "mode", "peer", "width", "item", "stored"),
        figures=("us", "bytes"),
    )
