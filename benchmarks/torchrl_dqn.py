"""TorchRL's DQN on CartPole with TorchRL's replay buffer, and the same program with fbuf's.

    python benchmarks/torchrl_dqn.py            about 7 minutes on one core
    python benchmarks/torchrl_dqn.py --quick    about a minute: one seed, and too short to solve it

It needs fbuf and the packages of `benchmarks/requirements.lock` (`make bench` sees to that), and
writes `results/torchrl_dqn.json`, `torchrl_dqn.md` and `torchrl_dqn.png`.

Environment, transforms, collector, exploration, network, loss and target network are TorchRL's, put
together as in its own DQN for CartPole. The function `train` is the whole program. It is given the
constructor of the buffer, and that is all that differs between the rows of the table:

- torchrl, uniform: `TensorDictReplayBuffer` on `LazyTensorStorage`.
- torchrl, prioritised: `TensorDictPrioritizedReplayBuffer`, where its C++ extension can be loaded.
- fbuf, uniform and prioritised: `fbuf_adapters.tensordict.TensorDictReplayBuffer`, by default and
  with the sampler `Prioritized`.

An iteration collects frames and extends the buffer by them, and then, a few times, samples a batch,
takes a step of the loss and the optimiser, and calls `update_tensordict_priority`, which does
nothing to a uniform buffer. Each training is a process of its own with one thread for PyTorch;
the buffers take turns, seed by seed. Times are medians over the iterations of a training, without
the first tenth and those before the first update, and then over the seeds; those of the parts are
for one call each. The last column is a whole training, with all that is compiled in it, but without
imports and evaluations.

A return is the mean of episodes played greedily, of which none is longer than 500 steps. DQN on
CartPole is not steady: a policy that gets 500 may get 150 a thousand frames later, with any buffer.
So of each training the mean and the best of the evaluations on the way count, each of 20 episodes,
and the buffers are compared by the means over all seeds and their standard errors.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import timing
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from timing import RESULTS, Record, render
from torchrl.collectors import Collector
from torchrl.data import (
    Composite,
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    GymEnv,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

TASK = "CartPole-v1"
PACKAGES = ("fbuf", "jax", "torch", "torchrl", "tensordict", "gymnasium", "numpy")
SEEDS = (0, 1, 2)
ITERATIONS, QUICK_ITERATIONS = 2_000, 500
SPREAD = (2.4, 2.0, 0.21, 2.0)
"""Observations are divided by it, which brings them to the order of 1."""
FRAMES = 8
"""Collected in an iteration."""
UPDATES = 2
"""Batches learned from in an iteration."""
CAPACITY = 100_000
BATCH_SIZE = 128
ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
WARM_UP = 100
"""Iterations before the first update."""
EVALUATIONS = 10
EPISODES = 20
GOOD = 400.0
"""A best return that says it has been learned."""

MakeBuffer = Callable[[int], Any]
"""Makes a replay buffer with TorchRL's methods, from a seed."""


# --- the buffers: all that differs ---------------------------------------------------------------


def torchrl_uniform(seed: int) -> Any:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(seed),
    )


def torchrl_prioritised(seed: int) -> Any:
    return TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA,
        beta=BETA,
        eps=EPS,
        storage=LazyTensorStorage(CAPACITY),
        batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(seed),
    )


def fbuf_uniform(seed: int) -> Any:
    from fbuf_adapters import tensordict

    return tensordict.TensorDictReplayBuffer(CAPACITY, batch_size=BATCH_SIZE, seed=seed)


def fbuf_prioritised(seed: int) -> Any:
    from fbuf_adapters import tensordict

    import fbuf

    sampler = fbuf.Prioritized(alpha=ALPHA, beta=BETA, eps=EPS)
    return tensordict.TensorDictReplayBuffer(
        CAPACITY, sampler=sampler, batch_size=BATCH_SIZE, seed=seed
    )


PEER = "torchrl, uniform"
BUFFERS: dict[str, MakeBuffer] = {
    PEER: torchrl_uniform,
    "fbuf, uniform": fbuf_uniform,
    "torchrl, prioritised": torchrl_prioritised,
    "fbuf, prioritised": fbuf_prioritised,
}


# --- one training --------------------------------------------------------------------------------


def make_env() -> TransformedEnv:
    scale = ObservationNorm(0.0, torch.tensor(SPREAD), ["observation"], standard_normal=True)
    return TransformedEnv(GymEnv(TASK), Compose(RewardSum(), StepCounter(), scale))


def make_network(env: TransformedEnv) -> QValueActor:
    """The action values of what is observed, and the best action."""
    mlp = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=env.action_spec.shape[-1],
        num_cells=[120, 84],
        activation_class=torch.nn.ReLU,
    )
    return QValueActor(mlp, in_keys=["observation"], spec=Composite(action=env.action_spec))


