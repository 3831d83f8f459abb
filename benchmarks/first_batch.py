"""The first ten seconds: from the start of a process to the tenth step of a program.

    python -m benchmarks.first_batch            about 12 minutes on 2 cores
    python -m benchmarks.first_batch --quick    about 2 minutes: the scanned step and two buffers

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

Each program is a process of its own (`benchmarks/first_batch_cases.py`). A step adds rows of 8
environments, draws a batch of 256, and with priorities gives new ones to the batch. An agent of
Stable-Baselines3 takes 200 steps, of which the last 100 learn. With its priorities fbuf's is beside
an agent without, for the library has none. "Seconds" are those since the process began: Python, all
imports, compiling. "CPU" is the time of all its threads.

"empty" has no compile cache. "warm" has JAX's persistent cache, filled by a process before.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time

from benchmarks import first_batch_cases as cases
from benchmarks import report
from benchmarks.first_batch_cases import CASES, FBUF, FLASHBAX, IMPORT, TENTH
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

EMPTY, WARM = CACHES = "empty", "warm"
QUICK = ("scan, uniform", "ReplayBuffer, uniform", "DQN of SB3")
COMPILES = (FLASHBAX,)
"""Libraries that compile, too: their time is a measure of fbuf's by its share."""

MOST_SHARE, MOST_ABOVE, MOST_WARM = 1.3, 2.0, 0.7


def seconds_since_start() -> float:
    """Return the seconds since this process began."""
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begun = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(pathlib.Path("/proc/uptime").read_text().split()[0]) - begun


def measure(task: Task) -> Measured:
    """Run one program, in this process; or write what others begin from."""
    folder = pathlib.Path(task["folder"])
    if task["what"] == "prepare":
        cases.prepare(folder)
        return Measured()
    before, began = seconds_since_start(), time.perf_counter()
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as own:
        program = CASES[task["what"], task["library"]]
        for stage in program(folder if "torchrl" in os.listdir(folder) else pathlib.Path(own)):
            wall = before + time.perf_counter() - began
            records.append({"stage": stage, "wall": wall, "cpu": time.process_time()})
    if task["fills"]:
        return Measured()
    named = {name: task[name] for name in ("what", "library", "cache")}
    return Measured([record | named for record in records])


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="first_batch_"))
    plain = {"folder": str(folder), "quick": quick, "fills": False}
    found: list[Task] = [] if quick else [plain | {"label": "prepare", "what": "prepare"}]
    for number in range(1 if quick else 3):
        for what, library in CASES:
            if quick and what not in QUICK:
                continue
            task = plain | {"what": what, "library": library}
            label = f"{what}, {library}"
            found.append(task | {"label": f"{label}, {EMPTY}", "cache": EMPTY})
            if library not in (FBUF, *COMPILES):
                continue
            cached = task | {"cache": WARM, "environment": cache_in(folder / "cache" / label)}
            if number == 0:
                found.append(cached | {"label": f"{label}, fills the cache", "fills": True})
            found.append(cached | {"label": f"{label}, {WARM}"})
    return found


def cache_in(folder: pathlib.Path) -> dict[str, str]:
    """Return the variables that give JAX a persistent cache, with small programs in it."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def of_stage(records: list[Record], stage: str, figure: str) -> list[list[str]]:
    """Return a row for each program: each library, and fbuf with a warm cache."""
    find, rows = Find(records, figure), []
    for what in dict.fromkeys(what for what, _ in CASES):
        ours = find(what=what, library=FBUF, stage=stage, cache=EMPTY)
        warm = find(what=what, library=FBUF, stage=stage, cache=WARM)
        theirs = [
            f"{report.number(found)} {library}"
            for library in dict.fromkeys(library for _, library in CASES)
            if library != FBUF
            and (found := find(what=what, library=library, stage=stage, cache=EMPTY)) is not None
        ]
        if ours is not None:
            rows.append([what, report.number(ours), report.number(warm), ", ".join(theirs) or "-"])
    return rows


def tables(records: list[Record]) -> list[str]:
    """Return all tables, as lines of Markdown."""
    lines: list[str] = []
    for figure, unit in (("wall", "seconds since the process began"), ("cpu", "seconds of CPU")):
        for stage in (TENTH, cases.DRAW, cases.ADD, IMPORT):
            rows = of_stage(records, stage, figure)
            head = ["program", FBUF, f"{FBUF}, warm cache", "others"]
            lines += report.section(f"To the {stage}: {unit}", head, rows)
    return lines


def bars(records: list[Record]) -> list[str]:
    """Return the promises, and whether each was held."""
    find, found = Find(records, "wall"), []
    for what, library in CASES:
        if library == FBUF:
            continue

        def at(who: str, cache: str = EMPTY, what: str = what) -> float | None:
            return find(what=what, library=who, stage=TENTH, cache=cache)

        ours, warm, theirs = at(FBUF), at(FBUF, WARM), at(library)
        if ours is None or theirs is None or warm is None:
            continue
        if library in COMPILES:
            text = f"{what}: {ours / theirs:.2f} of {library}'s time, at most {MOST_SHARE} wanted"
            found.append(report.bar(text, ours <= MOST_SHARE * theirs))
            theirs = at(library, WARM) or theirs
        else:
            above = ours - theirs
            text = f"{what}: {above:.2f} s above {library}, at most {MOST_ABOVE} wanted"
            found.append(report.bar(text, above <= MOST_ABOVE))
        above = warm - theirs
        text = f"{what}, warm: {above:.2f} s above {library}, at most {MOST_WARM} wanted"
        found.append(report.bar(text, above <= MOST_WARM))
    return found


if __name__ == "__main__":
    report.script(
        title="From the start of a process to the tenth step",
        packages=("fbuf", "jax", "jaxlib", "torch", "torchrl", "stable_baselines3", "flashbax"),
        keys=("what", "library", "stage", "cache"),
        figures=("wall", "cpu"),
    )
