"""fbuf beside flashbax, brax, cpprb and TorchRL: time and memory, in one run.

    python -m benchmarks.compare            about 16 minutes on 2 cores, and 8 GB of memory
    python -m benchmarks.compare --quick    about 2 minutes, less of everything

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

A prioritised step adds 16 rows, draws a batch, and gives the batch new priorities. A uniform step
leaves the last out. The buffers are full and past the end of their ring, with random priorities.

- "In scan": all steps run in one `lax.scan` whose carry, the buffer, is donated. All leaves of the
  batch are added to accumulators in the carry, number by number, for XLA leaves out unused numbers.
  So are the importance weights of a prioritised buffer. (flashbax gives the probabilities that
  weights are made from.) "Step, no weights" uses the batch alone. No learner can do so, but XLA
  then does not copy flashbax's tree, which it does at every step if the probabilities are used.
- "From Python": one call of the library for each operation. The results of a step (add, sample, TD
  error, update) are waited for at its end. Nothing is done with the batch, whose arrays are its
  own. JAX libraries compile each function and donate the buffer to it. "Step, one call": one
  compiled function of the user's updates the batch before, adds, and draws the next batch.
- "Call alone": the cost of JAX's own calls. The same compiled functions do no work: they give the
  state back as it is, and a batch of zeros. The rest of fbuf's time is fbuf's.
- "One core": the process may use one core, so XLA has no second thread to wake.
- "Compile" is the tracing and compiling of a scanned step.

The TD error is |reward - target| for all, computed with the library's own arrays. Targets and keys
are random and made beforehand. Each figure is the median over processes of the median over rounds,
in which the libraries take turns. Memory is that of a process of its own, beyond what it had before
the buffer was made. "Made", "filled" and "used" are the peaks until then, and "kept" is the rest at
the end. All programs were compiled beforehand. Rows are added 100,000 at a time. They are there
from the first, and do not count.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks import harness, report
from benchmarks.harness import Box, Measured, Record, Task
from benchmarks.report import Find, Line

ADDED = 16
NAMES = FBUF, FLASHBAX, BRAX, CPPRB, TORCHRL = "fbuf", "flashbax", "brax", "cpprb", "torchrl"
CALL = "call alone"
COLUMNS = FBUF, CALL, *NAMES[1:]
PACKAGES = ("fbuf", "jax", "jaxlib", "flashbax", "brax", "cpprb", "torch", "torchrl", "numpy")
STEPS = {32: 1000, 256: 500, 4096: 50}
"""Steps in one scan, for each batch size."""

MODES = SCAN, PYTHON = "in scan", "from Python"
STEP, NO_WEIGHTS, ADD, SAMPLE, UPDATE = "step", "step, no weights", "add", "sample", "update"
ONE_CALL, COMPILE = "step, one call", "compile"
WHATS = (STEP, NO_WEIGHTS, ONE_CALL, ADD, SAMPLE, UPDATE)
KINDS = {True: "prioritised", False: "uniform"}
THINGS = {"row": "rows of 97 bytes", "frame": "84x84x4 uint8 frames"}
MEMORY = "memory"
PARTS = MADE, FILLED, USED, KEPT = "made", "filled", "used", "kept"
"""Parts of the memory of a buffer: the peaks until it was made, filled and used; the rest."""
SEVERAL = 16
"""Keys, batches of targets and batches of ids that are used in turn."""


# --- one process that measures -------------------------------------------------------------------


def in_scan(
    peer: Any, box: Box, what: str, steps: int, options: dict[str, Any] | None = None
) -> tuple[harness.Run, int]:
    """The operation `steps` times in a scan, and the temporary bytes of the program.

    `options` are those of the compiler.
    """
    import jax

    keys = list(jax.random.split(jax.random.key(2), steps)[:SEVERAL])
    ids = rows_to_update(peer, box, keys) if what == UPDATE else []
    step, rest, inputs = parts_of_scan(peer, box.state, what, steps, ids)
    return harness.in_scan(step, box, rest, inputs, options)


def parts_of_scan(
    peer: Any, state: Any, what: str, steps: int, ids: list[Any]
) -> tuple[Callable[[Any, Any], Any], list[Any], Any]:
    """Return the step of a scan, all of its carry but the state, and its inputs.

    Args:
        peer: The library.
        state: Its state, or the shapes of that.
        what: The operation.
        steps: The number of inputs.
        ids: Batches of ids to update, for `UPDATE` alone.
    """
    import jax
    import jax.numpy as jnp

    from benchmarks import peers

    keys = jax.random.split(jax.random.key(2), steps)
    targets = jax.random.uniform(jax.random.key(3), (steps, peer.batch_size))
    rows = jax.tree.map(jnp.asarray, peers.random_rows(peer.item, ADDED, seed=4))

    def useful(drawn: Any) -> Any:
        found = [peer.data(drawn)]
        if peer.prioritized and what != NO_WEIGHTS:
            found.append(peer.weights(drawn))
        if peer.prioritized and what == SAMPLE:
            found.append(peer.ids(drawn))  # elsewhere they are used by the update
        return found

    shapes = jax.eval_shape(lambda state: useful(peer.sample(state, keys[0])[1]), state)
    used = harness.zeros_like(shapes)
    inputs: Any = (keys, targets)
    if what == UPDATE:
        inputs = (
            jax.tree.map(lambda *x: jnp.resize(jnp.stack(x), (steps, len(x[0]))), *ids),
            targets,
        )

    def step(carry: Any, given: Any) -> Any:
        state, rows, used = carry
        if what == UPDATE:
            return peer.update(state, *given), rows, used
        key, target = given
        if what != SAMPLE:
            state = peer.add(state, rows)
        if what != ADD:
            state, drawn = peer.sample(state, key)
            used = harness.use(used, useful(drawn))
            if what != SAMPLE and peer.prioritized:
                priority = jnp.abs(peer.reward(drawn) - target)
                state = peer.update(state, peer.ids(drawn), priority)
        return state, rows, used

    return step, [rows, used], inputs


def compiling(peer: Any, box: Box) -> harness.Run:
    """Tracing and compiling the scanned step, and what goes with it; nothing is kept."""
    import jax

    def run() -> int:
        jax.clear_caches()
        in_scan(peer, box, STEP, 10)
        return 1

    return run


def rows_to_update(peer: Any, box: Box, keys: list[Any]) -> list[Any]:
    """The ids of some batches."""
    found = []
    for key in keys:
        box.state, drawn = peer.eager.sample(box.state, key)
        found.append(peer.ids(drawn))
    return found


def from_python(peer: Any, box: Box, what: str, seconds: float) -> harness.Run:
    """The operation by calls of the library, one after the other."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import peers

    functions = peer.eager
    rng = np.random.default_rng(3)
    keys = list(jax.random.split(jax.random.key(2), SEVERAL))
    targets = [peer.array(rng.random(peer.batch_size, np.float32)) for _ in range(SEVERAL)]
    rows = peers.random_rows(peer.item, ADDED, seed=4)
    rows = {name: peer.array(leaf) for name, leaf in rows.items()}
    error: Callable[[Any, Any], Any] = lambda reward, target: abs(reward - target)
    if peer.traceable:
        error = jax.jit(lambda reward, target: jnp.abs(reward - target))
    ids = rows_to_update(peer, box, keys) if what == UPDATE else []

    def step(i: int) -> None:
        i %= SEVERAL
        drawn = None
        if what in (ADD, STEP):
            box.state = functions.add(box.state, rows)
        if what in (SAMPLE, STEP):
            box.state, drawn = functions.sample(box.state, keys[i])
        if what == UPDATE:
            box.state = functions.update(box.state, ids[i], targets[i])
        if what == STEP and peer.prioritized:
            priority = error(peer.reward(drawn), targets[i])
            box.state = functions.update(box.state, peer.ids(drawn), priority)
        peer.wait(box.state, drawn)

    return harness.repeated(step, seconds)


