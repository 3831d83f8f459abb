"""This tree against an older commit of it, to see that no figure has become worse.

    python -m benchmarks.evidence.versus COMMIT            about 18 minutes on 2 cores
    python -m benchmarks.evidence.versus COMMIT --quick    about 4 minutes: short rounds

It needs fbuf, git, and JAX; `.venv` has them.

Both trees are imported into the same process, and their programs take turns, round by round. Each
process gives one ratio for each figure: the median over the rounds of this tree's time to the older
one's. The table has the median of the ratios over the processes, and the least and the largest.
XLA's programs differ from process to process, and so do their ratios. A figure counts as worse if
the ratio is above 1 in every process, and its median is above 1.05.

A buffer has a million rows of 97 bytes and is full, batches are of 256, and 16 rows are added.
"In scan" and "from Python" are as in `compare.py`. Windows are of 4 rows, in episodes of 50 to 150.
Views are read by a uniform draw in a scan; `compile` is the tracing and compiling of the scanned
step, in seconds.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from benchmarks import compare, harness, report
from benchmarks.harness import NEW, OLD, Measured, Record, Task

N, BATCH, ADDED, LENGTH = 1_000_000, 256, 16, 4
WORSE = 1.05
"""A median ratio above it counts, if no process says otherwise."""
SMALL = 100_000
"""The rows of a quick run."""

Build = Callable[[], harness.Run]


# --- the two trees -------------------------------------------------------------------------------


def load(tree: str) -> Any:
    """Import the package `fbuf` of a tree, beside that of another one."""
    import jax.export

    for name in [n for n in sys.modules if n.partition(".")[0] == "fbuf"]:
        del sys.modules[name]
    sys.path.insert(0, tree)
    # JAX refuses to know two classes by one name. No program is exported here.
    ignore = mock.patch.object(jax.export, "register_pytree_node_serialization")
    try:
        with ignore:
            module = importlib.import_module("fbuf")
    finally:
        sys.path.remove(tree)
    if not (module.__file__ or "").startswith(tree):
        raise RuntimeError(f"fbuf came from {module.__file__}, not from {tree}")
    return module


def made(cls: Any, **options: Any) -> Any:
    """A sampler or view with those of the options that this version of it has."""
    known = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in options.items() if name in known})


# --- what is measured ----------------------------------------------------------------------------


def rows_of(count: int) -> dict[str, Any]:
    """Rows to add, made from the same numbers for both trees."""
    import jax
    import jax.numpy as jnp

    from benchmarks import peers

    return jax.tree.map(jnp.asarray, peers.random_rows(peers.ROW, count, seed=4))


class Windows(harness.Box):
    """A buffer of episodes with a sampler of windows or a view, full."""

    def __init__(
        self, fbuf: Any, sampler: Any, view: Any, capacity: int, next_of: str | None = None
    ) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        from benchmarks import peers

        self.fbuf, self.view = fbuf, view
        options = {"next_of": next_of} if next_of else {}
        super().__init__(fbuf.init(peers.ROW, capacity, sampler=sampler, **options))
        rng = np.random.default_rng(5)
        many = capacity // 10
        ends = np.zeros(many, bool)
        ends[np.cumsum(rng.integers(50, 150, many // 150))] = True
        self.more = {}
        if next_of:
            self.more["next_observation"] = rows_of(ADDED)[next_of]
        for _ in range(11):
            extra = {"next_observation": rows_of(many)[next_of]} if next_of else {}
            self.state = fbuf.add(self.state, rows_of(many), truncated=jnp.asarray(ends), **extra)
        jax.block_until_ready(self.state)

    def in_scan(self, step: bool, steps: int) -> harness.Run:
        """Steps that add and draw, or draws alone."""
        import jax

        fbuf, view, rows = self.fbuf, self.view, rows_of(ADDED)
        keys = jax.random.split(jax.random.key(2), steps)

        def draw(state: Any, key: Any) -> Any:
            batch = fbuf.sample(state, key, BATCH, view=view)
            return batch.data, batch.weight, batch.mask

        def add(state: Any) -> Any:
            return fbuf.add(state, rows, **self.more)

        return harness.draws_in_scan(draw, self, keys, add if step else None)


def rows_figures(fbuf: Any, capacity: int, quick: bool) -> dict[str, Build]:
    """Buffers of rows: the operations in scan and from Python."""
    from benchmarks import peers

    found: dict[str, Build] = {}
    for prioritized, kind in compare.KINDS.items():
        peer = peers.Fbuf(peers.ROW, capacity, BATCH, prioritized, fbuf)
        box = harness.Box(peers.filled(peer, capacity // 10))
        whats = [compare.STEP, compare.ADD, compare.SAMPLE]
        for what in [*whats, compare.UPDATE] if prioritized else whats:
            found[f"{kind} {what}, in scan"] = lambda p=peer, b=box, w=what: compare.in_scan(
                p, b, w, 50 if quick else 500
            )[0]
            found[f"{kind} {what}, from Python"] = lambda p=peer, b=box, w=what: (
                compare.from_python(p, b, w, 0.01 if quick else 0.03)
            )
        found[f"{kind} step, compile"] = lambda p=peer, b=box: compiling(p, b)
    return found


def compiling(peer: Any, box: Any) -> harness.Run:
    """Tracing and compiling the scanned step; a new function each time, so nothing is cached."""

    def run() -> int:
        compare.in_scan(peer, box, compare.STEP, 10)
        return 1

    return run


def windows_figures(fbuf: Any, capacity: int, quick: bool) -> dict[str, Build]:
    """Windows of episodes, while writing."""
    view = made(fbuf.Sequence, length=LENGTH, boundary="stop")
    samplers = {
        "windows by start": made(fbuf.Uniform, window=LENGTH),
        "windows by episode": made(fbuf.Uniform, window=LENGTH, by="episode"),
        "prioritised windows": made(fbuf.Prioritized, window=LENGTH),
    }
    found: dict[str, Build] = {}
    for name, sampler in samplers.items():
        buffer = Windows(fbuf, sampler, view, capacity)
        steps = 20 if quick else 200
        found[f"{name}, step in scan"] = lambda b=buffer, s=steps: b.in_scan(True, s)
        found[f"{name}, sample in scan"] = lambda b=buffer, s=steps: b.in_scan(False, s)
        found[f"{name}, compile"] = lambda b=buffer: again(lambda: b.in_scan(True, 10))
    return found


def again(build: Callable[[], Any]) -> harness.Run:
    """Building as a program."""

    def run() -> int:
        build()
        return 1

    return run


def views_figures(fbuf: Any, capacity: int, quick: bool) -> dict[str, Build]:
    """Views, read by uniform draws."""
    views = {
        "Transition": made(fbuf.Transition, next_of="observation"),
        "NStep(5)": made(fbuf.NStep, n=5, gamma=0.99, next_of="observation"),
        "FrameStack(4)": made(fbuf.FrameStack, k=4),
        "Sequence(8, pad)": made(fbuf.Sequence, length=8, boundary="pad"),
        "ReturnToGo": made(fbuf.ReturnToGo, gamma=0.99),
    }
    found: dict[str, Build] = {}
    for name, view in views.items():
        next_of = "observation" if name in ("Transition", "NStep(5)") else None
        buffer = Windows(fbuf, fbuf.Uniform(), view, capacity, next_of)
        steps = 20 if quick else 200
        found[f"{name}, sample in scan"] = lambda b=buffer, s=steps: b.in_scan(False, s)
    return found


GROUPS = (rows_figures, windows_figures, views_figures)


def measure(task: Task) -> Measured:
    """Both trees, turn by turn."""
    quick, capacity = task["quick"], SMALL if task["quick"] else N
    # The trees take turns in being compiled and run first, too.
    modules = {side: load(task["trees"][side]) for side in task["order"]}
    found = Measured()
    for group in GROUPS:
        figures = {side: group(module, capacity, quick) for side, module in modules.items()}
        for name in figures[NEW]:
            runs: dict[str, harness.Run] = {}
            try:
                for side in task["order"]:
                    runs[side] = figures[side][name]()
                rounds = (3 if name.endswith("compile") else 5) if quick else 9
                taken = harness.alternate(runs, rounds, 1.5)
            except Exception as error:  # the other figures are measured all the same
                text = " ".join(str(error).split())[:200]
                found.notes.append(f"{name}: {type(error).__name__}: {text}")
                continue
            us = {side: harness.median(taken[side]) for side in runs}
            found.records.append(
                {
                    "what": name,
                    "us": us[NEW],
                    "old_us": us[OLD],
                    # Rounds one after the other are hit alike by a noisy minute.
                    "ratio": harness.median(
                        [new / old for new, old in zip(taken[NEW], taken[OLD], strict=False)]
                    ),
                    "rounds": taken,
                }
            )
        del figures
    return found


# --- the report ----------------------------------------------------------------------------------


def worse(record: Record) -> bool:
    """Whether the figure is worse by more than noise."""
    return record["ratio"] > WORSE and min(record["ratio_by_process"]) > 1


def tables(records: list[Record]) -> list[str]:
    """The ratios."""
    rows = []
    for r in records:
        seconds = r["what"].endswith("compile")
        times = [f"{us / 1e6:.2f} s" if seconds else report.number(us) for us in figures_of(r)]
        ratios = r["ratio_by_process"]
        verdict = "WORSE" if worse(r) else "better" if max(ratios) < 1 / WORSE else "as before"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([r["what"], *times, f"{r['ratio']:.2f}", spread, verdict])
    head = ["what", "us now", "us before", "ratio", "by process", "verdict"]
    bad = [r["what"] for r in records if worse(r)]
    more = f"Worse by more than noise: {', '.join(bad) or 'none'}."
    return [*report.table(head, rows), "", more]


def figures_of(record: Record) -> list[float]:
    """Now, and before."""
    return [record["us"], record["old_us"]]


def tasks(quick: bool, trees: dict[str, str]) -> list[Task]:
    """The same in several processes, which import the trees in turns."""
    if OLD not in trees:
        sys.exit("which commit?")
    order = [OLD, NEW]
    return [
        {"label": f"process {n + 1}", "trees": trees, "order": order[:: (-1) ** n], "quick": quick}
        for n in range(1 if quick else 5)
    ]


if __name__ == "__main__":
    found = report.script(
        title="This tree beside an older commit",
        packages=("fbuf", "jax", "jaxlib", "numpy"),
        keys=("what",),
        figures=("us", "old_us", "ratio"),
        commit="the older commit",
    )
    sys.exit(any(map(worse, found.records)) or bool(found.notes))
