"""IMPALA in PyTorch: actors in processes of their own run on while the learner reads a queue.

    python examples/impala_torch.py --help

Two processes step four environments each, with a copy of the policy in NumPy. They wait for nobody
while there is room. One round of the learner:

1. `collector.drain` adds what has come to a buffer with `sampler=fbuf.Fifo()`, a queue.
2. `fbuf.pop` reads a segment of each environment that has a whole one: every row once, in the order
   of time. Each row comes with the observation that its step led to, also at the end of an episode
   (`next_of`). So truncated episodes are bootstrapped, too, and segments need not overlap.
3. PyTorch learns from the segments, which an older policy has made. `fbuf.targets.vtrace` corrects
   for that: rows have the version of their policy, and how likely it found its action.
4. `collector.publish` hands the new weights to the processes. Each takes the newest before its next
   chunk.

How old the policy of a row is when it is learned from is printed in the end, in updates.

Each process starts a new Python, which imports this file. So the file does nothing but under
`if __name__ == "__main__":`. Packages for the learner alone are imported there: PyTorch and JAX
would cost each process seconds and hundreds of megabytes.

Needs fbuf[torch,gymnasium], matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

if __name__ == "__main__":
    import matplotlib
    import torch
    from fbuf_adapters.gymnasium import ProcessCollector
    from fbuf_adapters.pytorch import from_torch, to_torch
    from torch import nn
    from tqdm import tqdm

    import fbuf

ENV = "CartPole-v1"

PROCESSES, ENVS_PER_PROCESS = 2, 4
NUM_ENVS = PROCESSES * ENVS_PER_PROCESS
SEGMENT = 32  # steps of an environment that are learned from at once
ROOM = 8 * SEGMENT  # for each environment in the queue: far more than ever waits
HIDDEN = 64
SCALE = (1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2)  # brings what is observed to the order of 1
GAMMA = 0.99
REWARD_SCALE = 0.05  # and with it the values, which are sums of up to 100 rewards
ENTROPY = 0.003
LEARNING_RATE = 2e-3  # falls to 0 over the run

STEPS, QUICK_STEPS = 800_000, 60_000
EVALUATIONS = 10  # on the way, for the learning curve
SOLVED = 400.0
QUICK_BAR = 60.0  # of the last episodes of training; those of a new policy have about 20


# ---- in the processes: the policy, in NumPy ----------------------------------------------------


class Policy:
    """Draws actions, and says how likely they were."""

    def __init__(self, weights: list[Any]) -> None:
        self.load(weights)

    def seed(self, number: int) -> None:
        """Draw other numbers than the copies of this policy in other processes."""
        self.random = np.random.default_rng(number)

    def load(self, weights: list[Any]) -> None:
        """Act with these weights from now on."""
        self.layers = [np.asarray(weight) for weight in weights]

    def __call__(self, observation: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Actions `[num_envs]`, and one more field for their rows."""
        logits = self._forward(observation)
        action = (logits + self.random.gumbel(size=logits.shape)).argmax(1)
        log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return action, {"log_prob": np.take_along_axis(log_probs, action[:, None], 1)[:, 0]}

    def best(self, observation: np.ndarray) -> np.ndarray:
        """The likeliest actions."""
        return self._forward(observation).argmax(1)

    def _forward(self, observation: np.ndarray) -> np.ndarray:
        x = observation * np.array(SCALE, np.float32)
        *hidden, (weight, bias) = zip(self.layers[::2], self.layers[1::2], strict=True)
        for inner_weight, inner_bias in hidden:
            x = np.tanh(x @ inner_weight.T + inner_bias)
        return x @ weight.T + bias


# ---- in the main process: the learner, in PyTorch ----------------------------------------------


class Learner:
    """Actor and critic, with V-trace."""

    def __init__(self) -> None:
        self.policy = network(len(SCALE), 2, last_scale=0.01)
        self.critic = network(len(SCALE), 1, last_scale=1.0)
        self.scale = torch.tensor(SCALE)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, eps=1e-5, fused=True)

    def weights(self) -> list[torch.Tensor]:
        """Return the weights that the policy acts with."""
        return list(self.policy.parameters())

    def learn(self, segments: fbuf.Rollout, learning_rate: float) -> None:
        """Learn from segments `[num_envs, SEGMENT]`, or from those of them that are there."""
        batch = to_torch(segments)
        rows, there = batch.data.item, batch.mask
        log_probs = self.policy(rows["observation"] * self.scale).log_softmax(-1)
        log_prob = log_probs.gather(-1, rows["action"].long().unsqueeze(-1)).squeeze(-1)
        value = self._value(rows["observation"])
        with torch.no_grad():
            following = self._value(batch.data.next_observation)
            found = v_trace(segments, value, following, log_prob)
            known = found.advantage[there]
            advantage = (found.advantage - known.mean()) / (known.std() + 1e-8)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        error = value - found.target
        loss = -advantage * log_prob - ENTROPY * entropy + 0.5 * error.square()
        self.optimiser.param_groups[0]["lr"] = learning_rate
        self.optimiser.zero_grad()
        loss[there].mean().backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimiser.step()

    def _value(self, observation: torch.Tensor) -> torch.Tensor:
        return self.critic(observation * self.scale).squeeze(-1)


def v_trace(
    segments: fbuf.Rollout, value: torch.Tensor, next_value: torch.Tensor, log_prob: torch.Tensor
) -> fbuf.targets.Advantages:
    """Return the targets of the values, and the advantages of the actions, as tensors."""
    given = {"value": value, "next_value": next_value, "log_prob": log_prob}
    found = fbuf.targets.vtrace(
        segments,
        REWARD_SCALE * segments.data.item["reward"],
        **from_torch({name: tensor.detach() for name, tensor in given.items()}),
        behavior_log_prob=segments.data.item["log_prob"],
        gamma=GAMMA,
    )
    return to_torch(found)


