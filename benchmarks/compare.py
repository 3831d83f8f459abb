"""fbuf beside flashbax, brax, cpprb and TorchRL: time and memory, in one run.

    python benchmarks/compare.py            about 25 minutes on 2 cores
    python benchmarks/compare.py --quick    about 2 minutes, less of everything

It needs fbuf and the packages of `benchmarks/requirements.lock` (`make bench` sees to that), and
writes `results/compare.json`, `compare.md` and `compare.png`.

A prioritised step adds 16 rows, draws a batch, and gives the batch new priorities; a uniform step
leaves the last out. The buffers are full and past the end of their ring, with random priorities.

- "in scan": all steps in one `lax.scan` whose carry, the buffer, is donated. All leaves of the
  batch are added to accumulators in the carry, number by number, for XLA leaves out what nobody
  uses; of a prioritised buffer so are the importance weights (of flashbax the probabilities they
  are made from). "step, no weights" uses the batch alone: no learner can do so, but flashbax's
  tree is then not copied, which XLA does at every step if its probabilities are used.
- "from Python": one call of the library for each operation, and at the end of every step (add,
  sample, TD error, update) its results are waited for. Nothing is done with the batch, which is
  there as arrays of its own. JAX libraries compile each function and donate the buffer to it.

The TD error is |reward - target| for all, computed with the library's own arrays; targets are
random and made beforehand, as are keys. XLA's programs differ from process to process, so each
figure is the median over processes of the median over rounds, in which the libraries take turns.
Memory is the peak of a process of its own, less what it held after doing the same with a buffer
of 10,000 rows: that is what imports and compiling take.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import timing
from timing import RESULTS, Record, render

ADDED = 16
NAMES = ("fbuf", "flashbax", "brax", "cpprb", "torchrl")
PACKAGES = ("fbuf", "jax", "jaxlib", "flashbax", "brax", "cpprb", "torch", "torchrl", "numpy")
STEPS = {32: 1000, 256: 500, 4096: 50}
"""Steps in one scan, for each batch size."""

NO_WEIGHTS = "step, no weights"
SMALL = 10_000
"""Capacity of the buffer that is used beforehand where memory is measured."""
SEVERAL = 16
"""How many keys, batches of targets and of ids are used in turn."""


# --- one process that measures -------------------------------------------------------------------


class Box:
    """The state of one buffer, passed on from one program to the next."""

    def __init__(self, state: Any) -> None:
        self.state = state


def in_scan(peer: Any, box: Box, what: str, steps: int) -> tuple[timing.Run, int]:
    """The operation `steps` times in a scan, and the temporary bytes of the program."""
    import jax
    import jax.numpy as jnp
    import peers

    keys = jax.random.split(jax.random.key(2), steps)
    targets = jax.random.uniform(jax.random.key(3), (steps, peer.batch_size))
    rows = jax.tree.map(jnp.asarray, peers.random_rows(peer.item, ADDED, seed=4))

    def useful(drawn: Any) -> Any:
        found = [peer.data(drawn)]
        if peer.prioritized and what != NO_WEIGHTS:
            found.append(peer.weights(drawn))
        if peer.prioritized and what == "sample":
            found.append(peer.ids(drawn))  # elsewhere they are used by the update
        return found

    shapes = jax.eval_shape(lambda: useful(peer.sample(box.state, keys[0])[1]))
    used = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    inputs: Any = (keys, targets)
    if what == "update":
        ids = rows_to_update(peer, box, list(keys[:SEVERAL]))
        inputs = (
            jax.tree.map(lambda *x: jnp.resize(jnp.stack(x), (steps, len(x[0]))), *ids),
            targets,
        )

    def use(used: Any, drawn: Any) -> Any:
        return jax.tree.map(lambda u, x: u ^ x if x.dtype == bool else u + x, used, drawn)

    def step(carry: Any, given: Any) -> Any:
        state, rows, used = carry
        if what == "update":
            return peer.update(state, *given), rows, used
        key, target = given
        if what != "sample":
            state = peer.add(state, rows)
        if what != "add":
            state, drawn = peer.sample(state, key)
            used = use(used, useful(drawn))
            if what != "sample" and peer.prioritized:
                priority = jnp.abs(peer.reward(drawn) - target)
                state = peer.update(state, peer.ids(drawn), priority)
        return state, rows, used

    carry = (box.state, rows, used)
    program, memory = timing.scanned(step, carry, inputs)
    rest = carry[1:]

    def run() -> int:
        nonlocal rest
        box.state, *rest = jax.block_until_ready(program((box.state, *rest), inputs))
        return steps

    return run, memory.temp_size_in_bytes


def rows_to_update(peer: Any, box: Box, keys: list[Any]) -> list[Any]:
    """The ids of some batches."""
    found = []
    for key in keys:
        box.state, drawn = peer.eager.sample(box.state, key)
        found.append(peer.ids(drawn))
    return found


def from_python(peer: Any, box: Box, what: str, seconds: float) -> timing.Run:
    """The operation by calls of the library, one after the other."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import peers

    functions = peer.eager
    rng = np.random.default_rng(3)
    keys = list(jax.random.split(jax.random.key(2), SEVERAL))
    targets = [peer.array(rng.random(peer.batch_size, np.float32)) for _ in range(SEVERAL)]
    rows = peers.random_rows(peer.item, ADDED, seed=4)
    rows = {name: peer.array(leaf) for name, leaf in rows.items()}
    error: Callable[[Any, Any], Any] = lambda reward, target: abs(reward - target)  # noqa: E731
    if peer.traceable:
        error = jax.jit(lambda reward, target: jnp.abs(reward - target))
    ids = rows_to_update(peer, box, keys) if what == "update" else []

    def step(i: int) -> None:
        i %= SEVERAL
        drawn = None
        if what in ("add", "step"):
            box.state = functions.add(box.state, rows)
        if what in ("sample", "step"):
            box.state, drawn = functions.sample(box.state, keys[i])
        if what == "update":
            box.state = functions.update(box.state, ids[i], targets[i])
        if what == "step" and peer.prioritized:
            priority = error(peer.reward(drawn), targets[i])
            box.state = functions.update(box.state, peer.ids(drawn), priority)
        peer.wait(box.state, drawn)

    return timing.repeated(step, seconds)


