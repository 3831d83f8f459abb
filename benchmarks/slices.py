"""fbuf beside TorchRL's SliceSampler: write some rows, then draw slices of episodes.

    python -m benchmarks.slices            about 4 minutes on 2 cores, and 6 GB of memory
    python -m benchmarks.slices --quick    about a minute, the small sizes only

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

A step writes 16 rows and then draws 256 slices of 4 rows, each inside one episode. A row is one
byte and the flag that says where an episode was truncated, which is every 500 rows. The buffers
hold as many rows as the table says at the start, and up to a fifth more of the smallest at the end.

- fbuf, "from Python": `fbuf.add`, then `fbuf.sample` with `Sequence(4, boundary="stop")`, and all
  results are waited for. JAX is told to run them in the thread that waits
  (`jax_cpu_enable_async_dispatch` off): by default each call goes to another one and back.
- "One call": both in one function under `jax.jit`, its buffer donated, called from Python.
- "Calls alone": the same arguments and results, given to programs that compute nothing, from Python
  as two calls and as one. It is the part of JAX, below which no library can be.
- "In scan": 500 steps in one `lax.scan` whose carry, the buffer, is donated. All rows and flags
  drawn are added to accumulators, for XLA leaves out unused numbers.
- The samplers are `Uniform(window=4)`: every start of 4 rows alike; and with `by="episode"`: an
  episode, then a start in it, which is what TorchRL does.
- TorchRL: `ReplayBuffer`, `LazyTensorStorage` and `SliceSampler(slice_len=4, cache_values=True,
  end_key=("next", "truncated"), truncated_key=None)`, the fastest of its set-ups that was found,
  with one thread or all, whichever is the faster at this size. Its cache holds until the next
  write. "sample" alone is therefore what it does for a buffer that nobody writes to.

All sizes and libraries are in one process and take turns. Each figure is the median over processes
of the median over rounds, as XLA's programs differ from process to process.
"""

from __future__ import annotations

import gc
import pathlib
import resource
from typing import Any

import numpy as np

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.peers import faster_threads
from benchmarks.report import Find, Line

ADDED, SLICES, LENGTH = 16, 256, 4
EPISODE = 500
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "torchrl", "tensordict", "numpy")
SIZES = ((10**6, 1_200_000), (5 * 10**6, 6 * 10**6), (346 * 10**6, 600 * 10**6))
"""Rows stored, and capacity."""
ROW_BYTES = 10
"""Bytes of memory for a row of capacity, in all buffers and while TorchRL scans its flags."""
CHUNK = 10**6
"""Rows written at a time to fill a buffer; all sizes and the length of an episode divide it."""
CYCLE = 125
"""After so many writes an episode begins with a write again."""
STEPS = 500
"""Steps in one scan: some cycles."""
SEVERAL = 16
"""Keys that are used in turn."""
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


class Fbuf(harness.Box):
    """A buffer of fbuf, and its steps."""

    def __init__(self, name: str, sampler: Any, stored: int, capacity: int) -> None:
        import jax
        import jax.numpy as jnp

        import fbuf

        self.fbuf, self.jax, self.jnp = fbuf, jax, jnp
        item: Any = jax.ShapeDtypeStruct((), jnp.uint8)
        self.bytes = fbuf.nbytes(item, capacity, sampler=sampler)
        self.view = fbuf.Sequence(LENGTH, boundary="stop")
        super().__init__(fbuf.init(item, capacity, sampler=sampler))
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
        """Return programs that add, sample, and do both in name only: they compute nothing."""
        jax = self.jax
        drawn = jax.eval_shape(
            lambda s, k: self.fbuf.sample(s, k, SLICES, view=self.view), self.state, self.keys[0]
        )

        def donating(call: Any) -> Any:
            return jax.jit(call, donate_argnums=0, keep_unused=True)

        return (
            donating(lambda state, values, ends: state),
            jax.jit(lambda state, key: harness.zeros_like(drawn), keep_unused=True),
            donating(lambda state, values, ends, key: (state, harness.zeros_like(drawn))),
        )

    def in_scan(self) -> tuple[harness.Run, int]:
        """Many steps in one program, and the temporary bytes it takes."""
        fbuf, jax, jnp = self.fbuf, self.jax, self.jnp

        def draw(state: Any, key: Any) -> Any:
            batch = fbuf.sample(state, key, SLICES, view=self.view)
            return batch.data, batch.terminated, batch.truncated

        def step(carry: Any, given: Any) -> Any:
            state, used = carry
            values, ends, key = given
            state = fbuf.add(state, values, truncated=ends)
            return state, harness.use(used, draw(state, key))

        values, ends = rows(0, STEPS * ADDED)
        inputs = (
            jnp.asarray(values.reshape(STEPS, ADDED)),
            jnp.asarray(ends.reshape(STEPS, ADDED)),
            jax.random.split(jax.random.key(3), STEPS),
        )
        shapes = jax.eval_shape(draw, self.state, self.keys[0])
        return harness.in_scan(step, self, [harness.zeros_like(shapes)], inputs)


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
        self.threads = faster_threads(lambda: self.step(STEP), 3)

    def step(self, what: str) -> None:
        """Do it once."""
        if what != "sample":
            self.buffer.extend(self.new[self.written % CYCLE])
            self.written += 1
        if what != "add":
            self.buffer.sample()


