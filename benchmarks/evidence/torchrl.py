"""Run a TorchRL program with several buffers, seed by seed, and report: for all such scripts."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torchrl.data import (
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import RandomSampler

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Line

PACKAGES = ("fbuf", "jax", "torch", "torchrl", "tensordict", "gymnasium", "numpy")
SEEDS = (0, 1, 2)
EVALUATIONS = 10
EPISODES = 20
"""Played in an evaluation."""
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
COLORS = ("#d08c00", "#0b6e4f", "#b0413e", "#3b6fb6")

MEASURED = """
Each training is a process of its own with one thread for PyTorch; the buffers take turns, seed by
seed. Times are medians over the iterations of a training, and then over the seeds. The first tenth,
and all iterations before the first update, do not count. Times of the parts are for one call each.
The last column is a whole training, with all that is compiled in it, but without imports and
evaluations.

A return is the mean of 20 episodes, played without noise. Now and then a policy is worse than one
before it, with any buffer. So the mean and the best of the evaluations on the way count for a
training. The buffers are compared by the means over all seeds and their standard errors.
"""
"""The end of the section on how it was measured, in all reports."""

MakeBuffer = Callable[[int], Any]
"""Makes a replay buffer with TorchRL's methods, from a seed."""


@dataclasses.dataclass(frozen=True)
class Script:
    """A TorchRL program, and the buffers that it is run with.

    Attributes:
        module: Where it is: `benchmarks.evidence.torchrl_dqn`.
        how: Its docstring.
        algorithm: The name of the algorithm: "TorchRL's DQN".
        env: The name of the environment in Gymnasium.
        buffers: The function that makes each buffer. With the other buffers the program has to
            learn as well as with the first one.
        train: The program: `train(make_buffer, seed=, iterations=)`. It returns what
            `Clock.record` returns, or more.
        iterations: The iterations of a training.
        quick_iterations: The iterations of a training that only shows that the script runs.
        iteration: The work of an iteration, in words.
        parts: The names of what is timed for each call, in the table's order.
        good: A best return that says it has been learned.
        more_bars: Returns further promises for the trainings with a buffer.
    """

    module: str
    how: str
    algorithm: str
    env: str
    buffers: Mapping[str, MakeBuffer]
    train: Callable[..., Record]
    iterations: int
    quick_iterations: int
    iteration: str
    parts: Sequence[str]
    good: float
    more_bars: Callable[[str, list[Record]], list[str]] | None = None

    @property
    def peer(self) -> str:
        """The buffer that the others have to learn as well as."""
        return next(iter(self.buffers))


# --- the buffers: all that differs ---------------------------------------------------------------


def ours(theirs: MakeBuffer) -> MakeBuffer:
    """Make our buffer of TorchRL's: the line that is added to a program."""

    def make_buffer(seed: int) -> Any:
        from fbuf_adapters.tensordict import from_torchrl

        return from_torchrl(theirs(seed))

    return make_buffer


def buffers_of_steps(capacity: int, batch_size: int) -> dict[str, MakeBuffer]:
    """Buffers that draw single steps: TorchRL's and ours, uniform and prioritised."""

    def uniform(seed: int) -> Any:
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=RandomSampler(),
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(seed),
        )

    def prioritised(seed: int) -> Any:
        return TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA,
            beta=BETA,
            eps=EPS,
            storage=LazyTensorStorage(capacity),
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(seed),
        )

    return {
        "torchrl, uniform": uniform,
        "fbuf, uniform": ours(uniform),
        "torchrl, prioritised": prioritised,
        "fbuf, prioritised": ours(prioritised),
    }


# --- in a training -------------------------------------------------------------------------------