def measure(task: dict[str, Any]) -> tuple[list[Record], list[str]]:
    """Time the libraries of a task, turn by turn."""
    records: list[Record] = []
    notes: list[str] = []
    for prioritized in task["prioritized"]:
        records += measure_kind(task, prioritized, notes)
    return records, notes


def measure_kind(task: dict[str, Any], prioritized: bool, notes: list[str]) -> list[Record]:
    """The same for one kind of buffer, which is gone when this returns."""
    import peers

    item = {"row": peers.ROW, "frame": peers.FRAME}[task["item"]]
    capacity, batches, quick = task["n"], task["batches"], task["quick"]
    boxes: dict[str, Box] = {}
    for cls in peers.PEERS:
        if cls.name in task["peers"]:
            try:
                peer = cls(item, capacity, batches[0], prioritized)
                peer.check_memory(available_bytes())
                boxes[cls.name] = Box(peers.filled(peer, chunk(task)))
            except peers.Unable as reason:
                notes.append(str(reason))

    def programs(able: list[Any], what: str, mode: str) -> dict[str, tuple[timing.Run, int | None]]:
        found: dict[str, tuple[timing.Run, int | None]] = {}
        for peer in able:
            box = boxes[peer.name]
            if mode == "from Python":
                found[peer.name] = from_python(peer, box, what, 0.02 if quick else 0.03), None
            elif peer.traceable:
                steps = STEPS[peer.batch_size]
                if task["item"] == "frame":
                    steps //= 10
                if peer.writes_all and what in ("add", "step"):
                    steps = max(1, min(steps, int(1e9 / (capacity * peers.row_bytes(item)))))
                found[peer.name] = in_scan(peer, box, what, steps)
        return found

    records: list[Record] = []
    for batch in batches:
        able = [cls(item, capacity, batch, prioritized) for cls in peers.PEERS if cls.name in boxes]
        for peer in able:
            peer.prepare(boxes[peer.name].state)
        whats = ["sample", "step", *([NO_WEIGHTS, "update"] if prioritized else [])]
        if batch == batches[0]:
            whats.insert(0, "add")  # the same for every batch size
        for what in whats:
            for mode in ("in scan", "from Python")[: 1 if what == NO_WEIGHTS else 2]:
                found = programs(able, what, mode)
                runs = {name: run for name, (run, _) in found.items()}
                taken = timing.alternate(runs, 5 if quick else 7, 0.3 if quick else 1.0)
                for name, rounds in taken.items():
                    records.append(
                        {
                            "item": task["item"],
                            "mode": mode,
                            "what": what,
                            "prioritized": prioritized,
                            "n": capacity,
                            "batch": None if what == "add" else batch,
                            "peer": name,
                            "us": timing.median(rounds),
                            "rounds": rounds,
                            "temp_bytes": found[name][1],
                        }
                    )
    return records


