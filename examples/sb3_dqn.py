"""DQN of Stable-Baselines3 on CartPole, with fbuf's buffer: uniform, and with priorities.

    python examples/sb3_dqn.py --help

The two agents differ in one class: `DQN` with `replay_buffer_class=ReplayBuffer`, and
`PrioritizedDQN`. Both store each observation once. The picture has both learning curves: the mean
over the last 20 episodes, each seed and the mean of all seeds.

Needs fbuf[sb3] and matplotlib.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import matplotlib
import numpy as np
import torch
from fbuf_adapters.sb3 import PrioritizedDQN, ReplayBuffer
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

matplotlib.use("Agg")
from matplotlib import pyplot

NUM_ENVS = 4
AGENTS = {
    "uniform": (DQN, {"replay_buffer_class": ReplayBuffer}),
    "prioritised": (PrioritizedDQN, {}),
}
COLORS = {"uniform": "#0b6e4f", "prioritised": "#3b6fb6"}
OPTIONS = {
    "learning_rate": 1e-3,
    "buffer_size": 100_000,
    "batch_size": 64,
    "learning_starts": 1000,
    "train_freq": 64,
    "gradient_steps": 64,
    "target_update_interval": 40,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
    "device": "cpu",
}


class Curve(BaseCallback):
    """Notes the mean return of the last 20 episodes at every end of an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []
        self.steps: list[int] = []
        self.means: list[float] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
                self.steps.append(self.num_timesteps)
                self.means.append(float(np.mean(self.returns[-20:])))
        return True


def train(name: str, seed: int, steps: int) -> Curve:
    """Train one agent."""
    kind, options = AGENTS[name]
    envs = make_vec_env("CartPole-v1", NUM_ENVS, seed=seed)
    model = kind("MlpPolicy", envs, seed=seed, **options, **OPTIONS)
    curve = Curve()
    model.learn(steps, callback=curve)
    return curve


def draw(curves: dict[str, list[Curve]], steps: int, path: pathlib.Path) -> None:
    """Draw all curves, and the mean of each agent's."""
    _, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    at = np.linspace(steps / 50, steps, 50)
    for name, of in curves.items():
        each = [np.interp(at, curve.steps, curve.means) for curve in of]
        for values in each:
            axes.plot(at, values, color=COLORS[name], alpha=0.25, linewidth=1)
        axes.plot(at, np.mean(each, axis=0), color=COLORS[name], label=name, linewidth=2)
    axes.set(xlabel="steps", ylabel="mean return of 20 episodes", title="DQN on CartPole")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000, help="of all environments")
    parser.add_argument("--seeds", type=int, default=3, help="how many agents of each kind")
    parser.add_argument("--quick", action="store_true", help="a run too short to learn")
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("outputs/sb3_dqn.png"))
    options: Any = parser.parse_args()
    steps, seeds = (4000, 1) if options.quick else (options.steps, options.seeds)
    torch.set_num_threads(1)
    curves: dict[str, list[Curve]] = {name: [] for name in AGENTS}
    for seed in range(seeds):
        for name in AGENTS:
            curve = train(name, seed, steps)
            curves[name].append(curve)
            print(f"seed {seed}, {name}: a mean return of {curve.means[-1]:.0f}", flush=True)
    draw(curves, steps, options.picture)
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
