"""TorchRL's DQN on CartPole with TorchRL's replay buffer, and the same program with fbuf's.

    python -m benchmarks.torchrl_dqn            about 4 minutes on one core
    python -m benchmarks.torchrl_dqn --quick    about a minute: one seed, and too short to solve it

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

Environment, transforms, collector, exploration, network, loss and target network are TorchRL's, put
together as in its own DQN for CartPole. The function `train` is the whole program. It is given the
constructor of the buffer, and that is all that differs between the rows of the table:

- torchrl, uniform: `TensorDictReplayBuffer` on `LazyTensorStorage`.
- torchrl, prioritised: `TensorDictPrioritizedReplayBuffer`, where its C++ extension can be loaded.
- fbuf, uniform and prioritised: what `fbuf_adapters.tensordict.from_torchrl` makes of these two.

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

import collections
import pathlib
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
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

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Line

TASK = "CartPole-v1"
PACKAGES = ("fbuf", "jax", "torch", "torchrl", "tensordict", "gymnasium", "numpy")
SEEDS = (0, 1, 2)
ITERATIONS, QUICK_ITERATIONS = 800, 300
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
    from fbuf_adapters.tensordict import from_torchrl

    return from_torchrl(torchrl_uniform(seed))


def fbuf_prioritised(seed: int) -> Any:
    from fbuf_adapters.tensordict import from_torchrl

    return from_torchrl(torchrl_prioritised(seed))


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
        return harness.median(seconds[len(seconds) // 10 :]) * 1e6

    return {
        "best": max(score for _, score in curve),
        "mean": float(np.mean([score for _, score in curve])),
        "curve": curve,
        "us": typical(iteration_seconds),
        "parts": {part: typical(taken) for part, taken in clock.seconds.items()},
        "seconds": seconds,
    }


def measure(task: Task) -> Measured:
    """One training."""
    from benchmarks import peers

    name, seed = task["buffer"], task["seed"]
    try:
        BUFFERS[name](seed)
    except RuntimeError as error:
        return Measured(notes=[f"{name}: {str(error).splitlines()[0]} {peers.why_no_extension()}"])
    found = train(BUFFERS[name], seed=seed, iterations=task["iterations"])
    notes = peers.built_extension() if name.startswith("torchrl, prio") else []
    return Measured([{"buffer": name, "seed": seed, **found}], notes)


# --- the report ----------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """Every buffer and seed, each in a process of its own, in turns."""
    found = []
    names = list(BUFFERS)
    for seed in SEEDS[:1] if quick else SEEDS:
        for name in names:
            iterations = QUICK_ITERATIONS if quick else ITERATIONS
            task = {"buffer": name, "seed": seed, "iterations": iterations}
            found.append({"label": f"{name}, {seed=}", **task})
        names = names[1:] + names[:1]  # nobody always runs behind the same one
    return found


def trained(records: list[Record], name: str) -> list[Record]:
    """The trainings with a buffer."""
    return [r for r in records if r["buffer"] == name]


def tables(records: list[Record]) -> list[str]:
    """One line for each buffer."""
    parts = ("extend", "sample", "update_tensordict_priority", "learn", "collect")
    rows = []
    for name in BUFFERS:
        if of := trained(records, name):
            mean, error = harness.mean_and_error([r["mean"] for r in of])
            rows.append(
                [
                    name,
                    f"{mean:.0f} ± {error:.0f}",
                    " ".join(f"{r['best']:.0f}" for r in of),
                    f"{harness.median([r['us'] for r in of]) / 1e3:.2f}",
                    *(f"{harness.median([r['parts'][part] for r in of]):,.0f}" for part in parts),
                    f"{harness.median([r['seconds'] for r in of]):.0f}",
                ]
            )
    head = ["buffer", "mean return", "best, seed by seed", "ms an iteration"]
    frames = max((r["curve"][-1][0] for r in records), default=0)
    return [
        f"{TASK}, {frames:,} frames: in an iteration {FRAMES} frames and {UPDATES} batches of "
        f"{BATCH_SIZE}.",
        "",
        *report.table([*head, *(f"us, {part}" for part in parts), "s in all"], rows),
    ]


def bars(records: list[Record]) -> list[str]:
    """What the project promises of itself here, and what came out."""
    theirs, their_error = harness.mean_and_error([r["mean"] for r in trained(records, PEER)])
    found = []
    for name in BUFFERS:
        of = trained(records, name)
        if not of:
            continue
        good = sum(r["best"] >= GOOD for r in of)
        text = (
            f"{name}: a best return of {GOOD:.0f} or more with {good} of {len(of)} seeds, all "
            "wanted"
        )
        found.append(report.bar(text, good == len(of)))
        if name != PEER:
            ours, our_error = harness.mean_and_error([r["mean"] for r in of])
            error = (our_error**2 + their_error**2) ** 0.5
            text = (
                f"{name}: a mean return of {ours - theirs:+.0f} ± {error:.0f} beside {PEER}, not "
                "less by more than twice the standard error wanted"
            )
            found.append(report.bar(text, ours >= theirs - 2 * error))
    return found


def plot(records: list[Record], path: pathlib.Path) -> None:
    """Returns against frames: each seed, and the mean of all."""
    lines = []
    for name, color in zip(BUFFERS, ("#d08c00", "#0b6e4f", "#b0413e", "#3b6fb6"), strict=True):
        curves = [r["curve"] for r in trained(records, name)]
        lines += [Line("_", curve, color, "-", 0.3) for curve in curves]
        if curves:
            frames = [frame for frame, _ in curves[0]]
            mean = np.mean([[score for _, score in curve] for curve in curves], axis=0)
            lines.append(Line(name, list(zip(frames, mean, strict=True)), color))
    report.draw(
        path,
        f"{TASK}: TorchRL's DQN, each seed and their mean",
        lines,
        "frames",
        f"mean return of {EPISODES} episodes",
        logarithmic=False,
        level=GOOD,
    )


if __name__ == "__main__":
    report.run(
        report.Report(
            module="benchmarks.torchrl_dqn",
            title="TorchRL's DQN, with TorchRL's buffer and with fbuf's",
            how=__doc__,
            packages=PACKAGES,
            tasks=tasks,
            measure=measure,
            keys=("buffer", "seed"),
            tables=tables,
            bars=bars,
            plot=plot,
            figures=(),
        )
    )