def in_one_call(peer: Any, box: Box, seconds: float) -> harness.Run:
    """A step by one compiled function: update the batch before, add, draw the next batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import peers

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, rows: Any, key: Any, before: Any, target: Any) -> Any:
        if peer.prioritized:
            priority = jnp.abs(peer.reward(before) - target)
            state = peer.update(state, peer.ids(before), priority)
        return peer.sample(peer.add(state, rows), key)

    rng = np.random.default_rng(3)
    keys = list(jax.random.split(jax.random.key(2), SEVERAL))
    targets = [peer.array(rng.random(peer.batch_size, np.float32)) for _ in range(SEVERAL)]
    rows = peers.random_rows(peer.item, ADDED, seed=4)
    rows = {name: peer.array(leaf) for name, leaf in rows.items()}
    last = Box(peer.sample(box.state, keys[0])[1])

    def call(i: int) -> None:
        i %= SEVERAL
        box.state, last.state = step(box.state, rows, keys[i], last.state, targets[i])
        peer.wait(box.state, last.state)

    return harness.repeated(call, seconds)


def modes_of(what: str, batch: int) -> tuple[str, ...]:
    """Return the modes in which an operation is measured."""
    if what == ONE_CALL:
        return (PYTHON,)
    return (SCAN,) if what in (NO_WEIGHTS, COMPILE) or batch != MAIN else MODES


def measure(task: Task) -> Measured:
    """Time the libraries of a task, turn by turn, or look at the memory of one."""
    if task["kind"] == MEMORY:
        return memory(task)
    found = Measured()
    for prioritized in task["prioritized"]:
        found.records += measure_kind(task, prioritized, found.notes)
    return found


def measure_kind(task: Task, prioritized: bool, notes: list[str]) -> list[Record]:
    """The same for one kind of buffer, which is gone when this returns."""
    from benchmarks import peers

    item, capacity, quick = peers.ITEMS[task["item"]], task["n"], task["quick"]
    boxes: dict[str, Box] = {}
    for cls in peers.PEERS:
        if cls.name in task["peers"]:
            try:
                peer = cls(item, capacity, task["work"][0][0], prioritized)
                peer.check_memory(harness.available_bytes())
                boxes[cls.name] = Box(peers.filled(peer, chunk(task)))
                notes += peer.notes
            except peers.Unable as reason:
                notes.append(str(reason))

    def program(peer: Any, what: str, mode: str) -> tuple[harness.Run, int | None]:
        box = boxes[peer.name]
        if what == COMPILE:
            return compiling(peer, box), None
        if what == ONE_CALL:
            return in_one_call(peer, box, 0.02 if quick else 0.03), None
        if mode == PYTHON:
            return from_python(peer, box, what, 0.02 if quick else 0.03), None
        steps = STEPS[peer.batch_size] // (10 if task["item"] == "frame" else 1)
        if peer.writes_all and what in (ADD, STEP):
            steps = max(1, min(steps, int(1e9 / (capacity * peers.row_bytes(item)))))
        return in_scan(peer, box, what, steps)

    records: list[Record] = []
    for batch, whats in task["work"]:
        able = [cls(item, capacity, batch, prioritized) for cls in peers.PEERS if cls.name in boxes]
        for peer in able:
            peer.prepare(boxes[peer.name].state)
        for what in whats:
            if what in (NO_WEIGHTS, UPDATE) and not prioritized:
                continue
            for mode in modes_of(what, batch):
                made = {
                    peer.name: program(peer, what, mode)
                    for peer in able
                    if peer.traceable or (mode == PYTHON and what != ONE_CALL)
                }
                runs = {name: run for name, (run, _) in made.items()}
                taken = harness.alternate(runs, 3 if quick else 7, 0.2 if quick else 0.7)
                for name, rounds in taken.items():
                    records.append(
                        {
                            "item": task["item"],
                            "mode": mode,
                            "what": what,
                            "prioritized": prioritized,
                            "n": capacity,
                            "batch": None if what == ADD else batch,
                            "cores": task.get("cores"),
                            "peer": name,
                            "us": harness.median(rounds),
                            "rounds": rounds,
                            "temp_bytes": made[name][1],
                        }
                    )
    return records


def memory(task: Task) -> Measured:
    """Look at this process while one library's buffer is made, filled and used."""
    from benchmarks import peers

    (name,), (prioritized,), batch = task["peers"], task["prioritized"], MAIN
    cls = next(cls for cls in peers.PEERS if cls.name == name)
    try:
        peer = cls(peers.ROW, task["n"], batch, prioritized)
    except peers.Unable as reason:
        return Measured(notes=[str(reason)])
    fill = peers.filler(peer)
    rows = peers.rows_to_fill(peer, chunk(task))
    box = Box(peers.filled(peer, chunk(task), fill, rows))
    scanned = peer.traceable
    use = in_scan(peer, box, STEP, 2)[0] if scanned else from_python(peer, box, STEP, 0.02)
    use()
    # From here on nothing is compiled any more: that takes memory, too, whatever the capacity.
    sizes: dict[str, int] = {}

    def begin() -> int:
        box.state = None
        harness.forget_peak()
        return harness.resident_bytes()

    before = begin()
    box.state = peer.init()
    peer.wait(box.state)
    sizes[MADE] = harness.resident_bytes(peak=True) - before
    before = begin()  # some libraries have lost memory meanwhile
    box.state = peers.filled(peer, chunk(task), fill, rows)
    sizes[FILLED] = harness.resident_bytes(peak=True) - before
    use()
    sizes[USED] = harness.resident_bytes(peak=True) - before
    harness.forget_peak()
    sizes[KEPT] = harness.resident_bytes() - before
    ideal = task["n"] * (peers.row_bytes(peers.ROW) + 4 * prioritized)
    return Measured([
        {
            "item": "row", "mode": MEMORY, "prioritized": prioritized, "n": task["n"],
            "batch": batch, "peer": name, "what": what, "bytes": size, "ideal_bytes": ideal,
        }
        for what, size in sizes.items()
    ])  # fmt: skip


