"""A buffer whose rows can be removed, one made with `removable=False`, and flashbax's.

    python -m benchmarks.evidence.removable            about 3 minutes on 2 cores
    python -m benchmarks.evidence.removable --quick    a few seconds

It needs flashbax, which has no function that removes rows.

An add of 16 rows, and a step of an add and a draw of 256 rows, both in `lax.scan`, as in
`python -m benchmarks.compare`. The buffers are full, and draw uniformly. "One core": the process
may use one core, so XLA has no second thread to wake.

Figures are medians over processes of medians over rounds, in which the buffers take turns.
"""

from __future__ import annotations

import math
from typing import Any

import jax

from benchmarks import compare, harness, peers, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

SIZES = 10_000, 1_000_000, 10_000_000
CORES = None, 1
WHATS = compare.ADD, compare.STEP
KINDS: tuple[type[peers.Peer], ...] = (peers.Fbuf, peers.Stays, peers.Flashbax)
NAMES = tuple(kind.name for kind in KINDS)
TURNS = 2000


def run_of(kind: type[peers.Peer], n: int, what: str) -> harness.Run:
    """Return a program of many steps of a full buffer."""
    peer = kind(peers.ROW, n, compare.MAIN, False)
    rows = peers.rows_to_fill(peer, compare.ADDED)
    full = jax.jit(lambda state: jax.lax.fori_loop(
        0, n // compare.ADDED + 3, lambda _, state: peer.add(state, rows), state
    ))  # fmt: skip
    box = harness.Box(full(peer.init()))
    step, rest, inputs = compare.parts_of_scan(peer, box.state, what, TURNS, [])
    return harness.in_scan(step, box, rest, inputs)[0]


def measure(task: Task) -> Measured:
    """Time all buffers in turn."""
    found = Measured()
    for what in WHATS:
        runs: dict[Any, harness.Run] = {kind.name: run_of(kind, task["n"], what) for kind in KINDS}
        rounds = 3 if task["quick"] else 15
        for name, taken in harness.alternate(runs, rounds, 5.0).items():
            found.records.append(
                {
                    "n": task["n"],
                    "cores": task.get("cores"),
                    "what": what,
                    "peer": name,
                    "us": harness.median(taken),
                }
            )
    return found


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process: two for each size and number of cores."""
    return [
        {"label": f"N = {n:,}, cores {cores.get('cores', 'all')}", "n": n, "quick": quick, **cores}
        for n in SIZES[: 1 if quick else None]
        for cores in ({}, {"cores": 1})
        for _ in range(1 if quick else 2)
    ]


def tables(records: list[Record]) -> list[str]:
    """Return the tables, and the bars of adds."""
    us, lines, bars = Find(records), list[str](), list[str]()
    for what in WHATS:
        rows = []
        for n in sorted({record["n"] for record in records}):
            for cores in CORES:
                found = [us(n=n, cores=cores, what=what, peer=name) for name in NAMES]
                plain, stays, theirs = (time or math.nan for time in found)
                shown = [f"{report.number(t)} ({t / theirs:.2f})" for t in (plain, stays)]
                rows.append([f"{n:,}", str(cores or "all"), *shown, report.number(theirs)])
                if what == compare.ADD:
                    text = f"add, N = {n:,}, {cores or 'all'} cores: {stays / theirs:.2f}"
                    text += " of flashbax's time, at most 1.0 wanted"
                    bars.append(report.bar(text, stays <= theirs, ""))
        head = ["N", "cores", *(f"{name}, us (of flashbax)" for name in NAMES[:-1]), NAMES[-1]]
        lines += report.section(what.capitalize(), head, rows)
    return [*lines, "", "## Bars", "", *bars]


if __name__ == "__main__":
    report.script(
        title="Buffers whose rows can be removed, and others",
        packages=("fbuf", "jax", "jaxlib", "flashbax"),
        keys=("n", "cores", "what", "peer"),
    )
