"""fbuf beside TorchRL's SliceSampler: write some rows, then draw slices of episodes.

    python benchmarks/slices.py            about 11 minutes on 2 cores, and 6 GB of memory
    python benchmarks/slices.py --quick    under a minute, the small sizes only

It needs fbuf and the packages of `benchmarks/requirements.lock` (`make bench` sees to that), and
writes `results/slices.json`, `slices.md` and `slices.png`.

A step writes 16 rows and then draws 256 slices of 4 rows, each inside one episode. A row is one
byte and the flag that says where an episode was truncated, which is every 500 rows. The buffers
hold as many rows as the table says at the start, and up to a fifth more of the smallest at the end.

- fbuf, "from Python": `fbuf.add`, then `fbuf.sample` with `Sequence(4, boundary="stop")`, and all
  results are waited for. JAX is told to run them in the thread that waits
  (`jax_cpu_enable_async_dispatch` off): by default each call goes to another one and back.
- "One call": both in one function under `jax.jit`, its buffer donated, called from Python.
- "Calls alone": the same arguments and results, given to programs that compute nothing, from Python
  as two calls and as one. It is the part of JAX, below which no library can be.
- "In scan": 500 steps in one `lax.scan` whose carry, the buffer, is donated; all rows and flags
  drawn are added to accumulators, for XLA leaves out what nobody uses.
- The samplers are `Uniform(window=4)`: every start of 4 rows alike; and with `by="episode"`: an
  episode, then a start in it, which is what TorchRL does.
- TorchRL: `ReplayBuffer`, `LazyTensorStorage` and `SliceSampler(slice_len=4, cache_values=True,
  end_key=("next", "truncated"), truncated_key=None)`, the fastest of its set-ups that was found,
  with one thread or all, whichever is the faster at this size. Its cache holds until the next
  write. "sample" alone is therefore what it does for a buffer that nobody writes to.

All sizes and libraries are in one process and take turns; each figure is the median over processes
of the median over rounds, as XLA's programs differ from process to process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import timing
from compare import available_bytes
from timing import RESULTS, Record, render

ADDED, SLICES, LENGTH = 16, 256, 4
EPISODE = 500
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "torchrl", "tensordict", "numpy")
SIZES = ((10**6, 1_200_000), (5 * 10**6, 6 * 10**6), (34 * 10**6, 60 * 10**6))
"""Rows stored, and capacity."""
LARGEST = (346 * 10**6, 600 * 10**6)
ROW_BYTES = 10
"""Bytes of memory for a row of capacity, in all buffers and while TorchRL scans its flags."""
CHUNK = 10**6
"""Rows written at a time to fill a buffer; all sizes and the length of an episode divide it."""
CYCLE = 125
"""After so many writes an episode begins with a write again."""
STEPS = 500
"""Steps in one scan: some cycles."""
SEVERAL = 16
"""How many keys are used in turn."""
PEER = "torchrl"
STEP = "write and draw"
ALONE = "calls alone"
MODES = PYTHON, CALL, SCAN = "from Python", "one call", "in scan"


def samplers() -> dict[str, Any]:
    """The samplers of fbuf to measure, by the name they have in the report."""
    import fbuf

    return {
        "fbuf, by start": fbuf.Uniform(window=LENGTH),
        "fbuf, by episode": fbuf.Uniform(window=LENGTH, by="episode"),
    }


def rows(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of rows, which say in which order they were written, and the ends of episodes."""
    number = np.arange(start, start + count)
    return (number % (EPISODE // 2)).astype(np.uint8), number % EPISODE == EPISODE - 1


def check(name: str, values: Any, ends: Any) -> None:
    """Raises if slices `[B, LENGTH]` are not rows in order, all of one episode."""
    values, ends = np.asarray(values).astype(int), np.asarray(ends)
    if values.shape != (SLICES, LENGTH) or ends.shape != values.shape:
        raise RuntimeError(f"{name}: slices of shape {values.shape}, flags of {ends.shape}")
    if not (np.diff(values) % (EPISODE // 2) == 1).all() or ends[:, :-1].any():
        raise RuntimeError(f"{name}: a slice is not of one episode")


# --- the libraries -------------------------------------------------------------------------------


class Fbuf:
    """A buffer of fbuf, and what is done with it."""

    def __init__(self, name: str, sampler: Any, stored: int, capacity: int) -> None:
        import jax
        import jax.numpy as jnp

        import fbuf

        self.fbuf, self.jax, self.jnp = fbuf, jax, jnp
        item: Any = jax.ShapeDtypeStruct((), jnp.uint8)
        self.bytes = fbuf.nbytes(item, capacity, sampler=sampler)
        self.view = fbuf.Sequence(LENGTH, boundary="stop")
        self.state = fbuf.init(item, capacity, sampler=sampler)
        values, ends = map(jnp.asarray, rows(0, CHUNK))
        for _ in range(stored // CHUNK):
            self.state = fbuf.add(self.state, values, truncated=ends)
        self.keys = list(jax.random.split(jax.random.key(2), SEVERAL))
        self.written, self.drawn = 0, 0
        self.compiled = jax.jit(self._write_and_draw, donate_argnums=0)
        self.no_add, self.no_sample, self.no_step = self._calls_alone()
        self.new = [tuple(map(jnp.asarray, rows(i * ADDED, ADDED))) for i in range(CYCLE)]
        batch = fbuf.sample(self.state, self.keys[0], SLICES, view=self.view)
        check(name, batch.data.item, batch.truncated)

    def add(self) -> None:
        """Write rows."""
        values, ends = self.new[self.written % CYCLE]
        self.written += 1
        self.state = self.fbuf.add(self.state, values, truncated=ends)

    def sample(self) -> Any:
        """Draw slices."""
        self.drawn += 1
        key = self.keys[self.drawn % SEVERAL]
        return self.fbuf.sample(self.state, key, SLICES, view=self.view)

    def step(self, what: str) -> None:
        """Do it once, and wait for it."""
        values, ends = self.new[self.written % CYCLE]
        key = self.keys[self.written % SEVERAL]
        batch = None
        if what == CALL:
            self.written += 1
            self.state, batch = self.compiled(self.state, values, ends, key)
        elif what == f"{ALONE}, {CALL}":
            self.state, batch = self.no_step(self.state, values, ends, key)
        elif what == f"{ALONE}, {PYTHON}":
            self.state = self.no_add(self.state, values, ends)
            batch = self.no_sample(self.state, key)
        else:
            if what != "sample":
                self.add()
            batch = self.sample() if what != "add" else None
        self.jax.block_until_ready((self.state, batch))

    def _write_and_draw(self, state: Any, values: Any, ends: Any, key: Any) -> Any:
        state = self.fbuf.add(state, values, truncated=ends)
        return state, self.fbuf.sample(state, key, SLICES, view=self.view)

    def _calls_alone(self) -> tuple[Any, Any, Any]:
        """What adds, samples, and does both, as far as JAX sees from outside."""
        jax, jnp = self.jax, self.jnp
        drawn = jax.eval_shape(
            lambda s, k: self.fbuf.sample(s, k, SLICES, view=self.view), self.state, self.keys[0]
        )

        def blank() -> Any:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), drawn)

        def donating(call: Any) -> Any:
            return jax.jit(call, donate_argnums=0, keep_unused=True)

        return (
            donating(lambda state, values, ends: state),
            jax.jit(lambda state, key: blank(), keep_unused=True),
            donating(lambda state, values, ends, key: (state, blank())),
        )

    def in_scan(self) -> tuple[timing.Run, int]:
        """Many steps in one program, and the temporary bytes it takes."""
        fbuf, jax, jnp = self.fbuf, self.jax, self.jnp

        def draw(state: Any, key: Any) -> Any:
            batch = fbuf.sample(state, key, SLICES, view=self.view)
            return batch.data, batch.terminated, batch.truncated

        def step(carry: Any, given: Any) -> Any:
            state, used = carry
            values, ends, key = given
            state = fbuf.add(state, values, truncated=ends)
            drawn = draw(state, key)
            return state, jax.tree.map(
                lambda u, x: u ^ x if x.dtype == bool else u + x, used, drawn
            )

        values, ends = rows(0, STEPS * ADDED)
        inputs = (
            jnp.asarray(values.reshape(STEPS, ADDED)),
            jnp.asarray(ends.reshape(STEPS, ADDED)),
            jax.random.split(jax.random.key(3), STEPS),
        )
        shapes = jax.eval_shape(draw, self.state, self.keys[0])
        used = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        program, memory = timing.scanned(step, (self.state, used), inputs)

        def run() -> int:
            nonlocal used
            self.state, used = jax.block_until_ready(program((self.state, used), inputs))
            return STEPS

        return run, memory.temp_size_in_bytes


class TorchRL:
    """A buffer of TorchRL, and what is done with it."""

    def __init__(self, stored: int, capacity: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

        def given(start: int, count: int) -> Any:
            values, ends = map(torch.from_numpy, rows(start, count))
            return TensorDict({"item": values, ("next", "truncated"): ends}, batch_size=[count])

        self.torch = torch
        self.bytes = 2 * capacity
        sampler = SliceSampler(
            slice_len=LENGTH, end_key=("next", "truncated"), truncated_key=None,
            cache_values=True, strict_length=True,
        )  # fmt: skip
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=SLICES * LENGTH
        )
        many = given(0, CHUNK)
        for _ in range(stored // CHUNK):
            self.buffer.extend(many)
        self.written = 0
        self.new = [given(i * ADDED, ADDED) for i in range(CYCLE)]
        batch = self.buffer.sample()
        check(PEER, *(batch[k].view(-1, LENGTH) for k in ("item", ("next", "truncated"))))
        most = torch.get_num_threads()
        self.threads = min((1, most), key=self._seconds)
        torch.set_num_threads(most)

    def step(self, what: str) -> None:
        """Do it once."""
        if what != "sample":
            self.buffer.extend(self.new[self.written % CYCLE])
            self.written += 1
        if what != "add":
            self.buffer.sample()

    def _seconds(self, threads: int) -> float:
        self.torch.set_num_threads(threads)
        self.step(STEP)
        taken: list[float] = []
        for _ in range(3):
            start = time.perf_counter()
            self.step(STEP)
            taken.append(time.perf_counter() - start)
        return timing.median(taken)


# --- one process that measures -------------------------------------------------------------------


def from_python(buffer: Any, what: str, seconds: float) -> timing.Run:
    """Steps by calls of the library, one after the other."""
    if not isinstance(buffer, TorchRL):
        return timing.repeated(lambda _: buffer.step(what), seconds)
    # The number of threads is one for all buffers of the process.
    buffer.torch.set_num_threads(buffer.threads)
    inner = timing.repeated(lambda _: buffer.step(what), seconds)

    def run() -> int:
        buffer.torch.set_num_threads(buffer.threads)
        return inner()

    return run


def measure(task: dict[str, Any]) -> tuple[list[Record], list[str]]:
    """Time all libraries at all sizes, turn by turn."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # before the first use of a device
    quick = task["quick"]
    notes: list[str] = []
    buffers: dict[Any, Any] = {}
    for stored, capacity in task["sizes"]:
        for name, sampler in samplers().items():
            buffers[name, stored, capacity] = Fbuf(name, sampler, stored, capacity)
        try:
            buffers[PEER, stored, capacity] = TorchRL(stored, capacity)
        except ImportError as error:
            notes.append(f"{PEER}: {error}")
    gc.collect()

    records: list[Record] = []
    rounds, seconds = (3, 0.03) if quick else (9, 0.05)

    def take(mode: str, what: str, runs: dict[Any, timing.Run], temporary: dict[Any, int]) -> None:
        # Of TorchRL's steps at the largest size three have to do, for their length.
        for key, taken in timing.alternate(runs, rounds, 3.0).items():
            name, stored, capacity = key
            records.append(
                {
                    "mode": mode,
                    "what": what,
                    "peer": name,
                    "stored": stored,
                    "capacity": capacity,
                    "us": timing.median(taken),
                    "rounds": taken,
                    "state_bytes": buffers[key].bytes,
                    "temp_bytes": temporary.get(key),
                    "threads": getattr(buffers[key], "threads", None),
                }
            )

    # Adds alone are many: in shorter rounds, so that the smallest buffer is not full meanwhile.
    for what, each in ((STEP, seconds), ("sample", seconds), ("add", 0.4 * seconds)):
        take(PYTHON, what, {k: from_python(b, what, each) for k, b in buffers.items()}, {})
    ours = {key: b for key, b in buffers.items() if isinstance(b, Fbuf)}
    take(CALL, STEP, {k: from_python(b, CALL, seconds) for k, b in ours.items()}, {})
    for mode in (PYTHON, CALL):
        alone = f"{ALONE}, {mode}"
        take(mode, ALONE, {k: from_python(b, alone, seconds) for k, b in ours.items()}, {})
    scans = {key: b.in_scan() for key, b in ours.items()}
    runs = {key: run for key, (run, _) in scans.items()}
    take(SCAN, STEP, runs, {key: temporary for key, (_, temporary) in scans.items()})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for record in records:
        record["peak_bytes"] = peak
    return records, notes


def work(task: dict[str, Any], out: pathlib.Path) -> None:
    records, notes = measure(task)
    out.write_text(json.dumps({"records": records, "notes": notes}))


# --- the process that starts the others and writes the report ------------------------------------


def run_all(quick: bool) -> tuple[list[Record], list[str]]:
    """Run the processes one after the other."""
    records: list[Record] = []
    notes: list[str] = []
    sizes = list(SIZES[:2] if quick else (*SIZES, LARGEST))
    while len(sizes) > 1 and ROW_BYTES * sum(c for _, c in sizes) > (free := available_bytes()):
        stored, capacity = sizes.pop()
        text = f"{rows_text(stored)} of {rows_text(capacity)}"
        notes.append(f"{text}: {free / 1e9:.1f} GB of memory are too few for all buffers")
    task = {"sizes": sizes, "quick": quick}
    repeats = 1 if quick else 3
    for repeat in range(repeats):
        start = time.monotonic()
        try:
            result = timing.in_own_process(__file__, task)
            records += result["records"]
            notes += result["notes"]
        except RuntimeError as error:
            notes.append(f"process {repeat + 1}: {error}")
        taken = time.monotonic() - start
        print(f"[{repeat + 1}/{repeats}] {taken:.0f} s", file=sys.stderr, flush=True)
    return records, list(dict.fromkeys(notes))


Find = Callable[[str, str, str, int], float | None]


def finder(records: list[Record]) -> Find:
    """Microseconds by peer, mode, operation and rows stored."""
    found = {(r["peer"], r["mode"], r["what"], r["stored"]): float(r["us"]) for r in records}
    return lambda *key: found.get(key)


def rows_text(stored: int) -> str:
    return f"{stored / 10**6:g}M"


def figure(us: float | None) -> str:
    return "-" if us is None else f"{us:,.1f}"


def names_in(records: list[Record]) -> list[str]:
    """The samplers of fbuf that were measured."""
    return list(dict.fromkeys(r["peer"] for r in records if r["peer"] != PEER))


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    us = finder(records)
    names = names_in(records)
    sizes = sorted({(r["stored"], r["capacity"]) for r in records})
    least = sizes[0][0]
    lines = [f"## {STEP}: microseconds", ""]
    lines += ["In brackets: how many times faster than TorchRL at this size.", ""]
    columns = [(name, mode) for name in names for mode in MODES]
    head = ["rows stored", "of capacity", PEER, *(f"{n}, {m}" for n, m in columns)]
    body = []
    for stored, capacity in sizes:
        theirs = us(PEER, PYTHON, STEP, stored)
        line = [rows_text(stored), rows_text(capacity), figure(theirs)]
        for name, mode in columns:
            ours = us(name, mode, STEP, stored)
            faster = f" ({theirs / ours:,.1f}x)" if theirs and ours else ""
            line.append(figure(ours) + faster)
        body.append(line)
    lines += render(head, body)

    lines += ["", f"## Growth: times the figure at {rows_text(least)} stored", ""]
    body = []
    for stored, _ in sizes:
        line = [rows_text(stored)]
        for name, mode in [(PEER, PYTHON), *columns]:
            now, then = us(name, mode, STEP, stored), us(name, mode, STEP, least)
            line.append(f"{now / then:,.2f}" if now and then else "-")
        body.append(line)
    lines += render(["rows stored", PEER, *(f"{n}, {m}" for n, m in columns)], body)

    lines += ["", "## The parts, from Python: microseconds", ""]
    parts = [(name, what) for what in ("add", "sample") for name in [*names, PEER]]
    head = ["rows stored", *(f"{what}, {name}" for name, what in parts)]
    alone = [(n, m) for n in names for m in (PYTHON, CALL)]
    head += [f"{ALONE}, {name}, {mode}" for name, mode in alone]
    body = []
    for stored, _ in sizes:
        line = [figure(us(n, PYTHON, w, stored)) for n, w in parts]
        line += [figure(us(n, m, ALONE, stored)) for n, m in alone]
        body.append([rows_text(stored), *line])
    lines += render(head, body)

    lines += ["", "## Memory", ""]
    body = []
    for stored, capacity in sizes:
        at = [r for r in records if r["stored"] == stored]
        line = [rows_text(stored), rows_text(capacity)]
        for name in [*names, PEER]:
            of = [r["state_bytes"] for r in at if r["peer"] == name]
            line.append(f"{of[0] / 1e6:,.1f}" if of else "-")
        for name in names:
            of = [r["temp_bytes"] for r in at if r["peer"] == name and r["mode"] == SCAN]
            line.append(f"{of[0]:,}" if of else "-")
        body.append(line)
    head = ["rows stored", "of capacity", *(f"MB of state, {n}" for n in [*names, PEER])]
    lines += render([*head, *(f"temporary bytes in scan, {n}" for n in names)], body)
    peaks = [r["peak_bytes"] for r in records if "peak_bytes" in r]
    if peaks:
        peak = f"{max(peaks) / 1e9:.1f} GB"
        lines += ["", f"All of them together in one process, with what they compile: {peak}."]
    return lines


def bars(records: list[Record]) -> list[str]:
    """What the project promises of itself here, and what came out."""
    us = finder(records)
    found: list[str] = []
    least, middle, largest = SIZES[0][0], SIZES[1][0], LARGEST[0]
    for name in names_in(records):
        for mode in MODES:
            start = f"- {name}, {mode}"
            small, large = us(name, mode, STEP, least), us(name, mode, STEP, largest)
            if small and large:
                verdict = "held" if large <= 1.5 * small else "MISSED"
                found.append(
                    f"{start}: at {rows_text(largest)} stored {large / small:.2f} of the time at "
                    f"{rows_text(least)}, at most 1.5 wanted: {verdict}"
                )
            for stored, wanted in ((middle, 15), (largest, 2000)):
                ours, theirs = us(name, mode, STEP, stored), us(PEER, PYTHON, STEP, stored)
                if ours and theirs:
                    verdict = "held" if theirs >= wanted * ours else "MISSED"
                    found.append(
                        f"{start}: at {rows_text(stored)} stored {theirs / ours:,.1f} times as "
                        f"fast as TorchRL, at least {wanted:,} wanted: {verdict}"
                    )
    return found


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Time of a step against the rows stored."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axis = plt.subplots(figsize=(7.5, 5.2))
    colors = ("#0b6e4f", "#3b6fb6", "#7a5195")
    lines = [(n, m, c) for n, c in zip(names_in(records), colors, strict=False) for m in MODES]
    styles = {PYTHON: ("--", "s"), CALL: (":", "^"), SCAN: ("-", "o")}
    for name, mode, color in [*lines, (PEER, PYTHON, "#d08c00")]:
        style, marker = styles[mode]
        points = sorted(
            (r["stored"], r["us"])
            for r in records
            if (r["peer"], r["mode"], r["what"]) == (name, mode, STEP)
        )
        if points:
            axis.plot(
                *zip(*points, strict=True), style, color=color, marker=marker, markersize=5,
                label=f"{name}, {mode}",
            )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="rows stored", ylabel="microseconds a step")
    axis.grid(True, which="both", alpha=0.25)
    axis.legend(frameon=False, fontsize=9)
    axis.set_title(f"Write {ADDED} rows, then draw {SLICES} slices of {LENGTH}")
    picture.tight_layout()
    picture.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, in a minute")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker), options.out)
        return

    # What else runs on these cores makes all figures larger, and not all alike.
    load = f"{os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else "unknown"
    begun = time.monotonic()
    records, notes = run_all(options.quick)
    records = timing.merged(records, ("mode", "what", "peer", "stored", "capacity"), "us")
    about = timing.about(*PACKAGES)
    about["load"] = load
    about["run"] = f"{'quick' if options.quick else 'full'}, {time.monotonic() - begun:.0f} s"
    if options.quick:
        notes.append(f"{', '.join(rows_text(s) for s, _ in (SIZES[2], LARGEST))}: quick run")
    notes.append("torchrl: no JAX program, so it cannot be inside a scan")
    text = [
        "# Slices of episodes, while writing",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        *tables(records),
        "",
        "## Bars",
        "",
        *(bars(records) or ["none: nothing was measured"]),
        "",
        "## What is missing, and why",
        "",
        *(f"- {note}" for note in notes),
        "",
        "## How it was measured",
        "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(),
    ]
    timing.write_report("slices", options.results, about, records, text)
    plot(records, options.results / "slices.png")


if __name__ == "__main__":
    main()