# --- one process that measures -------------------------------------------------------------------


def from_python(buffer: Any, what: str, seconds: float) -> harness.Run:
    """Steps by calls of the library, one after the other."""
    if not isinstance(buffer, TorchRL):
        return harness.repeated(lambda _: buffer.step(what), seconds)
    # The number of threads is one for all buffers of the process.
    buffer.torch.set_num_threads(buffer.threads)
    inner = harness.repeated(lambda _: buffer.step(what), seconds)

    def run() -> int:
        buffer.torch.set_num_threads(buffer.threads)
        return inner()

    return run


def measure(task: Task) -> Measured:
    """Time all libraries at all sizes, turn by turn."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # before the first use of a device
    measured = Measured()
    buffers: dict[Any, Any] = {}
    for stored, capacity in task["sizes"]:
        for name, sampler in samplers().items():
            buffers[name, stored, capacity] = Fbuf(name, sampler, stored, capacity)
        try:
            buffers[PEER, stored, capacity] = TorchRL(stored, capacity)
        except ImportError as error:
            measured.notes.append(f"{PEER}: {error}")
    gc.collect()
    rounds, seconds = (3, 0.03) if task["quick"] else (7, 0.05)

    def take(
        mode: str, what: str, runs: dict[Any, harness.Run], temporary: dict[Any, int] | None = None
    ) -> None:
        # Three steps of TorchRL at the largest size have to do, for their length.
        for key, taken in harness.alternate(runs, rounds, 2.0).items():
            name, stored, capacity = key
            measured.records.append(
                {
                    "mode": mode,
                    "what": what,
                    "peer": name,
                    "stored": stored,
                    "capacity": capacity,
                    "us": harness.median(taken),
                    "rounds": taken,
                    "state_bytes": buffers[key].bytes,
                    "temp_bytes": (temporary or {}).get(key),
                    "threads": getattr(buffers[key], "threads", None),
                }
            )

    # Adds alone are many: in shorter rounds, so that the smallest buffer is not full meanwhile.
    for what, each in ((STEP, seconds), ("sample", seconds), ("add", 0.4 * seconds)):
        take(PYTHON, what, {k: from_python(b, what, each) for k, b in buffers.items()})
    ours = {key: b for key, b in buffers.items() if isinstance(b, Fbuf)}
    take(CALL, STEP, {k: from_python(b, CALL, seconds) for k, b in ours.items()})
    for mode in (PYTHON, CALL):
        alone = f"{ALONE}, {mode}"
        take(mode, ALONE, {k: from_python(b, alone, seconds) for k, b in ours.items()})
    scans = {key: b.in_scan() for key, b in ours.items()}
    runs = {key: run for key, (run, _) in scans.items()}
    take(SCAN, STEP, runs, {key: temporary for key, (_, temporary) in scans.items()})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for record in measured.records:
        record["peak_bytes"] = peak
    return measured


# --- the report ----------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """All sizes in one process, and the smaller ones, which take less time, in another."""
    needed = ROW_BYTES * sum(capacity for _, capacity in SIZES)
    largest = [] if quick or needed > harness.available_bytes() else [SIZES]
    return [
        {"label": f"{len(sizes)} sizes", "sizes": sizes, "quick": quick}
        for sizes in (*largest, SIZES[:-1])
    ]


def names_in(records: list[Record]) -> list[str]:
    """The samplers of fbuf that were measured."""
    return list(dict.fromkeys(r["peer"] for r in records if r["peer"] != PEER))


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    us, number = Find(records), report.number
    names = names_in(records)
    sizes = sorted({(r["stored"], r["capacity"]) for r in records})
    columns = [(name, mode) for name in names for mode in MODES]
    head = ["rows stored", "of capacity", PEER, *(f"{n}, {m}" for n, m in columns)]
    lines = ["TorchRL has no JAX program, so it cannot be inside a scan."]
    if SIZES[-1] not in sizes:
        lines += ["", f"{report.rows_text(SIZES[-1][0])} rows: a quick run, or memory too small."]

    steps, growth, parts, memory = [], [], [], []
    for stored, capacity in sizes:
        size = [report.rows_text(stored), report.rows_text(capacity)]
        theirs = us(peer=PEER, mode=PYTHON, what=STEP, stored=stored)
        line, grown = [*size, number(theirs)], [size[0]]
        for name, mode in [(PEER, PYTHON), *columns]:
            ours = us(peer=name, mode=mode, what=STEP, stored=stored)
            least = us(peer=name, mode=mode, what=STEP, stored=sizes[0][0])
            grown.append(f"{ours / least:,.2f}" if ours and least else "-")
            if name != PEER:
                faster = f" ({theirs / ours:,.1f}x)" if theirs and ours else ""
                line.append(number(ours) + faster)
        steps.append(line)
        growth.append(grown)
        line = [
            number(us(peer=name, mode=PYTHON, what=what, stored=stored))
            for what in ("add", "sample")
            for name in [*names, PEER]
        ]
        line += [
            number(us(peer=name, mode=mode, what=ALONE, stored=stored))
            for name in names
            for mode in (PYTHON, CALL)
        ]
        parts.append([size[0], *line])
        state, temporary = Find(records, "state_bytes"), Find(records, "temp_bytes")
        megabytes = [state(peer=name, stored=stored) for name in [*names, PEER]]
        line = [f"{b / 1e6:,.1f}" if b else "-" for b in megabytes]
        in_scan = [temporary(peer=name, stored=stored, mode=SCAN) for name in names]
        line += ["-" if b is None else f"{b:,.0f}" for b in in_scan]
        memory.append([*size, *line])
    lines += report.section(
        f"{STEP[0].upper()}{STEP[1:]}: microseconds (and how many times as fast as TorchRL)",
        head,
        steps,
    )
    lines += report.section(
        "Growth: times the figure at the smallest size",
        ["rows stored", PEER, *(f"{n}, {m}" for n, m in columns)],
        growth,
    )
    head = ["rows stored", *(f"{what}, {n}" for what in ("add", "sample") for n in [*names, PEER])]
    head += [f"{ALONE}, {name}, {mode}" for name in names for mode in (PYTHON, CALL)]
    lines += report.section("The parts, from Python: microseconds", head, parts)
    head = ["rows stored", "of capacity", *(f"MB of state, {n}" for n in [*names, PEER])]
    head += [f"temporary bytes in scan, {n}" for n in names]
    return lines + report.section("Memory", head, memory)


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    us = Find(records)
    found: list[str] = []
    least, middle, largest = (stored for stored, _ in SIZES)
    for name in names_in(records):
        for mode in MODES:
            start = f"{name}, {mode}"
            small = us(peer=name, mode=mode, what=STEP, stored=least)
            large = us(peer=name, mode=mode, what=STEP, stored=largest)
            if small and large:
                text = (
                    f"{start}: at {report.rows_text(largest)} stored {large / small:.2f} of the "
                    f"time at {report.rows_text(least)}, at most 1.5 wanted"
                )
                found.append(report.bar(text, large <= 1.5 * small))
            for stored, wanted in ((middle, 15), (largest, 2000)):
                ours = us(peer=name, mode=mode, what=STEP, stored=stored)
                theirs = us(peer=PEER, mode=PYTHON, what=STEP, stored=stored)
                if ours and theirs:
                    text = (
                        f"{start}: at {report.rows_text(stored)} stored {theirs / ours:,.1f} times "
                        f"as fast as TorchRL, at least {wanted:,} wanted"
                    )
                    found.append(report.bar(text, theirs >= wanted * ours))
    return found


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Time of a step against the rows stored."""
    styles = {PYTHON: "s--", CALL: "^:", SCAN: "o-"}
    colors = dict(zip(names_in(records), ("#0b6e4f", "#3b6fb6"), strict=False))
    which = [(name, mode) for name in colors for mode in MODES] + [(PEER, PYTHON)]
    lines = [
        Line(
            f"{name}, {mode}",
            [
                (r["stored"], r["us"])
                for r in records
                if (r["peer"], r["mode"], r["what"]) == (name, mode, STEP)
            ],
            colors.get(name, report.COLORS[PEER]),
            styles[mode],
        )
        for name, mode in which
    ]
    title = f"Write {ADDED} rows, then draw {SLICES} slices of {LENGTH}"
    report.draw(path, [report.Panel(title, lines, "rows stored")], "microseconds a step")


if __name__ == "__main__":
    report.script(
        title="Slices of episodes, while writing",
        packages=PACKAGES,
        keys=("mode", "what", "peer", "stored", "capacity"),
    )
