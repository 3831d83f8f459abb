"""How figures are taken: side by side, turn by turn, and again in other processes.

What is compared runs in the same process and the same minute, one round of each in turn, so that
a noisy minute hits all of them. XLA's programs differ from process to process, so a figure is the
median over processes of the median over rounds.
"""

from __future__ import annotations

import collections
import dataclasses
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
"""The repository."""

Task = dict[str, Any]
"""What one process has to measure. `label` is for people; the harness reads `cores` (how many the
process may use, default all), `environment` (variables) and `seconds` (it is ended after these)."""

Record = dict[str, Any]
"""What was measured, and the figures: those named "us" are microseconds."""

Run = Callable[[], int]
"""Runs some steps to the end and returns how many."""


@dataclasses.dataclass
class Measured:
    """What a process has found: the figures, and what it could not measure and why."""

    records: list[Record] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


# --- in one process ------------------------------------------------------------------------------


def alternate(
    programs: Mapping[Any, Run], rounds: int, seconds: float = 1.0
) -> dict[Any, list[float]]:
    """Microseconds a step of each program, one entry a round.

    Args:
        programs: What to run. Each is run once beforehand, to warm up.
        rounds: How many rounds.
        seconds: A program that has taken so long sits out the rest, after 3 rounds, or after one
            if that alone took three times as long.
    """
    for run in programs.values():
        run()
    taken: dict[Any, list[float]] = {name: [] for name in programs}
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


def zeros_like(shapes: Any) -> Any:
    """A tree of zeros in these shapes: what a scan adds its batches to."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def use(used: Any, drawn: Any) -> Any:
    """All leaves of a batch added up, number by number: XLA leaves out what nobody uses."""
    import jax

    return jax.tree.map(lambda u, x: u ^ x if x.dtype == bool else u + x, used, drawn)


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(statistics.mean(values)), error


def available_bytes() -> int:
    """Bytes of memory that are free, or can be made so."""
    info = pathlib.Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 2**63


# --- what a figure depends on --------------------------------------------------------------------


def processor() -> str:
    """The name of the CPU, and how many cores may be used."""
    name = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {cores()} cores"


def cores() -> int:
    """How many cores this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(usable(0)) if usable else os.cpu_count() or 1


def load() -> str:
    """How busy the machine is; what else runs makes all figures larger, and not all alike."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def about(*packages: str) -> dict[str, str]:
    """What a result depends on: date, device and versions."""

    def version(package: str) -> str:
        source = importlib.util.find_spec(package) if package == "fbuf" else None
        if source and source.origin:  # what is imported, not what was once installed
            found = re.search(
                r'^__version__ = "(.*)"', pathlib.Path(source.origin).read_text(), re.MULTILINE
            )
            if found:
                return found[1]
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    return {
        "date": datetime.date.today().isoformat(),
        "device": "CPU",
        "processor": processor(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


# --- the process that starts the others ----------------------------------------------------------


def run_tasks(module: str, tasks: Sequence[Task]) -> Measured:
    """Run every task in a process of its own, one after the other, and say how it goes."""
    all_found = Measured()
    begun = time.monotonic()
    for number, task in enumerate(tasks, start=1):
        start = time.monotonic()
        try:
            found = in_own_process(module, task)
            all_found.records += found.records
            all_found.notes += found.notes
        except RuntimeError as error:
            all_found.notes.append(f"{task['label']}: {error}")
        now = time.monotonic()
        progress = f"[{number}/{len(tasks)}, {now - begun:.0f} s] {task['label']}"
        print(f"{progress}: {now - start:.0f} s", file=sys.stderr, flush=True)
    all_found.notes = list(dict.fromkeys(all_found.notes))
    return all_found


def in_own_process(module: str, task: Task) -> Measured:
    """Run `python -m module --worker task --out file`, and return what it has written.

    Raises:
        RuntimeError: If it failed, with the last line it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [sys.executable, "-m", module, "--worker", json.dumps(task), "--out", str(out)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
                env={**os.environ, **task.get("environment", {})},
                timeout=task.get("seconds"),
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done within {task['seconds']:.0f} s") from None
        if done.returncode != 0 or not out.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"failed with exit status {done.returncode}: {last}")
        return Measured(**json.loads(out.read_text()))


def work(measure: Callable[[Task], Measured], task: Task, out: pathlib.Path) -> None:
    """Do a task, in the process that was started for it."""
    if "cores" in task and hasattr(os, "sched_setaffinity"):
        # Before a library starts its threads: it asks how many cores it may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-task["cores"] :])
    out.write_text(json.dumps(dataclasses.asdict(measure(task))))


def merged(
    records: Sequence[Record], keys: Sequence[str], figures: Sequence[str] = ("us",)
) -> list[Record]:
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
