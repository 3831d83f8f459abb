"""Agents of Stable-Baselines3 with its own buffer and with fbuf's: do they learn alike?

    python -m benchmarks.evidence.sb3_learning            about 25 minutes on 2 cores
    python -m benchmarks.evidence.sb3_learning --quick    about 2 minutes: too short to learn

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

Each training is a process of its own with one thread for PyTorch. `replay_buffer_class` is all that
differs between the rows of a table, and for the prioritised agents the name of the class. A return
is the mean over the last 20 episodes of the training, with all its exploration. The mean return is
the mean of that curve, and "last" its end. The best return on 8 bits is -3: goals are 4 bits away
in the mean, and the last step costs nothing. The buffers are compared by means over five seeds and
their standard errors.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.her import HerReplayBuffer

from benchmarks import harness, report
from benchmarks.evidence.exchange_rounds import Table
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Line

SEEDS = range(5)
POINTS = 20
THEIRS, OURS, PRIORITISED = "Stable-Baselines3", "fbuf", "fbuf, prioritised"
COLORS = {THEIRS: "#d08c00", OURS: "#0b6e4f", PRIORITISED: "#3b6fb6"}
SMALL = {"policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu"}
TASKS: dict[str, dict[str, Any]] = {
    "DQN on CartPole": {
        "kind": DQN,
        "env": "CartPole-v1",
        "steps": 40_000,
        "options": {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
            "learning_starts": 1000, "target_update_interval": 10, "train_freq": 256,
            "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
        },
    },
    "SAC on Pendulum": {
        "kind": SAC,
        "env": "Pendulum-v1",
        "steps": 8000,
        "options": {"learning_rate": 1e-3, "batch_size": 128, "buffer_size": 100_000},
    },
    "TD3 on Pendulum": {
        "kind": TD3,
        "env": "Pendulum-v1",
        "steps": 12_000,
        "options": {"learning_rate": 1e-3, "batch_size": 128, "buffer_size": 100_000},
    },
    "HER on 8 bits": {
        "kind": DQN,
        "env": lambda: BitFlippingEnv(n_bits=8, continuous=False),
        "steps": 4000,
        "options": {
            "learning_rate": 2e-3, "train_freq": 1, "learning_starts": 100, "batch_size": 64,
            "exploration_final_eps": 0.02, "target_update_interval": 100, "buffer_size": 100_000,
        },
    },
}  # fmt: skip
"""Arguments are those of the zoo of Stable-Baselines3, with fewer steps, or of its tests."""


class Curve(BaseCallback):
    """Notes the mean return of the last 20 episodes, so many times in a training."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.due, self.curve, self.returns = steps // POINTS, [], []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        if self.num_timesteps % self.due == 0 and self.returns:
            self.curve.append((self.num_timesteps, float(np.mean(self.returns[-20:]))))
        return True


def train(name: str, buffer: str, seed: int, steps: int) -> Record:
    """Train one agent."""
    from fbuf_adapters import sb3

    torch.set_num_threads(1)
    task = TASKS[name]
    kind, options = task["kind"], dict(task["options"])
    goals = name.startswith("HER")
    if buffer == THEIRS:
        options["replay_buffer_class"] = HerReplayBuffer if goals else None
    else:
        options["replay_buffer_class"] = sb3.HerReplayBuffer if goals else sb3.ReplayBuffer
    if buffer == PRIORITISED:
        kind = getattr(sb3, f"Prioritized{kind.__name__}")
    policy = "MultiInputPolicy" if goals else "MlpPolicy"
    model = kind(policy, make_vec_env(task["env"], 1, seed=seed), seed=seed, **SMALL, **options)
    curve = Curve(steps)
    model.learn(steps, callback=curve)
    scores = [score for _, score in curve.curve]
    return {
        "curve": curve.curve,
        "mean": float(np.mean(scores)),
        "last": scores[-1],
    }


def measure(task: Task) -> Measured:
    """Do one training."""
    key = {name: task[name] for name in ("task", "buffer", "seed")}
    return Measured([key | train(key["task"], key["buffer"], key["seed"], task["steps"])])


def tasks(quick: bool) -> list[Task]:
    """Return every task, buffer and seed, in turns."""
    found = []
    for seed in SEEDS if not quick else [0]:
        for name, task in TASKS.items():
            steps = task["steps"] // (10 if quick else 1)
            buffers = (THEIRS, OURS, PRIORITISED) if name.startswith("DQN") else (THEIRS, OURS)
            for buffer in buffers:
                label = f"{name}, {buffer}, {seed=}"
                key = {"task": name, "buffer": buffer, "seed": seed, "steps": steps}
                found.append({"label": label, **key})
    return found


def trained(records: list[Record], name: str, buffer: str) -> list[Record]:
    """The trainings of a task with a buffer."""
    return [r for r in records if (r["task"], r["buffer"]) == (name, buffer)]


def return_table(records: list[Record]) -> Table:
    """One line for each task and buffer."""
    rows = []
    for name in TASKS:
        for buffer in COLORS:
            if of := trained(records, name, buffer):
                mean, error = harness.mean_and_error([r["mean"] for r in of])
                last = " ".join(f"{r['last']:.3g}" for r in of)
                rows.append([name, buffer, f"{mean:.3g} ± {error:.2g}", last])
    return ["agent", "buffer", "mean return", "last, seed by seed"], rows


def tables(records: list[Record]) -> list[str]:
    """The table, as lines of Markdown."""
    return report.section("Returns", *return_table(records))


def bars(records: list[Record]) -> list[str]:
    """Return whether the agents learn alike."""
    found = []
    for name in TASKS:
        theirs, ours = (
            harness.mean_and_error([r["mean"] for r in trained(records, name, buffer)])
            for buffer in (THEIRS, OURS)
        )
        error = (ours[1] ** 2 + theirs[1] ** 2) ** 0.5
        text = (
            f"{name}: a mean return of {ours[0] - theirs[0]:+.3g} ± {error:.2g} beside {THEIRS}, "
            "not less by more than twice the standard error wanted"
        )
        found.append(report.bar(text, ours[0] >= theirs[0] - 2 * error))
    return found


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Draw returns against steps, the mean over the seeds."""
    panels = []
    for name in TASKS:
        lines = []
        for buffer, color in COLORS.items():
            curves = [r["curve"] for r in trained(records, name, buffer)]
            lines += [Line("_", curve, color, "-", 0.25) for curve in curves]
            if curves:
                length = min(map(len, curves))
                steps = [step for step, _ in curves[0]][-length:]
                mean = np.mean([[s for _, s in curve[-length:]] for curve in curves], axis=0)
                lines.append(Line(buffer, list(zip(steps, mean, strict=True)), color))
        panels.append(report.Panel(name, lines, "steps"))
    report.draw(path, panels, "mean return of 20 episodes", logarithmic=False, one_scale=False)


if __name__ == "__main__":
    report.script(
        title="Agents of Stable-Baselines3 with its buffer and with fbuf's",
        packages=("fbuf", "jax", "torch", "stable_baselines3", "gymnasium", "numpy"),
        keys=("task", "buffer", "seed"),
        figures=(),
        is_timed=False,
    )
