"""JAX and PyTorch on one GPU: that sharing memory is safe there, and how fast it is.

    python tests/gpu/checks.py                         about 9 minutes on an H200
    python tests/gpu/checks.py --parts checks tests    without the benchmarks
    python tests/gpu/checks.py --device cpu --quick    that everything runs, without a GPU

It needs fbuf, jax[cuda13], torch and pytest, and for the benchmarks flashbax and torchrl; what is
not there is left out, and said to be. It writes `benchmarks/results/gpu_checks.json` and
`gpu_checks.md`, and exits with an error if a promise does not hold or a test fails.

- The checks are those of `hazards.py` (memory) and `together.py` (all else), each in a process of
  its own: some may abort it. `pytest -m gpu` asks the same of a GPU, one test a check.
- The tests are those of buffers, samplers and the PyTorch adapters, told by FBUF_TEST_DEVICE to
  keep their arrays and tensors on the GPU.
- The benchmarks are those of `benchmarks/evidence/gpu_speed.py`, a process for each kind of buffer.

Nothing that is timed runs beside anything else. Every part ends when its time is up, and what it
had no time for is listed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import hazards  # noqa: F401 (registers its checks)
import stage
import together  # noqa: F401 (registers its checks)
from stage import (
    ALONE,
    CHECKS,
    FAILS,
    HOLDS,
    LEFT,
    ONE_BY_ONE,
    PROMISE,
    RESULTS,
    ROOT,
    TOGETHER,
    Check,
    benchmark,
)

Record = dict[str, Any]
"""The results of one check, of the tests, or of one benchmark."""
PARTS = CHECKS_PART, TESTS, SPEED = "checks", "tests", "speed"
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "flashbax", "torchrl", "tensordict", "numpy")
TEST_PLACES = (
    "tests/adapters/pytorch", "tests/adapters/tensordict", "tests/ops", "tests/samplers",
    "tests/storage", "tests/trees", "tests/views", "tests/test_against_oracle.py",
)  # fmt: skip
"""Tests that a GPU is asked about too: those marked `on_cpu` are left out."""
TEST_DEVICE = "FBUF_TEST_DEVICE"
MEMORY = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""JAX's way to take memory: set for each process, whatever it was for this one."""

SECONDS = 525
"""Seconds of the whole run, if no others are asked for."""
CHECK_SECONDS, TESTS_SECONDS = 75, 200
"""Seconds of one check, and of all tests; the benchmarks share the rest."""
WORKERS, TEST_WORKERS = 4, 10
"""Checks at a time, of those that bear it; and processes of tests."""


class Device:
    """The device and the time of all processes."""

    def __init__(self, name: str, quick: bool, seconds: float) -> None:
        self.name, self.quick = name, quick
        self.end = time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Seconds for something that may take so many."""
        return max(0.0, min(most, self.end - time.monotonic()))

    def environment(self, memory: Any = stage.ON_DEMAND) -> dict[str, str]:
        """Variables of a process, in which JAX takes memory as told."""
        kept = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", *MEMORY)}
        if self.name == "cpu":
            kept["JAX_PLATFORMS"] = "cpu"
        # Processes that were started by a test look for the same sources as that does.
        return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | dict(memory)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], seconds: float, environment: dict[str, str]) -> tuple[int | None, str]:
    """Run a command for so long at most.

    Returns:
        Its exit status, None if its time was up; and all that it printed.
    """
    if seconds < 5:
        return None, "no time was left"
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        status = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
        printed.seek(0)
        return status, printed.read()


def work_apart(
    task: dict[str, Any], seconds: float, environment: dict[str, str]
) -> tuple[Any, int | None, str]:
    """Have a process of this script do a task.

    Returns:
        Return its results, None if there are none; its exit status; and all that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        script = str(pathlib.Path(__file__).resolve())
        command = [sys.executable, script, "--worker", json.dumps(task), "--out", str(out)]
        status, printed = run(command, seconds, environment)
        return (json.loads(out.read_text()) if out.exists() else None), status, printed


