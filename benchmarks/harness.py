"""Take figures: side by side, turn by turn, and again in other processes.

Programs that are compared run in the same process and the same minute, one round of each in turn.
So a noisy minute hits all of them. XLA's programs differ from process to process, so a figure is
the median over processes of the median over rounds.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = pathlib.Path(__file__).resolve().parents[1]
"""The repository."""

Task = dict[str, Any]
"""The task of one process. `label` is for people. The harness reads `cores` (how many the process
may use, default all), `environment` (variables) and `seconds` (the process ends after these)."""

Record = dict[str, Any]
"""A name for each figure of a measurement: "us" are microseconds."""

Run = Callable[[], int]
"""Runs some steps to the end and returns how many."""

NEW, OLD = "new", "old"
"""This tree, and the tree of an older commit."""


@dataclasses.dataclass
class Measured:
    """The figures of a process, and notes: all that it could not measure, and why."""

    records: list[Record] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    paces: list[float] = dataclasses.field(default_factory=list)
    """The `pace` before, between and after the tasks."""


# --- in one process ------------------------------------------------------------------------------


def alternate(
    programs: Mapping[Any, Run], rounds: int, seconds: float = 1.0
) -> dict[Any, list[float]]:
    """Return microseconds a step of each program, one entry a round.

    Args:
        programs: The programs to time. Each is run once beforehand, to warm up.
        rounds: The number of rounds.
        seconds: A program that has taken so long sits out the rest, after 3 rounds, or after one
            if that alone took three times as long.
    """
    return by_turns({name: timed(run) for name, run in programs.items()}, rounds, seconds)


def by_turns(
    figures: Mapping[Any, Callable[[], T]], rounds: int, seconds: float = math.inf
) -> dict[Any, list[T]]:
    """Take each figure once a round, after one that does not count; see `alternate`."""
    for take in figures.values():
        take()
    taken: dict[Any, list[T]] = {name: [] for name in figures}
    spent = dict.fromkeys(figures, 0.0)
    order = list(figures)
    for number in range(rounds):
        for name in order:
            if spent[name] > seconds and (number >= 3 or spent[name] > 3 * seconds):
                continue
            start = time.perf_counter()
            taken[name].append(figures[name]())
            spent[name] += time.perf_counter() - start
        order = order[1:] + order[:1]  # none always runs behind the same other one
    return taken


def timed(run: Run) -> Callable[[], float]:
    """Return a function that takes one figure: microseconds a step."""

    def figure() -> float:
        start = time.perf_counter()
        steps = run()
        return (time.perf_counter() - start) / steps * 1e6

    return figure


def repeated(step: Callable[[int], None], seconds: float) -> Run:
    """Return a program that calls `step(i)` as often as fits into about this time, by trying."""
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


class Box:
    """The state of one buffer, passed on from one program to the next."""

    def __init__(self, state: Any) -> None:
        self.state = state


def in_scan(
    step: Callable[[Any, Any], Any],
    box: Box,
    rest: Sequence[Any],
    inputs: Any,
    options: Mapping[str, Any] | None = None,
) -> tuple[Run, int]:
    """Compile `step((state, *rest), input)`, which returns the next carry, inside `lax.scan`.

    The carry is donated. `options` are those of the compiler.

    Returns:
        A program of all steps, and the temporary bytes of the program. It takes the state out of
        the box, and puts the last one back.
    """
    compiled = compiled_scan(step, (box.state, *rest), inputs, options)
    run = run_of_scan(compiled, box, rest, inputs)
    return run, compiled.memory_analysis().temp_size_in_bytes


def compiled_scan(
    step: Callable[[Any, Any], Any],
    carry: Any,
    inputs: Any,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the compiled program of `in_scan`: of a carry and inputs, the last carry."""
    import jax

    jitted: Any = jax.jit(scanned(step), donate_argnums=0)
    return jitted.lower(carry, inputs).compile(compiler_options=dict(options or {}))


