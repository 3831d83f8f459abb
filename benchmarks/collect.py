"""Collecting the steps of environments, beside stepping them and doing nothing.

    python -m benchmarks.collect            some minutes
    python -m benchmarks.collect --quick    less of everything

It needs fbuf, JAX and Gymnasium.

CartPole is stepped with fixed actions. "Nothing" calls the policy and `envs.step`, and drops the
results (without automatic resets it resets, too). "Collector" puts every step into a buffer made
with `next_of`, in its own chunks, with one `fbuf.add` a chunk. A chunk is 512 steps of 8
environments, or 128 of 64; "an add a step" has chunks of one step. All three step the same
environments, in turns of 512 steps. Equal environments elsewhere in memory would differ by more
than the measured times do. (A buffer then lacks the steps of the other two ways, which makes no
difference to the time.)

Figures are microseconds a step of all environments, medians over the turns. They are given in CPU
time, which adds up all threads and does not know of other programs, and in wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fbuf
from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task

ENVIRONMENTS = (8, 64)
MODES = ("same_step", "next_step", "disabled")
HOW: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "Collector": {},
    "an add a step": {"chunk": 1},
}
"""The arguments of the collector, for each way to step."""

_STEPS = 512


def _nothing(envs: Any, policy: Any, mode: str) -> Callable[[], None]:
    observation = envs.reset(seed=0)[0]

    def run() -> None:
        nonlocal observation
        for _ in range(_STEPS):
            observation, _, terminated, truncated, _ = envs.step(policy(observation))
            if mode == "disabled" and (ended := terminated | truncated).any():
                observation, _ = envs.reset(options={"reset_mask": ended})

    return run


def _collected(envs: Any, policy: Any, options: dict[str, Any]) -> Callable[[], None]:
    from fbuf_adapters.gymnasium import Collector

    collector = Collector(envs, policy, seed=0, **options)
    capacity = 1000 * envs.num_envs
    more = {"next_of": "observation", "max_ends": capacity // 4, **collector.options}
    state = fbuf.init(collector.item, capacity, **more)

    def run() -> None:
        nonlocal state
        state = jax.block_until_ready(collector.collect(state, _STEPS))

    return run


def _clocked(run: Callable[[], None]) -> Callable[[], tuple[float, float]]:
    """Return a function of two figures: microseconds a step of wall time and of CPU time."""

    def figure() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall / _STEPS * 1e6, cpu / _STEPS * 1e6

    return figure


def measure(task: Task) -> Measured:
    """Step the same environments in all ways, by turns."""
    try:
        from gymnasium import make_vec
        from gymnasium.vector import AutoresetMode
    except ImportError as error:
        return Measured([], [f"gymnasium: {error}"])
    count, mode = task["environments"], task["mode"]
    actions = np.random.default_rng(0).integers(0, 2, count)
    policy = lambda observation: actions
    kwargs = {"autoreset_mode": AutoresetMode[mode.upper()]}
    envs = make_vec("CartPole-v1", count, vectorization_mode="sync", vector_kwargs=kwargs)
    programs: dict[str, Callable[[], None]] = {}
    for name, options in HOW.items():
        if options is None:
            programs[name] = _nothing(envs, policy, mode)
        else:
            programs[name] = _collected(envs, policy, options)
    figures = {name: _clocked(run) for name, run in programs.items()}
    taken = harness.by_turns(figures, task["rounds"])
    of = {"environments": count, "mode": mode}
    return Measured(
        [
            {**of, "how": name, "time": kind, "us": harness.median(us)}
            for name, rounds in taken.items()
            for kind, us in zip(("wall", "cpu"), zip(*rounds, strict=True), strict=True)
        ]
    )


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    return [
        {
            "label": f"{count} environments, {mode}",
            "environments": count,
            "mode": mode,
            "rounds": 3 if quick else 12,
        }
        for count in ENVIRONMENTS
        for mode in MODES
        for _ in range(1 if quick else 3)
    ]


def tables(records: list[Record]) -> list[str]:
    """Microseconds a step, and how much more than nothing."""
    find = report.Find(records)
    lines: list[str] = []
    for kind, title in (("cpu", "CPU time"), ("wall", "Wall time")):
        body = []
        for count in ENVIRONMENTS:
            for mode in MODES:
                of = {"environments": count, "mode": mode, "time": kind}
                nothing = find(how="nothing", **of)
                cells = [report.beside(find(how=how, **of), nothing) for how in HOW]
                body.append([f"{count}, {mode}", *cells])
        head = ["environments", *HOW]
        lines += report.section(f"Microseconds a step: {title}", head, body)
    return lines


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    find = report.Find(records)
    lines: list[str] = []
    for count in ENVIRONMENTS:
        for mode in MODES:
            of = {"environments": count, "mode": mode, "time": "cpu"}
            nothing, ours = find(how="nothing", **of), find(how="Collector", **of)
            ratio = (ours or float("nan")) / (nothing or float("nan"))
            text = f"{count} environments, {mode}: {ratio:.2f} of doing nothing, at most 1.15"
            lines.append(report.bar(text, ratio <= 1.15))
    return lines


if __name__ == "__main__":
    report.script(
        title="Collecting",
        packages=("fbuf", "jax", "jaxlib", "gymnasium", "numpy"),
        keys=("environments", "mode", "how", "time"),
    )