def network(inputs: int, outputs: int, last_scale: float) -> nn.Sequential:
    """Two hidden layers. With a small last one, a policy has no opinion at first."""
    layers = [nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, last_scale), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def evaluate(act: Callable[[np.ndarray], np.ndarray], episodes: int, seed: int) -> float:
    """The mean return of whole episodes."""
    envs = gymnasium.make_vec(ENV, episodes, vectorization_mode="sync")
    observation, _ = envs.reset(seed=seed)
    playing, total = np.ones(episodes, bool), np.zeros(episodes)
    while playing.any():
        observation, reward, terminated, truncated, _ = envs.step(act(observation))
        total += playing * reward
        playing &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def train(steps: int, seed: int) -> tuple[float, float, list[tuple[int, float]]]:
    """Train and report.

    Returns the mean return of the final evaluation, that of the last hundred episodes of training,
    which explore, and the learning curve.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    learner, curve, ages = Learner(), [], []
    # On the learner's memory: this copy always acts with the newest weights.
    policy = Policy([weight.detach().numpy() for weight in learner.weights()])
    policy.seed(seed)
    progress = tqdm(total=steps, unit=" steps", mininterval=0.5, disable=None)

    def note(done: int) -> None:
        # The likeliest actions of a new policy may happen to be good ones. Those it draws are not.
        drawn = lambda observation: policy(observation)[0]
        curve.append((done, evaluate(drawn, 20, seed=10**6 + done)))
        progress.write(f"{done:>9,} steps   return {curve[-1][1]:7.1f}")

    note(0)
    with ProcessCollector(
        lambda: gymnasium.make(ENV),
        policy,
        processes=PROCESSES,
        envs_per_process=ENVS_PER_PROCESS,
        chunk=SEGMENT,
        seed=seed * NUM_ENVS,
        mode="async",
        weights=learner.weights(),
    ) as collector:
        buffer = fbuf.init(
            {**collector.item, "version": np.int32(0)},
            ROOM * NUM_ENVS,
            sampler=fbuf.Fifo(),
            next_of="observation",
            max_ends=ROOM * NUM_ENVS // 8,  # no episode of this task is shorter
            **collector.options,
        )
        begun, learned, version = time.perf_counter(), 0, 0
        while learned < steps:
            buffer = collector.drain(buffer, at_least=SEGMENT)
            while bool((whole := fbuf.unread(buffer) >= SEGMENT).any()):
                buffer, segments = fbuf.pop(buffer, SEGMENT, mask=whole, view=fbuf.Transition())
                versions, there = to_torch((segments.data.item["version"], segments.mask))
                ages.append(version - versions[there])
                left = max(1 - learned / steps, 0.0)
                learner.learn(segments, LEARNING_RATE * left)
                version = collector.publish(learner.weights())
                learned += len(ages[-1])
                progress.update(len(ages[-1]))
            if learned * EVALUATIONS >= steps * len(curve):
                fbuf.raise_on_fault(buffer)
                note(learned)
        stats = collector.stats()
    progress.close()
    ended = time.perf_counter()
    final = evaluate(policy.best, 100, seed=10**9)
    age = torch.cat(ages).float()
    print(f"\nevaluation return   {final:.1f}, the mean of 100 episodes without exploring")
    print(f"training return     {stats['mean_return']:.1f}, the mean of the last 100 episodes")
    print(f"age of the policy   {age.mean():.1f} updates on average, {age.max():.0f} at most")
    print(f"updates             {version:,}")
    print(f"environment steps   {learned:,}: {learned / (ended - begun):,.0f} a second")
    print(f"wall time           {ended - started:.0f} s, of which {begun - started:.0f} s to start")
    waited = stats["environments_waited"] / PROCESSES
    print(f"waiting             learner {stats['learner_waited']:.0f} s, a process {waited:.0f} s")
    return final, stats["mean_return"], curve


def plot(curve: list[tuple[int, float]], path: pathlib.Path) -> None:
    """Save the learning curve."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    steps, returns = zip(*curve, strict=True)
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.plot([step / 1000 for step in steps], returns, marker="o", markersize=4)
    axes.set(
        xlabel="environment steps (thousands)",
        ylabel="mean return of 20 episodes, exploring",
        xlim=(0, None),
        ylim=(0, 520),
        title=f"{ENV}: actors in processes, IMPALA in PyTorch",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = argparse.ArgumentParser(
        description="IMPALA on CartPole-v1: actors in processes of their own, a queue in JAX, the "
        "learner in PyTorch. At the end it plays 100 episodes, and says how old the policies were "
        "that it learned from. Exits with an error if it did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the environments and the networks; what processes do meanwhile is up to chance",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help=f"environment steps in all. The mean return must then be {SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: "
        f"{QUICK_STEPS} steps, and a mean return of {QUICK_BAR:.0f} in the last 100 episodes of "
        "training will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/impala_torch.png",
        help="where the picture of the learning curve goes",
    )
    options = parser.parse_args()
    if options.steps < 10 * NUM_ENVS * SEGMENT:
        parser.error(f"--steps must be at least {10 * NUM_ENVS * SEGMENT}")
    final, exploring, curve = train(QUICK_STEPS if options.quick else options.steps, options.seed)
    plot(curve, options.plot)
    reached, bar = (exploring, QUICK_BAR) if options.quick else (final, SOLVED)
    if reached < bar:
        sys.exit(f"failed: a mean return of {reached:.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
