"""The tables of `gpu_speed`, and the names in its records."""

from __future__ import annotations

from typing import Any

from benchmarks import compare, report
from benchmarks.evidence import gpu_calls
from benchmarks.harness import Record

NAMES = FBUF, FLASHBAX, TORCHRL = "fbuf", "flashbax", "torchrl"
SAME = "torchrl, as many fields"
"""TorchRL with rows of more fields, so that it hands out as many as fbuf."""
STEP, GATHER = "step inside jit", "row gather"
MODES: dict[str, dict[str, Any]] = {
    "LHS": {},
    "CONCURRENT": {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"},
}
"""XLA's modes to record CUDA graphs, and the options of the compiler. A CPU ignores them."""
OWN = "the library's own"
"""The mode of programs that a library compiles itself, and of those that are none of XLA's."""
LARGE = "state"
"""The item of which there are as many rows as a large learner of many tasks keeps."""
THINGS = {
    "row": "rows of 97 bytes",
    "frame": "84x84x4 uint8 frames",
    LARGE: "rows of 24 + 6 + 1 float32",
}


def label_of(kind: Record) -> str:
    return f"{THINGS[kind['item']]}, {compare.KINDS[kind['prioritized']]}"


def tables(records: list[Record]) -> list[str]:
    """The figures, as lines of Markdown."""
    found: dict[Any, dict[Any, Record]] = {}
    for r in records:
        if "us" in r:
            key = (r["what"], r["item"], r["prioritized"], r["n"], r["batch"])
            found.setdefault(key, {})[r["peer"], r["mode"]] = r
    lines = [*step_table(found), *call_table(found), *gather_table(found), ""]
    for r in records:
        if r["what"] == "copy":
            rate = f"{r['bytes_per_second'] / 1e9:,.1f} GB/s"
            lines.append(f"- a large copy, beside {THINGS[r['item']]}: {rate} read and written")
        if r["what"] == "rows":
            verdict = "all as written" if r["right"] else "WRONG ROWS"
            things = f"{label_of(r)}, N = {r['n']:,}"
            lines.append(f"- {things}: {r['drawn']:,} rows drawn, {verdict}")
    versions = sorted({r["jax"] for r in records if "jax" in r})
    return [*lines, f"- all of these with jax {', '.join(versions)}"] if versions else lines


Found = dict[Any, dict[Any, Record]]
"""Records by what was measured, item, kind, N and batch, and then by library and mode."""
HEAD = ["rows", "buffer", "N", "batch"]


def start_of(item: str, prioritized: bool, n: int, batch: int) -> list[str]:
    return [THINGS[item], compare.KINDS[prioritized], f"{n:,}", f"{batch:,}"]


def step_table(found: Found) -> list[str]:
    """The table of scanned steps, by mode."""
    columns = [(name, mode) for mode in MODES for name in (FBUF, FLASHBAX)]
    body = []
    for (what, *key), by_column in found.items():
        if what == STEP:
            times = [by_column[c]["us"] if c in by_column else None for c in columns]
            ours = [time for time in times[::2] for _ in range(2)]
            cells = [report.beside(*pair) for pair in zip(times, ours, strict=True)]
            body.append([*start_of(*key), *cells])
    title = "Step inside jit: microseconds (and times fbuf's, in the same mode)"
    return report.section(title, [*HEAD, *(f"{mode}: {name}" for name, mode in columns)], body)


def call_table(found: Found) -> list[str]:
    """The table of calls from PyTorch programs: time of the host, and of all."""
    names = FBUF, TORCHRL, SAME
    body = []
    for (what, *key), by_column in found.items():
        if what in gpu_calls.CALLS:
            those = [by_column.get((name, OWN)) for name in names]
            cells = ["-" if r is None else f"{r['fields']}" for r in those]
            for figure in ("returned_us", "us"):
                times = [None if r is None else r[figure] for r in those]
                cells += [report.beside(time, times[0]) for time in times]
            body.append([what, *start_of(*key), *cells])
    head = [f"{figure}: {name}" for figure in ("fields", "returned", "done") for name in names]
    title = "Calls from PyTorch programs: microseconds (and times fbuf's)"
    return report.section(title, ["call", *HEAD, *head], body)


def gather_table(found: Found) -> list[str]:
    """The table of draws alone, by mode."""
    columns = [(name, mode) for mode in MODES for name in (FBUF, FLASHBAX)]
    body = []
    for (what, *key), by_column in found.items():
        if what == GATHER:
            cells = [
                f"{by_column[c]['us']:,.1f} ({by_column[c]['share']:.0%})"
                if c in by_column
                else "-"
                for c in columns
            ]
            size = f"{next(iter(by_column.values()))['bytes'] / 2e6:,.2f}"
            body.append([*start_of(*key), size, *cells])
    title = "Row gather: microseconds (and share of the rate of a copy)"
    head = [*HEAD, "MB", *(f"{mode}: {name}" for name, mode in columns)]
    return report.section(title, head, body)
