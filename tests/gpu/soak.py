"""A replay buffer for PyTorch under load: writers, learners and prefetch, for ten minutes.

    python tests/gpu/soak.py                 10 minutes
    python tests/gpu/soak.py --seconds 20    shorter
    python tests/gpu/soak.py --device cuda   the rows on a GPU

It needs `fbuf[torch]`, and writes `benchmarks/results/soak.json` and `soak.md`. It fails, with exit
status 1, if a row was torn, the memory has grown, a fault was recorded, or a thread has failed.

Two threads write episodes of 1 to 64 rows, each from a tensor that it fills anew as soon as the
call has returned. The words of a row follow from its writer, the number of its episode and its
place there, which it also holds, with a checksum. Two threads draw prioritised slices of 4 rows
with prefetch, and check every row of every slice, and that a slice is of one episode. They give the
slices new priorities, and then overwrite the batch, which is theirs. The main thread writes, and
draws batches of many sizes, and a signal handler that raises interrupts it at random instants. The
memory is that of the process; the first sixth of the time, in which everything is compiled and all
pools fill, does not count.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from fbuf_adapters.pytorch import ReplayBuffer
from stage import RESULTS, benchmark, median

import fbuf

CAPACITY, ROWS, BATCH, WIDTH, AHEAD, SLICE = 65_536, 64, 256, 96, 3, 4
WRITERS, LEARNERS = 2, 2
STEP, MOST = 2_654_435_761, 2**31 - 1
"""By how much a word is more than the one before it, and the bits that are kept."""
MOST_GROWTH = 32e6
"""Bytes that allocators may keep. A leak of one batch in a hundred would be ten times as much."""


def memory_on(device: torch.device) -> dict[str, torch.Tensor]:
    """The arrays that a writer fills anew for every batch."""
    words = torch.zeros(ROWS, WIDTH, dtype=torch.int32, device=device)
    return {"words": words, **{key: words[:, 0].clone() for key in ("sum", "writer", "number")}}


def fill(memory: dict[str, torch.Tensor], writer: int, number: int) -> dict[str, torch.Tensor]:
    """Rows, and their checksums."""
    places = torch.arange(ROWS * WIDTH, device=memory["words"].device).view(ROWS, WIDTH)
    words = (places * STEP + number * 40503 + writer) & MOST
    memory["words"].copy_(words)
    memory["sum"].copy_(checksum(words))
    memory["writer"].fill_(writer)
    memory["number"].fill_(number)
    return memory


def checksum(words: torch.Tensor) -> torch.Tensor:
    """One number a row, of all its words and their places."""
    places = torch.arange(1, WIDTH + 1, device=words.device)
    return (words.long() * places).sum(1) % MOST


class Interrupt(Exception):
    """The exception of the signal handler."""


def torn(batch: Any) -> int:
    """Count the rows that no writer wrote, and the slices not of one episode."""
    item = batch.data.item
    one = (item["number"] == item["number"][:, :1]) & (item["writer"] == item["writer"][:, :1])
    mixed = int((~one.all(1) & batch.mask).sum())
    mask = batch.mask.repeat_interleave(SLICE)
    data = {name: leaf.flatten(0, 1) for name, leaf in item.items()}
    words = data["words"].long()
    right = checksum(words) == data["sum"].long()
    # the words of a row go up in steps of the same size, from where its writer and number say
    right &= ((words[:, 1:] - words[:, :-1]) & MOST == STEP & MOST).all(1)
    begun = words[:, 0] - data["number"].long() * 40503 - data["writer"].long()
    right &= torch.isin(begun & MOST, torch.arange(ROWS, device=words.device) * WIDTH * STEP & MOST)
    return mixed + int((~right & mask).sum())


class Soak:
    """The buffer, its threads, and what they counted."""

    def __init__(self, device: str) -> None:
        self.buffer = ReplayBuffer(
            CAPACITY,
            sampler=fbuf.Prioritized(window=SLICE),
            view=fbuf.Sequence(SLICE),
            batch_size=BATCH,
            prefetch=AHEAD,
            device=device,
        )
        self.device = torch.device(device)
        self.stop = threading.Event()
        self.torn = 0
        self.counts = {"rows written": 0, "batches drawn": 0, "interrupts": 0}
        self.errors: list[str] = []
        self._count = threading.Lock()

    def write(self, writer: int) -> None:
        """Write until it is enough."""
        memory, rng, number = memory_on(self.device), random.Random(writer), 0
        while not self.stop.is_set():
            count = rng.randint(1, ROWS)
            self.add(memory, writer, number, count)
            number += 1
            self._note("rows written", 0, count)

    def add(self, memory: dict[str, torch.Tensor], writer: int, number: int, count: int) -> None:
        """Write an episode."""
        rows = {name: leaf[:count] for name, leaf in fill(memory, writer, number).items()}
        self.buffer.extend(rows, terminated=torch.arange(count, device=self.device) == count - 1)

    def interrupted(self, memory: dict[str, torch.Tensor], rng: random.Random, number: int) -> None:
        """Make some call in the main thread, and break it off after a moment."""
        size = rng.choice([BATCH, rng.randint(1, BATCH)])
        calls: list[Callable[[], Any]] = [
            lambda: self._note("batches drawn", torn(self.buffer.sample(size))),
            lambda: self.add(memory, 0, number, rng.randint(1, ROWS)),
            lambda: len(self.buffer),
        ]
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3e-3))
            rng.choice(calls)()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            self.counts["interrupts"] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def learn(self, _: int) -> None:
        """Draw, check and update until it is enough."""
        while not self.stop.is_set():
            batch = self.buffer.sample()
            self._note("batches drawn", torn(batch))
            self.buffer.update_priority(batch.ids, torch.rand(BATCH, device=self.device))
            for leaf in batch.data.item.values():
                leaf.fill_(-1)

    def guarded(self, work: Callable[[int], None], number: int) -> None:
        """Do it, and tell of what went wrong."""
        try:
            work(number)
        except Exception as error:
            self.errors.append(f"{work.__name__} {number}: {error!r}"[:500])
            self.stop.set()

    def _note(self, what: str, found: int, count: int = 1) -> None:
        with self._count:
            self.counts[what] += count
            self.torn += found


def soak(seconds: float, device: str) -> dict[str, Any]:
    """Run it."""
    torch.set_num_threads(1)
    run = Soak(device)
    run.add(memory_on(run.device), 0, 0, ROWS)
    work = [(run.write, 1 + i) for i in range(WRITERS)] + [(run.learn, i) for i in range(LEARNERS)]
    threads = [threading.Thread(target=run.guarded, args=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    process, sizes = psutil.Process(), []

    def interrupt(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    begun, number, memory, rng = time.monotonic(), 1, memory_on(run.device), random.Random(0)
    elapsed = 0.0
    # On a busy machine a few seconds may pass before anything is measured.
    while (elapsed < seconds or len(sizes) < 12) and not run.stop.is_set():
        for _ in range(20):
            run.interrupted(memory, rng, number)
            number += 1
        time.sleep(min(0.5, seconds / 60))
        gc.collect()
        elapsed = time.monotonic() - begun
        sizes.append({"seconds": elapsed, "bytes": process.memory_info().rss})
    signal.signal(signal.SIGALRM, before)
    run.stop.set()
    for thread in threads:
        thread.join(30)
    stuck = sum(thread.is_alive() for thread in threads)
    try:
        run.buffer.raise_on_fault()
        fault = "none"
    except RuntimeError as error:
        fault = str(error)
    run.buffer.close()
    later = [size["bytes"] for size in sizes[len(sizes) // 6 :]]
    part = max(1, len(later) // 5)
    growth = median(later[-part:]) - median(later[:part])
    return {
        "seconds": time.monotonic() - begun,
        **run.counts,
        "torn rows": run.torn,
        "faults": fault,
        "errors": run.errors,
        "stuck threads": stuck,
        "bytes at first": later[0],
        "bytes grown": growth,
        "sizes": sizes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long")
    parser.add_argument("--device", default="cpu", help="where the rows lie: cpu or cuda")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    options = parser.parse_args()
    found = soak(options.seconds, options.device)
    held = {
        "torn rows": found["torn rows"] == 0,
        "faults": found["faults"] == "none",
        "errors": not found["errors"],
        "stuck threads": found["stuck threads"] == 0,
        "bytes grown": found["bytes grown"] <= MOST_GROWTH,
    }
    harness, report = benchmark("harness"), benchmark("report")
    about = harness.about("fbuf", "jax", "jaxlib", "torch")
    about["device"] = options.device
    rows = found["batches drawn"] * BATCH * SLICE
    table = [
        ["seconds", f"{found['seconds']:,.0f}", ""],
        ["rows written", f"{found['rows written']:,}", ""],
        ["rows drawn and checked, at most", f"{rows:,}", ""],
        ["interrupts", f"{found['interrupts']:,}", ""],
        ["megabytes after a sixth of the time", f"{found['bytes at first'] / 1e6:,.0f}", ""],
    ]
    for name, right in held.items():
        value = found[name]
        text = f"{value / 1e6:,.1f} MB" if name == "bytes grown" else f"{value or 0}"
        table.append([name, text, "held" if right else "MISSED"])
    text = [
        "# Soak",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        *report.table(["what", "found", "bar"], table),
        "",
        f"{WRITERS} writers, {LEARNERS} learners, prefetch {AHEAD}, capacity {CAPACITY:,}, batches "
        f"of {BATCH}. At most {MOST_GROWTH / 1e6:.0f} MB may the process have grown by.",
        "",
        "## How it was measured",
        "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(),
    ]
    report.save("soak", options.results, about, [found], text)
    if not all(held.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