def last_words(printed: str) -> str:
    """The line that says why a process ended: a fatal one of XLA's, or the last."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4}\b|F0000|Fatal Python error", line)]
    return (fatal or lines[-1:] or ["no message"])[0][:300]


# --- the checks ----------------------------------------------------------------------------------


def ask(check: Check, device: Device) -> Record:
    """Run one check."""
    task = {"check": check.name, "device": device.name, "quick": device.quick}
    begun = time.monotonic()
    seconds = device.left(CHECK_SECONDS)
    found, status, printed = work_apart(task, seconds, device.environment(check.memory))
    if found is None and status is None:
        found = {"verdict": LEFT, "text": f"not done within {seconds:.0f} s"}
    elif found is None or status != 0:
        # An abort is what some dangers are about; to anything else it is a failure.
        aborted = check.may_abort and status is not None and status < 0
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        found = {
            "verdict": HOLDS if aborted else FAILS,
            "text": f"the process ended with {how}: {last_words(printed)}",
        }
    record = {"what": "check", "name": check.name, "kind": check.kind, "claim": check.claim}
    say(f"({check.name}) {found['verdict']}, {time.monotonic() - begun:.0f} s: {found['text']}")
    return record | found


def checks_of(company: str) -> list[Check]:
    return [check for check in CHECKS.values() if check.company == company]


def ask_beside_tests(device: Device) -> list[Record]:
    """The checks that bear company, and then those that bear that of the tests only."""
    workers = WORKERS if device.name == "cuda" else 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        records = list(pool.map(lambda check: ask(check, device), checks_of(TOGETHER)))
    return records + [ask(check, device) for check in checks_of(ONE_BY_ONE)]


# --- the tests -----------------------------------------------------------------------------------


def run_tests(device: Device) -> Record:
    """The tests, on the device."""
    if not importlib.util.find_spec("pytest"):
        return {"what": "tests", "verdict": LEFT, "text": "pytest is not installed", "failed": []}
    places = [ROOT / place for place in TEST_PLACES]
    files = sorted({file for place in places for file in [place, *place.rglob("test_*.py")]})
    files = [str(file.relative_to(ROOT)) for file in files if file.is_file()]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--no-header", *files]
    command += ["-m", "not sweep", "-p", "no:benchmark"]  # in several processes it warns
    if importlib.util.find_spec("xdist") and device.name == "cuda":
        command += ["-n", str(TEST_WORKERS), "--dist", "worksteal"]
    environment = device.environment() | {TEST_DEVICE: device.name}
    seconds = device.left(TESTS_SECONDS)
    status, printed = run(command, seconds, environment)
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if status is None:
        verdict, last = LEFT, f"not done within {seconds:.0f} s: {last}"
    elif status != 0:
        verdict = FAILS
    elif device.name != "cuda":
        verdict, last = LEFT, f"needs a GPU; here: {last}"
    else:
        verdict = HOLDS
    last += f"; of {len(files)} files"
    say(f"tests: {verdict}: {last}")
    return {
        "what": "tests", "files": files, "verdict": verdict, "text": last, "failed": failed[:60]
    }  # fmt: skip


# --- the benchmarks ------------------------------------------------------------------------------


def run_speed(device: Device, notes: list[str]) -> list[Record]:
    """All benchmarks, in a process for each kind of buffer."""
    records: list[Record] = []
    gpu_speed = benchmark("evidence.gpu_speed")
    todo = gpu_speed.tasks(device.quick, device.name)
    for number, task in enumerate(todo):
        label = task["label"]
        # Seconds that one leaves go to those after it.
        share = task["seconds"] / sum(other["seconds"] for other in todo[number:])
        seconds = device.left(math.inf) * share
        begun = time.monotonic()
        pool = (("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{gpu_speed.JAX_SHARE}"),)
        # It stops by itself some seconds before it would be stopped.
        task = task | {"speed": True, "stop_after": max(0.0, seconds - 15)}
        found, status, printed = work_apart(task, seconds, device.environment(pool))
        if found is not None:
            records += found["records"]
            notes += found["notes"]
        if status is None:
            notes.append(f"{label}: left in part, not done within {seconds:.0f} s")
        elif status != 0:
            notes.append(f"{label}: FAILED with status {status}: {last_words(printed)}")
        say(f"{label}: {time.monotonic() - begun:.0f} s")
    return records


# --- all of it -----------------------------------------------------------------------------------


def report(records: list[Record], notes: list[str], about: dict[str, str]) -> list[str]:
    """All that was found, as lines of Markdown."""
    render, gpu_speed = benchmark("report").table, benchmark("evidence.gpu_speed")
    lines = [
        "# JAX and PyTorch on one GPU",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
    ]
    checks = [r for r in records if r["what"] == "check"]
    counts = {v: sum(r["verdict"] == v for r in checks) for v in (HOLDS, FAILS, LEFT)}
    lines += ["", "## Checks", "", ", ".join(f"{v}: {n}" for v, n in counts.items()) + ".", ""]
    rows = [
        [f"({r['name']})", r["kind"], r["claim"], r["verdict"], r["text"].replace("|", "/")]
        for r in sorted(checks, key=lambda r: r["name"].partition(",")[0])
    ]
    head = ["", "kind", "what", "verdict", "measured"]
    lines += render(head, rows) if rows else ["none were run"]
    lines += ["", "## Tests", ""]
    tests = [r for r in records if r["what"] == "tests"]
    lines += [f"{r['verdict']}: {r['text']}" for r in tests] or ["were not run"]
    lines += [f"- {line}" for r in tests for line in r["failed"]]
    lines += ["", "## Speed", *gpu_speed.tables(records)]
    lines += ["", "## What is missing, and why", ""]
    lines += [f"- {note}" for note in dict.fromkeys(notes)] or ["nothing"]
    lines += ["", "## How it was measured", "", *stage.__doc__.strip().splitlines()[2:]]
    return [*lines, "", *gpu_speed.__doc__.strip().splitlines()[2:]]


def run_parts(
    device: Device, parts: list[str], about: dict[str, str], folder: pathlib.Path
) -> list[Record]:
    """Run what was asked for, and write the report; also half-way, lest it be cut short."""
    records: list[Record] = []
    notes = [f"{part}: not asked for" for part in PARTS if part not in parts]
    begun = time.monotonic()

    def write() -> None:
        run = f"{'quick' if device.quick else 'full'}, {time.monotonic() - begun:.0f} s"
        found = about | {"run": run}
        lines = report(records, notes, found)
        benchmark("report").save("gpu_checks", folder, found, records, lines)

    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        tests = beside.submit(run_tests, device) if TESTS in parts else None
        if CHECKS_PART in parts:
            records += ask_beside_tests(device)
        if tests:
            records.append(tests.result())
    if CHECKS_PART in parts:
        records += [ask(check, device) for check in checks_of(ALONE)]
    if SPEED in parts:
        if records:
            write()
        records += run_speed(device, notes)
    write()
    return records


def driver() -> dict[str, str]:
    """The version of NVIDIA's driver, if there is one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"driver": done.stdout.strip().splitlines()[0]} if done.stdout.strip() else {}