def peak_memory(task: dict[str, Any]) -> tuple[list[Record], list[str]]:
    """Fill one library's buffer, take some steps, and look at this process' peak."""
    import peers

    (name,), (prioritized,), (batch,) = task["peers"], task["prioritized"], task["batches"]
    cls = next(cls for cls in peers.PEERS if cls.name == name)

    def use(capacity: int) -> Any:
        peer = cls(peers.ROW, capacity, batch, prioritized)
        box = Box(peers.filled(peer, chunk(task | {"n": capacity})))
        if peer.traceable:
            in_scan(peer, box, "step", 2)[0]()
        else:
            from_python(peer, box, "step", 0.02)()
        return box.state

    try:
        use(SMALL)  # what the libraries, and compiling, take
    except peers.Unable as reason:
        return [], [str(reason)]
    before = now_resident()
    use(task["n"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ideal = task["n"] * (peers.row_bytes(peers.ROW) + 4 * prioritized)
    record = {
        "item": "row", "mode": "memory", "prioritized": prioritized, "n": task["n"],
        "batch": batch, "peer": name, "bytes": peak - before, "peak_bytes": peak,
        "ideal_bytes": ideal,
    }  # fmt: skip
    return [record], []


def chunk(task: dict[str, Any]) -> int:
    """How many rows are added at a time to fill a buffer: few beside what it holds."""
    return min(1000 if task["item"] == "frame" else 100_000, max(task["n"] // 10, 1))


def now_resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Bytes of memory that are free, or can be made so."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 2**63


def work(task: dict[str, Any], out: pathlib.Path) -> None:
    records, notes = (peak_memory if task["kind"] == "memory" else measure)(task)
    out.write_text(json.dumps({"records": records, "notes": notes}))


# --- the process that starts the others and writes the report ------------------------------------


def tasks(quick: bool) -> list[dict[str, Any]]:
    """What the processes have to do, one entry a process."""
    both = [True, False]
    found: list[dict[str, Any]] = []

    def task(kind: str, item: str, n: int, batches: list[int], peers: Any, which: Any) -> None:
        names = ("kind", "item", "n", "batches", "peers", "prioritized", "quick")
        values = (kind, item, n, batches, peers, which, quick)
        found.append(dict(zip(names, values, strict=True)))

    if quick:
        few = ("fbuf", "flashbax", "cpprb")
        for n in (10_000, 1_000_000):
            task("time", "row", n, [256], NAMES, both)
        for name in few:
            task("time", "frame", 2_000, [32], [name], [True])
            task("memory", "row", 1_000_000, [256], [name], [True])
        return found
    for repeat in range(3):
        # brax moves its whole store at every add: where that is gigabytes, once has to do.
        light = [name for name in NAMES if name != "brax"] if repeat else NAMES
        for n in (10_000, 1_000_000, 10_000_000):
            task("time", "row", n, [32, 256, 4096], light if n == 10_000_000 else NAMES, both)
        for name in light:  # frames: one library at a time, for their size
            task("time", "frame", 50_000, [32, 256], [name], both)
    for n in (1_000_000, 10_000_000):
        for which in both:
            for name in NAMES:
                task("memory", "row", n, [256], [name], [which])
    return found


def run_all(quick: bool) -> tuple[list[Record], list[str]]:
    """Run the processes one after the other."""
    records: list[Record] = []
    notes: list[str] = []
    todo = tasks(quick)
    begun = time.monotonic()
    for number, task in enumerate(todo, start=1):
        label = f"{task['kind']} {task['item']} N={task['n']:,} {'+'.join(task['peers'])}"
        start = time.monotonic()
        try:
            result = timing.in_own_process(__file__, task)
            records += result["records"]
            notes += result["notes"]
        except RuntimeError as error:
            notes.append(f"{label}: {error}")
        now = time.monotonic()
        progress = f"[{number}/{len(todo)}, {now - begun:.0f} s] {label}: {now - start:.0f} s"
        print(progress, file=sys.stderr, flush=True)
    return records, list(dict.fromkeys(notes))


def cell(value: float | None, ours: float | None, form: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    if ours is None or value is ours:
        return form(value)
    return f"{form(value)} ({value / ours:.2f}x)"


def sections(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    lines: list[str] = []
    groups: dict[Any, dict[Any, dict[str, Record]]] = {}
    for r in records:
        group = groups.setdefault((r["item"], r["mode"], r["prioritized"]), {})
        group.setdefault((r.get("what", ""), r["n"], r["batch"] or 0), {})[r["peer"]] = r
    order = {"step": -1, NO_WEIGHTS: 0, "add": 1, "sample": 2, "update": 3, "": 4}
    for item in ("row", "frame"):
        for mode in ("in scan", "from Python", "memory"):
            for prioritized in (True, False):
                group = groups.get((item, mode, prioritized))
                if not group:
                    continue
                buffer = "prioritised" if prioritized else "uniform"
                things = "rows of 97 bytes" if item == "row" else "84x84x4 uint8 frames"
                memory = mode == "memory"
                unit = "peak MB, and ratio to the rows alone" if memory else "microseconds"
                where = "memory" if memory else f"{mode}"
                lines += ["", f"## {buffer}, {where}: {unit} ({things})", ""]
                names = [n for n in NAMES if any(n in found for found in group.values())]
                rows = []
                for (what, n, batch), found in sorted(
                    group.items(), key=lambda pair: (order[pair[0][0]], pair[0][1:])
                ):
                    start = [what] if not memory else []
                    start += [f"{n:,}", f"{batch or '-'}"]
                    if memory:
                        ideal = next(iter(found.values()))["ideal_bytes"]
                        sizes = [found[k]["bytes"] if k in found else None for k in names]
                        cells = [cell(b, ideal, lambda b: f"{b / 1e6:.0f}") for b in sizes]
                        rows.append([*start, f"{ideal / 1e6:.0f}", *cells])
                    else:
                        ours = found["fbuf"]["us"] if "fbuf" in found else None
                        times = [found[k]["us"] if k in found else None for k in names]
                        rows.append(
                            [*start, *(cell(t, ours, lambda t: f"{t:,.1f}") for t in times)]
                        )
                head = ["N", "batch", "rows alone"] if memory else ["operation", "N", "batch"]
                lines += render([*head, *names], rows)
    return lines


def bars(records: list[Record]) -> list[str]:
    """What the project promises of itself beside flashbax, and what came out."""

    def us(peer: str, mode: str, what: str, prioritized: bool, batch: int | None) -> float | None:
        for r in records:
            if (r["item"], r["n"], r["mode"], r.get("what")) == ("row", 10**6, mode, what) and (
                r["peer"],
                r["prioritized"],
                r["batch"],
            ) == (peer, prioritized, batch):
                return float(r["us"])
        return None

    found = []
    for what, prioritized, batch, most in (
        ("step", True, 256, 0.5),
        (NO_WEIGHTS, True, 256, 0.5),
        ("sample", False, 256, 1.0),
        ("add", False, None, 1.0),
    ):
        for mode in ("in scan",) if prioritized else ("in scan", "from Python"):
            ours, theirs = (us(p, mode, what, prioritized, batch) for p in ("fbuf", "flashbax"))
            if ours and theirs:
                kind = "prioritised" if prioritized else "uniform"
                size = f", batch {batch}" if batch else ""
                verdict = "held" if ours <= most * theirs else "MISSED"
                found.append(
                    f"- {kind} {what} {mode}, N = 1e6{size}: {ours / theirs:.2f} of flashbax's "
                    f"time, at most {most} wanted: {verdict}"
                )
    return found


def copies(records: list[Record]) -> list[str]:
    """Programs in scan that need megabytes beside the buffer: they copy parts of it."""
    found: dict[tuple[str, int], list[str]] = {}
    for r in records:
        if (r.get("temp_bytes") or 0) > 2e6 and r["item"] == "row":
            kind = "prioritised" if r["prioritized"] else "uniform"
            batch = f" {r['batch']}" if r["batch"] else ""
            text = f"{kind} {r['what']}{batch}: {r['temp_bytes'] / 1e6:.0f} MB"
            found.setdefault((r["peer"], r["n"]), []).append(text)
    return [f"- {peer}, N = {n:,}: {'; '.join(texts)}" for (peer, n), texts in found.items()]


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Time of a prioritised step against N, one panel a batch size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [
        r for r in records if r["item"] == "row" and r.get("what") == "step" and r["prioritized"]
    ]
    batches = sorted({r["batch"] for r in steps})
    figure, axes = plt.subplots(
        1, len(batches), figsize=(max(4.2 * len(batches), 8.5), 4.4), sharey=True, squeeze=False
    )
    colors = dict(zip(NAMES, ("#0b6e4f", "#c1432e", "#7a5195", "#3b6fb6", "#d08c00"), strict=True))
    for axis, batch in zip(axes[0], batches, strict=True):
        for name in NAMES:
            for mode, style, marker in (("in scan", "-", "o"), ("from Python", "--", "s")):
                points = sorted(
                    (r["n"], r["us"])
                    for r in steps
                    if (r["peer"], r["mode"], r["batch"]) == (name, mode, batch)
                )
                if points:
                    axis.plot(
                        *zip(*points, strict=True), style, marker=marker, color=colors[name],
                        markersize=5, label=f"{name}, {mode}",
                    )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="capacity N (rows)", title=f"batch {batch}")
        axis.grid(True, which="both", alpha=0.25)
    axes[0][0].set_ylabel("microseconds a step")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle("Prioritised step: add 16 rows, draw a batch, update its priorities")
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, in 2 minutes")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker), options.out)
        return

    begun = time.monotonic()
    records, notes = run_all(options.quick)
    keys = ("item", "mode", "what", "prioritized", "n", "batch", "peer")
    records = timing.merged(records, keys, "us", "bytes")
    about = timing.about(*PACKAGES)
    about["run"] = f"{'quick' if options.quick else 'full'}, {time.monotonic() - begun:.0f} s"
    notes.append("cpprb, torchrl: no JAX programs, so they cannot be inside a scan")
    text = [
        "# fbuf and its peers",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        "In brackets: how many times fbuf's figure (of memory: how many times the bytes of the "
        "rows, and 4 for a priority).",
        *sections(records),
        "",
        "## Bars",
        "",
        *bars(records),
        "",
        "## Temporary memory above 2 MB (in scan, by operation and batch)",
        "",
        *(copies(records) or ["none"]),
        "",
        "## What is missing, and why",
        "",
        *(f"- {note}" for note in notes),
        "",
        "## How it was measured",
        "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(),
    ]
    timing.write_report("compare", options.results, about, records, text)
    plot(records, options.results / "compare.png")


if __name__ == "__main__":
    main()