def scanned(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of `compiled_scan`, to be compiled."""
    import jax

    return lambda carry, inputs: jax.lax.scan(
        lambda carry, given: (step(carry, given), None), carry, inputs
    )[0]


def run_of_scan(compiled: Any, box: Box, rest: Sequence[Any], inputs: Any) -> Run:
    """Return a program that runs `compiled_scan`, with the state of the box."""
    import jax

    steps = len(jax.tree.leaves(inputs)[0])

    def run() -> int:
        nonlocal rest
        box.state, *rest = jax.block_until_ready(compiled((box.state, *rest), inputs))
        return steps

    return run


def draws_in_scan(
    draw: Callable[[Any, Any], Any], box: Box, keys: Any, add: Callable[[Any], Any] | None = None
) -> Run:
    """Return a program of draws in a scan, each after `add(state)` if that is given.

    All numbers that `draw(state, key)` returns are added up in the carry.
    """
    import jax

    def step(carry: Any, key: Any) -> Any:
        state, used = carry
        state = add(state) if add else state
        return state, use(used, draw(state, key))

    used = zeros_like(jax.eval_shape(draw, box.state, keys[0]))
    return in_scan(step, box, [used], keys)[0]


def zeros_like(shapes: Any) -> Any:
    """Return a tree of zeros in these shapes, to which a scan adds its batches."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def use(used: Any, drawn: Any) -> Any:
    """Add up all leaves of a batch, number by number: XLA leaves out numbers that are not used."""
    import jax

    return jax.tree.map(lambda u, x: u ^ x if x.dtype == bool else u + x, used, drawn)


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(statistics.mean(values)), error


def resident_bytes(peak: bool = False) -> int:
    """Return the bytes of this process in memory, or the most since `forget_peak`."""
    name = "VmHWM" if peak else "VmRSS"
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def forget_peak() -> None:
    """Have the peak of `resident_bytes` begin anew; free memory goes back to the system before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def available_bytes() -> int:
    """Return the bytes of memory that are free, or can be made so."""
    info = pathlib.Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 2**63


# --- the machine and the versions -----------------------------------------------------------------


def processor() -> str:
    """Return the name of the CPU, and how many cores may be used."""
    name = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {cores()} cores"


def cores() -> int:
    """Return how many cores this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(usable(0)) if usable else os.cpu_count() or 1


def pace() -> float:
    """Return the milliseconds of a fixed piece of work: more where a machine is busy, or slow.

    The work is a loop of Python, sums of numbers in the cache, and a copy of numbers that are not.
    The median of 15 leaves out what comes once.
    """
    import numpy as np

    near, far = np.ones(2**14, np.float32), np.ones(2**24, np.uint8)

    def work() -> float:
        begun = time.perf_counter()
        for _ in range(400):
            near.sum()
            sum(range(100))
        far.copy()
        return (time.perf_counter() - begun) * 1e3

    return median([work() for _ in range(15)])


def load() -> str:
    """Return how busy the machine is: other programs make all figures larger, and not all alike."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def about(*packages: str) -> dict[str, str]:
    """Return all that a result depends on: date, device and versions."""

    def version(package: str) -> str:
        source = importlib.util.find_spec(package) if package == "fbuf" else None
        if source and source.origin:  # of the imported package, which need not be the installed one
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


@contextlib.contextmanager
def trees(commit: str | None) -> Generator[dict[str, str]]:
    """Yield the folders of this tree and, for a time, of that of a commit, by `NEW` and `OLD`."""
    if not commit:
        yield {NEW: str(ROOT)}
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield {NEW: str(ROOT), OLD: str(tree)}
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run_tasks(module: str, tasks: Sequence[Task]) -> Measured:
    """Run every task in a process of its own, one after the other, and say how it goes.

    The pace of the machine is taken before, between and after them.
    """
    all_found = Measured(paces=[pace()])
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
        all_found.paces.append(pace())
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
    """Make one record of those that agree in all keys: medians of the figures."""
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