def work(task: dict[str, Any], out: pathlib.Path) -> None:
    """Do a task, in a process that another one of this script has started."""
    if task.get("speed"):
        benchmark("harness").work(benchmark("evidence.gpu_speed").measure, task, out)
        return
    if task["check"] == "machine":
        found = stage.machine()
    else:
        found = CHECKS[task["check"]].run(stage.Stage(task["device"], task["quick"]))
    out.write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda if JAX and PyTorch both have it"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the whole run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker), options.out)
        return

    begun = time.monotonic()
    looking = Device("cuda", options.quick, options.seconds)
    machine, _, printed = work_apart({"check": "machine"}, 120, looking.environment())
    if machine is None:
        sys.exit(f"JAX or PyTorch does not start: {last_words(printed)}")
    if options.device == "cuda" and not machine["cuda"]:
        sys.exit("--device cuda: JAX, PyTorch or both find no GPU; install jax[cuda13] and torch")
    name = options.device or ("cuda" if machine["cuda"] else "cpu")
    about = benchmark("harness").about(*PACKAGES) | machine["about"] | driver()
    if name == "cpu":
        about["device"] = "CPU"
    say(f"on {about['device']}, {time.monotonic() - begun:.0f} s to find out")
    device = Device(name, options.quick, options.seconds - (time.monotonic() - begun))
    records = run_parts(device, list(options.parts), about, options.results)
    broken = [
        r.get("name", "tests")
        for r in records
        if r.get("verdict") == FAILS and r.get("kind", PROMISE) == PROMISE
    ]
    wrong = [r for r in records if r["what"] == "rows" and not r["right"]]
    if broken or wrong:
        sys.exit(f"failed: {', '.join(broken) or 'wrong rows were drawn'}")


if __name__ == "__main__":
    main()
