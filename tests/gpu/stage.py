"""Ask questions of a GPU, each in a process of its own, and set the stage for them.

- A danger is what the bare libraries do. It "holds" if it shows: then the adapter is needed.
- A fact is what the adapter relies on.
- A promise is what the adapter says of itself.

Where only a GPU can tell, the same code runs on a CPU all the same, and the verdict is "left".
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"

DANGER, FACT, PROMISE = "danger", "fact", "promise"
HOLDS, FAILS, LEFT = "holds", "does not hold", "left"
TOGETHER, ONE_BY_ONE, ALONE = "together", "one by one", "alone"
"""Whether a check bears others beside it: any, only the tests, or nothing at all."""

ROUNDS = 5
BUSY = 0.2
"""Seconds a stream is kept busy for, so that whoever does not wait for it shows."""
COUNT = 2**24
"""Numbers in an array that is large enough to take a while."""

ON_DEMAND = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
POOL = (("XLA_PYTHON_CLIENT_MEM_FRACTION", ".2"),)
"""JAX's memory: taken when needed; or beforehand, so that nobody waits for an allocation."""

Found = dict[str, Any]
"""A verdict, and a text with the figures."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A question to ask in a process of its own."""

    name: str
    kind: str
    claim: str
    run: Callable[[Stage], Found]
    company: str = TOGETHER
    may_abort: bool = False
    memory: tuple[tuple[str, str], ...] = ON_DEMAND


CHECKS: dict[str, Check] = {}
"""All of them, in the order of the report."""


def check(name: str, kind: str, claim: str, **options: Any) -> Callable[[Any], Any]:
    """Register a function as the answer to a question."""

    def register(run: Callable[[Stage], Found]) -> Callable[[Stage], Found]:
        CHECKS[name] = Check(name, kind, claim, run, **options)
        return run

    return register


def verdict(holds: bool, text: str) -> Found:
    return {"verdict": HOLDS if holds else FAILS, "text": text}


def on_gpu(stage: Stage, holds: bool, text: str, right: bool = True) -> Found:
    """The same for what only a GPU can tell.

    Args:
        stage: Where it was found.
        holds: Whether the claim holds, if that is a GPU.
        text: The figures.
        right: Whether what any device can tell is as it should be: if not, that is a failure.
    """
    if stage.gpu or not right:
        return verdict(holds and right, text)
    return {"verdict": LEFT, "text": f"needs a GPU; here: {text}"}


def error_of(call: Callable[[], Any]) -> str:
    """Return the error of a call, in a line; empty if it raises nothing."""
    try:
        call()
    except Exception as error:  # whatever it is, it goes into the report
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


class Stage:
    """The device of a check, and what is asked of PyTorch's side of it."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device, self.gpu = device, device == "cuda"
        self.busy = BUSY if self.gpu else 0.02
        self.count = COUNT if self.gpu else 2**18
        self.rounds = 2 if quick else ROUNDS
        self._cycles = 0.0

    def wait(self) -> None:
        """Wait for all that PyTorch, and JAX, have given the GPU to do."""
        import torch

        if self.gpu:
            torch.cuda.synchronize()

    def sleep(self) -> None:
        """Keep PyTorch's current stream busy, with one thread of the GPU."""
        import torch

        if not self.gpu:
            return
        if not self._cycles:
            some = 10**8
            for _ in range(3):  # an idle GPU is slow at first
                start = time.perf_counter()
                torch.cuda._sleep(some)
                self.wait()
                self._cycles = some / (time.perf_counter() - start)
        torch.cuda._sleep(int(self._cycles * self.busy))

    def mark(self) -> Callable[[], bool]:
        """Tells, whenever asked, whether PyTorch's current stream has come past this point."""
        import torch

        return torch.cuda.current_stream().record_event().query if self.gpu else lambda: True

    def slow(self) -> Callable[[], Any]:
        """A JAX program that keeps JAX's stream busy for as long; returns an array."""
        import jax
        import jax.numpy as jnp

        side = 4096 if self.gpu else 256
        matrix = jnp.eye(side) / 2 + 1 / side

        def program(turns: int) -> Any:
            return jax.jit(lambda x: jax.lax.fori_loop(0, turns, lambda _, y: jnp.tanh(y @ x), x))

        few, each = program(8), 1.0
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(few(matrix))
            each = (time.perf_counter() - start) / 8
        many = program(max(1, int(self.busy / each)))
        jax.block_until_ready(many(matrix))
        return lambda: many(matrix)


def benchmark(name: str) -> Any:
    """A module of the benchmarks."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(f"benchmarks.{name}")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def microseconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the microseconds of each call, the median of rounds in which they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # the first call compiles and loads
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            count, start = 0, time.perf_counter()
            while count < 10 or time.perf_counter() - start < 0.02:
                call()
                count += 1
            taken[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: median(each) for name, each in taken.items()}


def machine() -> dict[str, Any]:
    """Return the facts that both libraries find here."""
    import jax
    import torch

    devices = [device for device in jax.devices() if device.platform == "gpu"]
    wheels = {
        found.metadata["Name"]: found.version
        for found in importlib.metadata.distributions()
        if re.match(r"nvidia-(cublas|cudnn|nccl|cuda-runtime)", found.metadata["Name"] or "")
        or re.match(r"jax-cuda\d+-pjrt", found.metadata["Name"] or "")
    }
    about = {"cuda of torch": str(torch.version.cuda), **dict(sorted(wheels.items()))}
    if not (torch.cuda.is_available() and devices):
        return {"cuda": False, "about": about}
    properties = torch.cuda.get_device_properties(0)
    about |= {
        "device": f"{properties.name}, {properties.total_memory / 1e9:.0f} GB",
        "jax device": str(devices[0].device_kind),
    }
    return {"cuda": True, "about": about}
