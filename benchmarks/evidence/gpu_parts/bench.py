"""Run one case in a process of its own: sizes, the time that is left, figures and records."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.evidence import gpu_calls
from benchmarks.evidence.gpu_calls import Call, Times
from benchmarks.harness import Record


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        run: Measures it; its docstring says what it is.
        seconds: The most that it may take.
        environment: Variables of its process.
    """

    run: Callable[[Bench], None]
    seconds: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Bench:
    """The process of one case.

    Attributes:
        cpu: Whether this is a trial of the script, on the CPU.
        device: Torch's name of the device.
        batch: The rows of a batch.
        n: The rows of a buffer.
        calls: How many calls a figure is the median of.
    """

    def __init__(self, name: str, seconds: float, cpu: bool) -> None:
        """Begin; the process is to end by itself a little before it would be ended."""
        self.name, self.cpu, self.end = name, cpu, time.monotonic() + seconds - 2
        self.device, self.batch = "cpu" if cpu else "cuda", 256
        self.n = 20_000 if cpu else 10**6
        self.rounds, self.calls = (1, 3) if cpu else (7, 40)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def emit(self, **record: Any) -> None:
        """Print a record at once, for this process may be ended."""
        import jax

        known = {"case": self.name, "jax": jax.__version__, "mode": "LHS", "n": self.n}
        known |= {"batch": self.batch}
        print(json.dumps(known | record, default=str), flush=True)

    def failed(self, error: Exception, **record: Any) -> None:
        """Record that one variant failed; the others go on."""
        text = " ".join(str(error).split())[:160]
        self.emit(**record, failed=f"{type(error).__name__}: {text}")

    def times(self, runs: Mapping[Any, Callable[[], Any]], of: tuple[str, ...]) -> None:
        """Time variants by turns, and emit a record of each.

        Args:
            runs: The calls, by their names: as many values as there are in `of`.
            of: The names of these values in a record.
        """
        for name, times in self.parts(runs, lambda name: dict(zip(of, name, strict=True))).items():
            self.emit(**dict(zip(of, name, strict=True)), **microseconds(times))

    def parts(
        self,
        runs: Mapping[Any, Callable[[], Any]],
        named: Callable[[Any], Record] = lambda name: {"what": str(name)},
    ) -> dict[Any, Times]:
        """Time calls by turns, for as long as there is time.

        Args:
            runs: The calls, by name. A name whose call raises is left out.
            named: Makes the record of a failure from the name.
        """
        figures: dict[Any, Callable[[], Times]] = {}
        for name, run in runs.items():
            call = run if isinstance(run, Call) else Call(_ignoring(run), self.settle)
            try:
                gpu_calls.times_of(call)  # compiles
                figures[name] = gpu_calls.round_of(call, 60.0, self.calls)
            except Exception as error:
                self.failed(error, **named(name))
        taken: dict[Any, list[Times]] = {name: [] for name in figures}
        for _ in range(self.rounds):
            for name, figure in figures.items():
                if self.left() > 3 or not taken[name]:
                    taken[name].append(figure())
        return {name: gpu_calls.median(times) for name, times in taken.items()}

    def settle(self, result: Any) -> None:
        """Wait for all work on the device; on a CPU, for the arrays of a result."""
        import jax

        arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        gpu_calls.settled(self.device, lambda: arrays)


def _ignoring(run: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda _: run()


def microseconds(times: Times, by: float = 1.0) -> Record:
    """Return figures for a record, each divided by a number."""
    found = dataclasses.asdict(times)
    return {f"{name}_us": round(value / by, 2) for name, value in found.items()}


def slope(points: list[tuple[float, float]]) -> float:
    """Return by how much the second number grows with the first."""
    return float(statistics.linear_regression(*zip(*points, strict=True)).slope)


def options(mode: str) -> dict[str, Any]:
    """Return the options of the compiler for a mode of XLA's CUDA graphs; a CPU ignores them.

    LHS is the default. With WHILE a whole scan is one graph, whose loops are a node. The list has
    the kinds that are captured by default, too: "+WHILE" is for `XLA_FLAGS` only.
    """
    import jax

    concurrent = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
    branches = "CONDITIONAL," if jax.__version_info__ >= (0, 11) else ""  # before: not captured
    kinds = f"FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,{branches}WHILE"
    loops = {"xla_gpu_enable_command_buffer": kinds}
    return {
        "LHS": {},
        "CONCURRENT": concurrent,
        "WHILE": loops,
        "WHILE+CONCURRENT": loops | concurrent,
        "unroll": loops | concurrent | {"xla_gpu_command_buffer_unroll_loops": True},
        "no graphs": {"xla_gpu_graph_min_graph_size": 1000},
    }[mode]


def flags(mode: str) -> dict[str, str]:
    """Return the variables of a process in which all programs are compiled in a mode."""
    import os

    given = [f"--{name}={value}" for name, value in options(mode).items()]
    return {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *given]).strip()}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