class Clock:
    """Seconds of a training, of its iterations, and of each part of them, call by call."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []
        self.parts: dict[str, list[float]] = collections.defaultdict(list)
        self.iterations: list[float] = []
        self.evaluating = 0.0
        self.began = self.began_iteration = self.since = time.perf_counter()

    def begin_iteration(self) -> None:
        """Begin an iteration, and its first part."""
        self.began_iteration = self.since = time.perf_counter()

    def stop(self, part: str) -> None:
        """End a part, and begin the next."""
        now = time.perf_counter()
        self.parts[part].append(now - self.since)
        self.since = now

    def end_iteration(self) -> None:
        """End an iteration; without it, the iteration does not count."""
        self.iterations.append(time.perf_counter() - self.began_iteration)

    def evaluate(self, frames: int, mean_return: Callable[[], float]) -> None:
        """Find the return after so many frames; the time it takes does not count."""
        began = time.perf_counter()
        self.curve.append((frames, mean_return()))
        self.evaluating += time.perf_counter() - began

    def record(self) -> Record:
        """Return all figures, at the end of the training."""
        seconds = time.perf_counter() - self.began - self.evaluating
        scores = [score for _, score in self.curve]
        return {
            "best": max(scores),
            "mean": float(np.mean(scores)),
            "curve": self.curve,
            "us": typical(self.iterations),
            "parts": {part: typical(taken) for part, taken in self.parts.items()},
            "seconds": seconds,
        }


def typical(seconds: list[float]) -> float:
    """Microseconds: the median without the first tenth."""
    return harness.median(seconds[len(seconds) // 10 :]) * 1e6


def due(iteration: int, iterations: int) -> bool:
    """Whether to evaluate after this iteration."""
    return (iteration + 1) % (iterations // EVALUATIONS) == 0


def mean_return(env: str, act: Callable[[np.ndarray], np.ndarray], seed: int) -> float:
    """The mean return of whole episodes, played all at once."""
    envs = gymnasium.make_vec(env, num_envs=EPISODES)
    observation, _ = envs.reset(seed=seed)
    playing, returns = np.ones(EPISODES, bool), np.zeros(EPISODES)
    while playing.any():
        observation, reward, terminated, truncated, _ = envs.step(act(observation))
        returns += playing * reward
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


# --- the report ----------------------------------------------------------------------------------


def run(script: Script) -> None:
    """Be the script: train with every buffer and seed, and write the report."""
    report.run(
        report.Report(
            module=script.module,
            title=f"{script.algorithm}, with TorchRL's buffer and with fbuf's",
            how=script.how + MEASURED,
            packages=PACKAGES,
            tasks=lambda quick: tasks(script, quick),
            measure=lambda task: measure(script, task),
            keys=("buffer", "seed"),
            tables=lambda records: tables(script, records),
            bars=lambda records: bars(script, records),
            plot=lambda records, path: plot(script, records, path),
            figures=(),
        )
    )


def tasks(script: Script, quick: bool) -> list[Task]:
    """Every buffer and seed, each in a process of its own, in turns."""
    found = []
    names = list(script.buffers)
    for seed in SEEDS[:1] if quick else SEEDS:
        for name in names:
            iterations = script.quick_iterations if quick else script.iterations
            task = {"buffer": name, "seed": seed, "iterations": iterations}
            found.append({"label": f"{name}, {seed=}", **task})
        names = names[1:] + names[:1]  # nobody always runs behind the same one
    return found


def measure(script: Script, task: Task) -> Measured:
    """One training."""
    from benchmarks import peers

    name, seed = task["buffer"], task["seed"]
    try:
        script.buffers[name](seed)
    except RuntimeError as error:
        return Measured(notes=[f"{name}: {str(error).splitlines()[0]} {peers.why_no_extension()}"])
    found = script.train(script.buffers[name], seed=seed, iterations=task["iterations"])
    notes = peers.built_extension() if name.startswith("torchrl, prio") else []
    return Measured([{"buffer": name, "seed": seed, **found}], notes)


def trained(records: list[Record], name: str) -> list[Record]:
    """The trainings with a buffer."""
    return [r for r in records if r["buffer"] == name]


def tables(script: Script, records: list[Record]) -> list[str]:
    """One line for each buffer."""
    rows = []
    for name in script.buffers:
        if of := trained(records, name):
            mean, error = harness.mean_and_error([r["mean"] for r in of])
            parts = [harness.median([r["parts"][part] for r in of]) for part in script.parts]
            rows.append(
                [
                    name,
                    f"{mean:.0f} ± {error:.0f}",
                    " ".join(f"{r['best']:.0f}" for r in of),
                    report.number(harness.median([r["us"] for r in of]) / 1e3),
                    *(f"{part:,.0f}" for part in parts),
                    f"{harness.median([r['seconds'] for r in of]):.0f}",
                ]
            )
    head = ["buffer", "mean return", "best, seed by seed", "ms an iteration"]
    frames = max((r["curve"][-1][0] for r in records), default=0)
    return [
        f"{script.env}, {frames:,} frames: in an iteration {script.iteration}.",
        "",
        *report.table([*head, *(f"us, {part}" for part in script.parts), "s in all"], rows),
    ]


def bars(script: Script, records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    peer, good = script.peer, script.good
    theirs, their_error = harness.mean_and_error([r["mean"] for r in trained(records, peer)])
    found = []
    for name in script.buffers:
        of = trained(records, name)
        if not of:
            continue
        learned = sum(r["best"] >= good for r in of)
        text = (
            f"{name}: a best return of {good:.0f} or more with {learned} of {len(of)} seeds, all "
            "wanted"
        )
        found.append(report.bar(text, learned == len(of)))
        if name != peer:
            ours, our_error = harness.mean_and_error([r["mean"] for r in of])
            error = (our_error**2 + their_error**2) ** 0.5
            text = (
                f"{name}: a mean return of {ours - theirs:+.0f} ± {error:.0f} beside {peer}, not "
                "less by more than twice the standard error wanted"
            )
            found.append(report.bar(text, ours >= theirs - 2 * error))
        if script.more_bars:
            found += script.more_bars(name, of)
    return found


def plot(script: Script, records: list[Record], path: pathlib.Path) -> None:
    """Returns against frames: each seed, and the mean of all."""
    lines = []
    for name, color in zip(script.buffers, COLORS, strict=False):
        curves = [r["curve"] for r in trained(records, name)]
        lines += [Line("_", curve, color, "-", 0.3) for curve in curves]
        if curves:
            frames = [frame for frame, _ in curves[0]]
            mean = np.mean([[score for _, score in curve] for curve in curves], axis=0)
            lines.append(Line(name, list(zip(frames, mean, strict=True)), color))
    report.draw(
        path,
        [
            report.Panel(
                f"{script.env}: {script.algorithm}, each seed and their mean", lines, "frames"
            )
        ],
        f"mean return of {EPISODES} episodes",
        logarithmic=False,
        level=script.good,
    )
