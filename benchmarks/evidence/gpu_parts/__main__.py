"""Where the time of a buffer on a GPU goes, part by part: ten measurements, M1 to M10.

    python -m benchmarks.evidence.gpu_parts                 at most nine minutes, on a GPU
    python -m benchmarks.evidence.gpu_parts --only M1 M6    some of them
    python -m benchmarks.evidence.gpu_parts --cpu           a trial of the script itself, small
    pip install "jax[cuda12]==0.11.2" torch==2.11.0 torchrl==0.14.1 flashbax==0.1.3 chex tqdm
    PYTHONPATH=.:adapters python -m benchmarks.evidence.gpu_parts --results out

It needs fbuf, flashbax, TorchRL, and JAX and PyTorch that both find the GPU. Without a GPU it says
so in one line, and exits with 0. On a GPU that is lent for a while nothing is installed: the last
two commands are for it. Their versions are those of the published figures of a GPU. Keep `out`,
also if the time was up before the end.

Each case is a process of its own, with a time limit: a mode may be of a process, and a case may
end it. The cases that decide most come first. None begins that could not end in time, and the
report is written after each.

- Figures are microseconds, and medians over rounds in which the variants take turns. "returned" is
  until a call has returned: time of the host. "done" is until its results are there, too, and
  "dropped" is the time to let go of them. In scans they are those of a step.
- A buffer has a million rows of 97 bytes, and a batch 256, where a table says nothing else.
- Modes are those of XLA's CUDA graphs. LHS is the default, a list of nodes. CONCURRENT keeps to
  what each node waits for. With WHILE a scan is one graph, and "unroll" unrolls its loop.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import harness, report
from benchmarks.evidence.gpu_parts import buffers, memory, scans, ways, xla_alone
from benchmarks.evidence.gpu_parts.bench import Bench, Case, flags, say
from benchmarks.harness import Record

MODULE = "benchmarks.evidence.gpu_parts"
TITLE = "Parts of the time on a GPU"
SECONDS = 9 * 60
"""The most seconds of a whole run."""
LEAST = 20
"""Seconds without which no case begins."""
TRIAL = 8
"""In a trial a case may take so many times longer: a CPU may have few cores, and be busy."""
CASES = {
    "M10": Case(xla_alone.nodes, 35),
    "M1": Case(xla_alone.call_alone, 30),
    "M2": Case(buffers.calls_in("LHS"), 50),
    "M2-CONCURRENT": Case(buffers.calls_in("CONCURRENT"), 35, flags("CONCURRENT")),
    "M2-no-graphs": Case(buffers.calls_in("no graphs"), 35, flags("no graphs")),
    "M3": Case(ways.one_batch, 50),
    "M6-uniform": Case(scans.uniform, 60),
    "M6-prioritised": Case(scans.prioritised, 60),
    "M6-uniform-4096": Case(scans.large_uniform, 35),
    "M6-prioritised-4096": Case(scans.large_prioritised, 35),
    "M4": Case(ways.several_batches, 40),
    "M5": Case(ways.training_step, 60),
    "M8": Case(memory.gathers, 45),
    "M7": Case(scans.trees, 45),
    "M9": Case(memory.ring, 25),
}
"""The cases; those that decide most come first."""
LEFT = "left, no time"


@dataclasses.dataclass
class Found:
    """The end of a case: its name, how and after how many seconds it ended, and all it printed."""

    case: str
    status: str = LEFT
    seconds: float = 0.0
    records: list[Record] = dataclasses.field(default_factory=list)
    words: list[str] = dataclasses.field(default_factory=list)


def run_case(name: str, seconds: float, cpu: bool) -> Found:
    """Run a case in a process of its own, and keep what it has printed, however it ends."""
    case = CASES[name]
    command = [sys.executable, "-m", MODULE, "--case", name, "--seconds", f"{seconds}"]
    environment = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **case.environment,
        **({"JAX_PLATFORMS": "cpu"} if cpu else {}),
    }
    begun, status = time.monotonic(), f"stopped after {seconds:.0f} s"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as words:
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [*command, *["--cpu"] * cpu], stdout=out, stderr=words, cwd=harness.ROOT,
                env=os.environ | environment, timeout=seconds, check=False,
            )  # fmt: skip
            status = "done" if done.returncode == 0 else f"ended with {done.returncode}"
        out.seek(0)
        words.seek(0)
        # The last line may be half a record, if the process was stopped.
        lines = [line for line in out if line.startswith("{") and line.endswith("}\n")]
        last = [] if status == "done" else words.read().strip().splitlines()[-6:]
    taken = round(time.monotonic() - begun, 1)
    return Found(name, status, taken, [json.loads(line) for line in lines], last)


def section(found: Found) -> list[str]:
    """Return what came of a case, as lines of Markdown."""
    words = (CASES[found.case].run.__doc__ or "").strip().splitlines()
    lines = ["", f"## {found.case}: {found.seconds:.0f} s, {found.status}", ""]
    lines += [*(line.strip() for line in words), ""]
    columns = [
        name
        for name in dict.fromkeys(name for record in found.records for name in record)
        if name not in ("case", "jax")
    ]
    rows = [[_cell(record.get(name)) for name in columns] for record in found.records]
    lines += report.table(columns, rows)
    return [*lines, *(["", "```", *found.words, "```"] if found.words else [])]


def _cell(value: Any) -> str:
    text = "-" if value is None else report.number(value) if type(value) is float else f"{value}"
    return text.replace("|", "/")


def why_not() -> str | None:
    """Return why nothing can be measured, or None."""
    code = "import jax, torch; jax.devices('gpu'); assert torch.cuda.is_available(), 'torch'"
    quiet = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", code]
    tried = subprocess.run(
        command, capture_output=True, env=os.environ | quiet, check=False, text=True
    )
    if tried.returncode == 0:
        return None
    return "gpu_parts: skipped, nothing was measured; JAX and PyTorch do not both find a GPU here"


def device() -> str:
    """Return the name of the GPU, its driver and its clock."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "a GPU"
    return done.stdout.strip().splitlines()[0]