def chunk(task: Task) -> int:
    """Return the number of rows added at a time to fill a buffer: few beside its capacity."""
    return min(1000 if task["item"] == "frame" else 100_000, max(task["n"] // 10, 1))


# --- what is measured ----------------------------------------------------------------------------

MAIN = 256
"""The batch size of which everything is measured; of the others the step in scan is."""
STEPS_ONLY = [[MAIN, [STEP]]]
STEPS_IN_SCAN = [
    [MAIN, [STEP, NO_WEIGHTS, ONE_CALL, ADD]], [32, [STEP, NO_WEIGHTS]], [4096, [STEP, NO_WEIGHTS]]
]  # fmt: skip
ALL = [
    [MAIN, [STEP, NO_WEIGHTS, ONE_CALL, ADD, SAMPLE, UPDATE, COMPILE]], *STEPS_IN_SCAN[1:]
]  # fmt: skip
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
LARGE = SIZES[2]
"""The size of the README's table."""
WORK = dict(zip(SIZES, (ALL, STEPS_ONLY, ALL, ALL), strict=True))
"""The operations to measure at each size."""


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    both = [True, False]
    found: list[Task] = []

    def task(kind: str, item: str, n: int, work: Any, peers: Any, which: Any, **more: Any) -> None:
        label = f"{kind}, {THINGS[item]}, N = {n:,}, {'+'.join(peers)}"
        found.append(
            {
                "label": label, "kind": kind, "item": item, "n": n, "work": work,
                "peers": list(peers), "prioritized": which, "quick": quick, **more,
            }
        )  # fmt: skip

    no_brax = [name for name in COLUMNS if name != BRAX]
    for repeat in range(1 if quick else 3):
        for n, work in WORK.items():
            if n != LARGE and (repeat == 2 or (quick and n != SIZES[0])):
                continue
            # brax moves its whole store at every add, which once shows.
            able = no_brax if repeat or n > LARGE else COLUMNS
            task("time", "row", n, STEPS_ONLY if quick else work, able, both)
        for n in WORK:
            if n != SIZES[1] and repeat < (1 if quick else 2) and (n == LARGE or not quick):
                work = STEPS_IN_SCAN[:1] if quick else STEPS_IN_SCAN
                task("time", "row", n, work, (FBUF, FLASHBAX), both, cores=1)
    task("time", "frame", 2_000 if quick else 20_000, [[32, [STEP]]], no_brax, [True])
    for name in (FBUF,) if quick else NAMES:
        task(MEMORY, "row", LARGE, [], (name,), [name != BRAX])
    return found


# --- the report ----------------------------------------------------------------------------------


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    lines = ["In brackets: how many times fbuf's figure."]
    for item in THINGS:
        for mode in MODES:
            for prioritized, kind in KINDS.items():
                for cores in (None, 1):
                    those = [
                        r
                        for r in records
                        if (r["item"], r["mode"], r["prioritized"], r.get("cores"))
                        == (item, mode, prioritized, cores)
                        and r["what"] != COMPILE
                    ]
                    where = f"{mode}, one core" if cores else mode
                    title = f"{kind}, {where}: microseconds ({THINGS[item]})"
                    lines += times(title[0].upper() + title[1:], those)
    lines += compile_table([r for r in records if r.get("what") == COMPILE])
    return lines + memory_table([r for r in records if r["mode"] == MEMORY]) + copies(records)


def times(title: str, records: list[Record]) -> list[str]:
    """The table of one mode and one kind of buffer."""
    if not records:
        return []
    us = Find(records)
    names = [n for n in COLUMNS if us(peer=n) is not None]
    keys = {(r["what"], r["n"], r["batch"]) for r in records}
    rows = []
    for what, n, batch in sorted(keys, key=lambda k: (WHATS.index(k[0]), k[2] or 0, k[1])):
        ours, *theirs = (us(peer=name, what=what, n=n, batch=batch) for name in names)
        cells = [report.number(ours), *(report.beside(t, ours) for t in theirs)]
        rows.append([what, f"{batch or '-'}", f"{n:,}", *cells])
    return report.section(title, ["operation", "batch", "N", *names], rows)


def compile_table(records: list[Record]) -> list[str]:
    """The table of what tracing and compiling takes."""
    us, names = Find(records), [name for name in NAMES if any(r["peer"] == name for r in records)]
    rows = []
    for prioritized, n in sorted({(r["prioritized"], r["n"]) for r in records}, reverse=True):
        ours, *theirs = (us(peer=name, n=n, prioritized=prioritized) for name in names)
        scaled = [None if time is None else time / 1e6 for time in (ours, *theirs)]
        cells = [report.number(scaled[0]), *(report.beside(t, scaled[0]) for t in scaled[1:])]
        rows.append([KINDS[prioritized], f"{n:,}", *cells])
    title = "Tracing and compiling a step in scan: seconds"
    return report.section(title, ["buffer", "N", *names], rows) if rows else []


def memory_table(records: list[Record]) -> list[str]:
    """The table of memory."""
    found, ideal = Find(records, "bytes"), Find(records, "ideal_bytes")
    rows = []
    for prioritized, kind in KINDS.items():
        for what in PARTS:
            least = ideal(what=what, prioritized=prioritized)
            if least:
                sizes = [found(peer=name, what=what, prioritized=prioritized) for name in NAMES]
                cells = [f"{b / 1e6:.0f} ({b / least:.2f}x)" if b else "-" for b in sizes]
                rows.append([kind, f"{LARGE:,}", f"{least / 1e6:.0f}", what, *cells])
    head = ["buffer", "N", "rows and priorities alone", "", *NAMES]
    return report.section("Memory: MB, and how many times the rows alone", head, rows)


def copies(records: list[Record]) -> list[str]:
    """Programs in scan that need megabytes beside the buffer: they copy parts of it."""
    rows = [
        [r["peer"], KINDS[r["prioritized"]], r["what"], f"{r['batch'] or '-'}", f"{r['n']:,}",
         f"{r['temp_bytes'] / 1e6:.0f}"]
        for r in records
        if (r.get("temp_bytes") or 0) > 2e6 and r["item"] == "row" and not r.get("cores")
    ]  # fmt: skip
    head = ["library", "buffer", "operation", "batch", "N", "MB"]
    return report.section("Temporary memory above 2 MB, in scan", head, rows)


CAUSES = {
    (COMPILE, True): (
        "The program has more than twice as many kernels, most of them of small loops that keep "
        "its work on one thread. Faults, duplicates and ids that are gone are looked for, too"
    ),
    (ADD, False): (
        "Beside 1,552 bytes of rows it writes a flag for each. It also writes 64 numbers of the "
        "tree of rows that have not been removed. flashbax has neither"
    ),
}
"""Why bars of functions, and of kinds of buffer, are missed where they are."""


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project beside its peers, and whether each was held."""
    us = Find([r for r in records if r["item"] == "row"])
    found = []

    def cause(what: str, where: dict[str, Any], theirs: float) -> str:
        """Why a bar is missed, if it is."""
        if where["mode"] == PYTHON:
            alone = us(what=what, peer=CALL, **where)
            return f"JAX's own call takes {alone / theirs:.2f} of that time" if alone else ""
        return CAUSES.get((what, where["prioritized"]), "")

    def bar(peer: str, most: float, what: str, **where: Any) -> None:
        where = {"mode": SCAN, "n": LARGE, "batch": MAIN, "cores": None, **where}
        ours, theirs = (us(what=what, peer=name, **where) for name in (FBUF, peer))
        if ours and theirs:
            on = "one core, " if where["cores"] else ""
            of = f"batch {where['batch']}, " if where["batch"] else ""
            text = (
                f"{KINDS[where['prioritized']]} {what}, {where['mode']}, {on}{of}"
                f"N = {where['n']:,}: {ours / theirs:.2f} of {peer}'s time, at most {most} wanted"
            )
            found.append(report.bar(text, ours <= most * theirs, cause(what, where, theirs)))

    for prioritized in (True, False):
        for cores in (None, 1):
            for n in (SIZES[0], LARGE, SIZES[3]):
                for batch, _ in STEPS_IN_SCAN:
                    # Without the weights, for which flashbax copies its tree.
                    what = NO_WEIGHTS if prioritized else STEP
                    main = n == LARGE and batch == MAIN
                    most = (0.65 if cores else 0.5) if prioritized else 0.8
                    where = {"prioritized": prioritized, "cores": cores, "n": n, "batch": batch}
                    bar(FLASHBAX, most if main else 1.0, what, **where)
        bar(FLASHBAX, 1.3 if prioritized else 1.2, COMPILE, prioritized=prioritized)
    for n in (SIZES[0], LARGE, SIZES[3]):
        for cores in (None, 1):
            bar(FLASHBAX, 1.0, ADD, prioritized=False, batch=None, n=n, cores=cores)
    bar(FLASHBAX, 1.0, ADD, prioritized=False, batch=None, mode=PYTHON)
    for mode in MODES:
        bar(FLASHBAX, 1.0, SAMPLE, prioritized=False, mode=mode)
    for peer in (CPPRB, TORCHRL):
        for what in (SAMPLE, UPDATE):
            bar(peer, 1.0, what, prioritized=True, mode=PYTHON)
    bar(CPPRB, 1.5, SAMPLE, prioritized=False, mode=PYTHON)
    return found


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Time of a step over the capacity, and over the batch, of fbuf and flashbax."""

    def lines(over: str, **fixed: Any) -> list[Line]:
        wanted = {"item": "row", "mode": SCAN, "what": STEP, "cores": None, **fixed}
        return [
            Line(
                f"{name}, {kind}",
                [
                    (r[over], r["us"])
                    for r in records
                    if (r["peer"], r["prioritized"]) == (name, prioritized)
                    and all(r.get(key) == value for key, value in wanted.items())
                ],
                report.COLORS[name],
                "o-" if prioritized else "s--",
            )
            for name in (FBUF, FLASHBAX)
            for prioritized, kind in KINDS.items()
        ]

    panels = [
        report.Panel(f"draws of {MAIN}", lines("n", batch=MAIN), "capacity N (rows)"),
        report.Panel(f"N = {LARGE:,}", lines("batch", n=LARGE), "batch B (rows)"),
    ]
    report.draw(path, panels, "microseconds a step in lax.scan")


if __name__ == "__main__":
    report.script(
        title="fbuf beside its peers",
        packages=PACKAGES,
        keys=("item", "mode", "what", "prioritized", "n", "batch", "cores", "peer"),
        figures=("us", "bytes"),
    )