def greedy_return(network: QValueActor, episodes: int, seed: int) -> float:
    """The mean return of whole episodes, played greedily and all at once."""
    env = gymnasium.make_vec(TASK, num_envs=episodes, vectorization_mode="vector_entry_point")
    observation, _ = env.reset(seed=seed)
    playing, returns = np.ones(episodes, bool), np.zeros(episodes)
    with torch.no_grad():
        while playing.any():
            scaled = torch.as_tensor(observation / np.float32(SPREAD))
            seen = TensorDict(observation=scaled, batch_size=[episodes])
            action = network(seen)["action"].argmax(-1)  # of one-hot vectors
            observation, reward, terminated, truncated, _ = env.step(action.numpy())
            returns += playing * reward
            playing &= ~(terminated | truncated)
    env.close()
    return float(returns.mean())


class Clock:
    """Seconds that each part of the program took, call by call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.since = 0.0

    def start(self) -> None:
        """Begin a part."""
        self.since = time.perf_counter()

    def stop(self, part: str) -> None:
        """End a part, and begin the next."""
        now = time.perf_counter()
        self.seconds[part].append(now - self.since)
        self.since = now


def train(make_buffer: MakeBuffer, *, seed: int, iterations: int) -> Record:
    """Learn CartPole with the buffer that `make_buffer` makes."""
    started = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    buffer = make_buffer(seed)
    env = make_env()
    env.set_seed(seed)
    network = make_network(env)
    explore = EGreedyModule(
        env.action_spec, eps_init=1.0, eps_end=0.1, annealing_num_steps=iterations * FRAMES // 2
    )
    loss_module = DQNLoss(network, loss_function="l2", delay_value=True, double_dqn=True)
    loss_module.make_value_estimator(gamma=0.98)
    target = SoftUpdate(loss_module, tau=0.01)
    optimiser = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, iterations - WARM_UP)
    collector = Collector(
        env,
        TensorDictSequential(network, explore),
        frames_per_batch=FRAMES,
        total_frames=iterations * FRAMES,
        auto_register_policy_transforms=False,
    )

    clock, curve, iteration_seconds, evaluating = Clock(), [], [], 0.0
    frames = iter(collector)
    for iteration in range(iterations):
        began = time.perf_counter()
        clock.start()
        data = next(frames)
        explore.step(FRAMES)
        clock.stop("collect")
        buffer.extend(data)
        clock.stop("extend")
        if iteration < WARM_UP:
            continue
        for _ in range(UPDATES):
            batch = buffer.sample()
            clock.stop("sample")
            loss = loss_module(batch)["loss"]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            target.step()
            clock.stop("learn")
            buffer.update_tensordict_priority(batch)
            clock.stop("update_tensordict_priority")
        schedule.step()
        iteration_seconds.append(time.perf_counter() - began)
        if (iteration + 1) % (iterations // EVALUATIONS) == 0:
            began = time.perf_counter()
            curve.append(((iteration + 1) * FRAMES, greedy_return(network, EPISODES, seed)))
            evaluating += time.perf_counter() - began
    seconds = time.perf_counter() - started - evaluating
    collector.shutdown()

    def typical(seconds: list[float]) -> float:
        return timing.median(seconds[len(seconds) // 10 :]) * 1e6

    return {
        "best": max(score for _, score in curve),
        "mean": float(np.mean([score for _, score in curve])),
        "curve": curve,
        "us": typical(iteration_seconds),
        "parts": {part: typical(taken) for part, taken in clock.seconds.items()},
        "seconds": seconds,
    }


def extension_error() -> str:
    """Why TorchRL's C++ extension cannot be loaded, if so."""
    try:
        import torchrl._torchrl  # noqa: F401
    except ImportError as error:
        where, *what = str(error).splitlines()[0].split(": ")
        return ": ".join([pathlib.Path(where).name, *what[:1]])  # then comes a mangled name
    return ""


def work(task: dict[str, Any], out: pathlib.Path) -> None:
    make_buffer = BUFFERS[task["buffer"]]
    try:
        make_buffer(task["seed"])
    except RuntimeError as error:
        found: Record = {"error": str(error).splitlines()[0], "cause": extension_error()}
    else:
        found = train(make_buffer, seed=task["seed"], iterations=task["iterations"])
    out.write_text(json.dumps(found))


# --- the process that starts the others and writes the report ------------------------------------


def run_all(quick: bool) -> list[Record]:
    """Train with every buffer and seed, each in a process of its own, in turns."""
    records: list[Record] = []
    names = list(BUFFERS)
    seeds = SEEDS[:1] if quick else SEEDS
    for seed in seeds:
        for name in names:
            start = time.monotonic()
            iterations = QUICK_ITERATIONS if quick else ITERATIONS
            task = {"buffer": name, "seed": seed, "iterations": iterations}
            try:
                found = timing.in_own_process(__file__, task)
            except RuntimeError as error:
                found = {"error": str(error)}
            records.append({"buffer": name, "seed": seed, **found})
            taken = time.monotonic() - start
            progress = f"[{len(records)}/{len(names) * len(seeds)}] {taken:.0f} s, {name}, {seed=}"
            print(progress, file=sys.stderr, flush=True)
        names = names[1:] + names[:1]  # nobody always runs behind the same one
    return records


