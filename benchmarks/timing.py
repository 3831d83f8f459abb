"""How times are taken: programs side by side, turn by turn, and the median of their rounds.

What is compared runs in the same process and the same minute, one round of each in turn, so that
a noisy minute hits all of them.
"""

from __future__ import annotations

import collections
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"

Record = dict[str, Any]
"""What was measured and how much: figures under "us", which is microseconds."""

Run = Callable[[], int]
"""Runs some steps to the end and returns how many."""


def alternate(programs: dict[str, Run], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Microseconds a step of each program, one entry a round.

    Args:
        programs: What to run. Each is run once beforehand, to warm up.
        rounds: How many rounds.
        seconds: A program that has taken so long sits out the rest, after 3 rounds, or after one
            if that alone took three times as long.
    """
    for run in programs.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in programs}
    spent = dict.fromkeys(programs, 0.0)
    order = list(programs)
    for number in range(rounds):
        for name in order:
            if spent[name] > seconds and (number >= 3 or spent[name] > 3 * seconds):
                continue
            start = time.perf_counter()
            steps = programs[name]()
            elapsed = time.perf_counter() - start
            spent[name] += elapsed
            taken[name].append(elapsed / steps * 1e6)
        order = order[1:] + order[:1]  # nobody always runs behind the same one
    return taken


def repeated(step: Callable[[int], None], seconds: float) -> Run:
    """A program that calls `step(i)` as often as fits into about this time, found by trying."""
    step(0)
    steps, start = 0, time.perf_counter()
    while steps < 3 or (time.perf_counter() - start < seconds / 4 and steps < 1000):
        step(steps)
        steps += 1
        if time.perf_counter() - start > seconds:
            break
    each = (time.perf_counter() - start) / steps
    count = max(1, int(seconds / each))

    def run() -> int:
        for i in range(count):
            step(i)
        return count

    return run


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def processor() -> str:
    """The name of the CPU, and how many cores may be used."""
    name = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return f"{name}, {len(usable(0)) if usable else os.cpu_count()} cores"


def about(*packages: str) -> dict[str, str]:
    """What a result depends on: date, processor and versions."""

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # fbuf, run from its source
            source = importlib.util.find_spec(package)
            text = pathlib.Path(source.origin).read_text() if source and source.origin else ""
            found = re.search(r'^__version__ = "(.*)"', text, re.MULTILINE)
            return found[1] if found else "not installed"

    return {
        "date": datetime.date.today().isoformat(),
        "device": "CPU",
        "processor": processor(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def scanned(step: Callable[[Any, Any], Any], carry: Any, inputs: Any) -> tuple[Any, Any]:
    """Compile `step(carry, input) -> carry` inside `lax.scan` with a donated carry.

    Returns:
        The program, to be called as `program(carry, inputs)`, and its memory analysis.
    """
    import jax

    def run(carry: Any, inputs: Any) -> Any:
        return jax.lax.scan(lambda c, x: (step(c, x), None), carry, inputs)[0]

    program = jax.jit(run, donate_argnums=0).lower(carry, inputs).compile()
    return program, program.memory_analysis()


def in_own_process(script: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run `script --worker task --out file`, and return what it has written.

    Raises:
        RuntimeError: If it failed, with the last line it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [sys.executable, script, "--worker", json.dumps(task), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not out.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"failed with exit status {done.returncode}: {last}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def merged(records: list[Record], keys: Sequence[str], *figures: str) -> list[Record]:
    """One record for all processes that measured the same: medians of the figures."""
    groups: dict[Any, list[Record]] = collections.defaultdict(list)
    for record in records:
        groups[tuple(record.get(key) for key in keys)].append(record)
    found = []
    for group in groups.values():
        one = {k: v for k, v in group[0].items() if k != "rounds"}
        for figure in figures:
            values = [record[figure] for record in group if figure in record]
            if values:
                one[figure] = median(values)
                one[f"{figure}_by_process"] = values
        found.append(one)
    return found


def render(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose columns line up, text to the left and figures to the right."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    figures = [
        all(line[i][:1].isdigit() or line[i] == "-" for line in rows) for i in range(len(head))
    ]

    def line(cells: list[str]) -> str:
        return (
            "| "
            + " | ".join(
                cell.rjust(width) if figure else cell.ljust(width)
                for cell, width, figure in zip(cells, widths, figures, strict=True)
            )
            + " |"
        )

    rules = (
        "-" * (width + 1) + (":" if figure else "-")
        for width, figure in zip(widths, figures, strict=True)
    )
    return [line(head), "|" + "|".join(rules) + "|", *(line(row) for row in rows)]


def write_report(
    name: str, folder: pathlib.Path, about: dict[str, str], records: list[Record], lines: list[str]
) -> None:
    """Print a report, and write it to `name`.md and its figures to `name`.json."""
    print("\n".join(lines))
    folder.mkdir(parents=True, exist_ok=True)
    report = {"about": about, "records": records}
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