def wanted(only: Sequence[str]) -> list[str]:
    """Return the names of the cases that are asked for: "M6" is all that begin so."""
    return [name for name in CASES if not only or name in only or name.partition("-")[0] in only]


def measure(names: Sequence[str], options: argparse.Namespace) -> None:
    """Run cases, one after the other, and write the report after each."""
    begun, everything = time.monotonic(), list[Found]()
    about = harness.about("fbuf", "jax", "jaxlib", "flashbax", "torch", "torchrl")
    about["device"] = "CPU, a trial" if options.cpu else device()
    for name in names:
        limit = CASES[name].seconds * (TRIAL if options.cpu else 1)
        left = SECONDS - 5 - (time.monotonic() - begun)
        seconds = limit if options.cpu else min(limit, left)
        everything.append(run_case(name, seconds, options.cpu) if seconds > LEAST else Found(name))
        one = everything[-1]
        taken = time.monotonic() - begun
        say(
            f"[{taken:.0f} s] {name}: {one.seconds:.0f} s, {one.status}, {len(one.records)} records"
        )
        about["run"] = f"{'trial' if options.cpu else 'full'}, {taken:.0f} s"
        report.write(
            MODULE,
            TITLE,
            report.results_of(options),
            about,
            [dataclasses.asdict(found) for found in everything],
            [line for found in everything for line in section(found)],
            __doc__ or "",
            shown=name == names[-1],
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", default=[], help="cases, such as M1 M6")
    parser.add_argument("--cpu", action="store_true", help="a trial of the script, small")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    report.add_options(parser)
    options = parser.parse_args()
    options.quick = options.cpu  # its figures say nothing
    if options.case:
        CASES[options.case].run(Bench(options.case, options.seconds, options.cpu))
    elif not options.cpu and (message := why_not()):
        print(message)
    elif names := wanted(options.only):
        measure(names, options)
    else:
        parser.error(f"--only: there are {', '.join(CASES)}")


if __name__ == "__main__":
    main()