def trained(records: list[Record], name: str) -> list[Record]:
    """The trainings with a buffer that came to an end."""
    return [r for r in records if r["buffer"] == name and "best" in r]


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
    return float(np.mean(values)), error


def table(records: list[Record]) -> list[str]:
    """One line for each buffer."""
    parts = ("extend", "sample", "update_tensordict_priority", "learn", "collect")
    rows = []
    for name in BUFFERS:
        of = trained(records, name)
        if not of:
            errors = [r["error"] for r in records if r["buffer"] == name]
            rows.append([f"{name}: {errors[0]}", *["-"] * (4 + len(parts))])
            continue
        mean, error = mean_and_error([r["mean"] for r in of])
        rows.append(
            [
                name,
                f"{mean:.0f} ± {error:.0f}",
                " ".join(f"{r['best']:.0f}" for r in of),
                f"{timing.median([r['us'] for r in of]) / 1e3:.2f}",
                *(f"{timing.median([r['parts'][part] for r in of]):,.0f}" for part in parts),
                f"{timing.median([r['seconds'] for r in of]):.0f}",
            ]
        )
    head = ["buffer", "mean return", "best, seed by seed", "ms an iteration"]
    return render([*head, *(f"us, {part}" for part in parts), "s in all"], rows)


def bars(records: list[Record]) -> list[str]:
    """What the project promises of itself here, and what came out."""
    theirs, their_error = mean_and_error([r["mean"] for r in trained(records, PEER)])
    found = []
    for name in BUFFERS:
        of = trained(records, name)
        if not of:
            continue
        good = sum(r["best"] >= GOOD for r in of)
        verdict = "held" if good == len(of) else "MISSED"
        found.append(
            f"- {name}: a best return of {GOOD:.0f} or more with {good} of {len(of)} seeds, all "
            f"wanted: {verdict}"
        )
        if name != PEER:
            ours, our_error = mean_and_error([r["mean"] for r in of])
            error = (our_error**2 + their_error**2) ** 0.5
            verdict = "held" if ours >= theirs - 2 * error else "MISSED"
            found.append(
                f"- {name}: a mean return of {ours - theirs:+.0f} ± {error:.0f} beside {PEER}, not "
                f"less by more than twice the standard error wanted: {verdict}"
            )
    return found


def missing(records: list[Record]) -> list[str]:
    """What did not come to an end, and why."""
    lines = []
    for name in BUFFERS:
        for r in records:
            if r["buffer"] == name and "error" in r:
                lines.append(": ".join(["- " + name, *filter(None, [r["error"], r.get("cause")])]))
    return list(dict.fromkeys(lines))


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Returns against frames: each seed, and the mean of all."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axis = plt.subplots(figsize=(7.5, 4.5))
    colors = ("#d08c00", "#0b6e4f", "#b0413e", "#3b6fb6")
    for name, color in zip(BUFFERS, colors, strict=True):
        curves = [r["curve"] for r in trained(records, name)]
        for curve in curves:
            axis.plot(*zip(*curve, strict=True), color=color, alpha=0.3, linewidth=0.8)
        if curves:
            frames = [frame for frame, _ in curves[0]]
            mean = np.mean([[score for _, score in curve] for curve in curves], axis=0)
            axis.plot(frames, mean, color=color, marker="o", markersize=4, label=name)
    axis.axhline(GOOD, color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="frames", ylabel=f"mean return of {EPISODES} episodes", ylim=(0, 520))
    axis.legend(frameon=False, fontsize=9)
    axis.set_title(f"{TASK}: TorchRL's DQN, each seed and their mean")
    picture.tight_layout()
    picture.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short training of each")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker), options.out)
        return

    # What else runs on these cores makes all figures larger, and not all alike.
    load = f"{os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else "unknown"
    begun = time.monotonic()
    records = run_all(options.quick)
    about = timing.about(*PACKAGES)
    about["load"] = load
    about["run"] = f"{'quick' if options.quick else 'full'}, {time.monotonic() - begun:.0f} s"
    iterations = QUICK_ITERATIONS if options.quick else ITERATIONS
    text = [
        "# TorchRL's DQN, with TorchRL's buffer and with fbuf's",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        f"{TASK}, {iterations * FRAMES:,} frames: {iterations:,} iterations, each of {FRAMES} "
        f"frames and {UPDATES} batches of {BATCH_SIZE}.",
        "",
        *table(records),
        "",
        "## Bars",
        "",
        *(["a quick run is too short for them"] if options.quick else bars(records)),
        "",
        "## What is missing, and why",
        "",
        *(missing(records) or ["nothing"]),
        "",
        "## How it was measured",
        "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(),
    ]
    timing.write_report("torchrl_dqn", options.results, about, records, text)
    plot(records, options.results / "torchrl_dqn.png")


if __name__ == "__main__":
    main()
