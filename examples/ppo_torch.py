"""PPO in PyTorch: environments of Gymnasium in processes of their own, the rollout in JAX.

    python examples/ppo_torch.py --help

Two processes step eight environments each, with a copy of the policy in NumPy. One iteration:

1. `collector.collect` has all environments make some steps with the newest weights, and adds them
   to the buffer in one go.
2. `fbuf.rollout` reads them in the order of time. Each row comes with the observation that its step
   led to, also at the end of an episode. PyTorch values both. `fbuf.targets.gae` bootstraps
   truncated episodes and the last rows, and `fbuf.write` puts advantages next to their rows.
3. `fbuf.Shuffled` draws minibatches, in each epoch every row once, and PyTorch learns from them.
   `to_torch` brings all this from JAX without a copy.
4. `fbuf.clear` empties the buffer, and `collector.publish` hands the processes the new weights.

Each process starts a new Python, which imports this file. So the file does nothing but under
`if __name__ == "__main__":`. Packages for the learner alone are imported there: PyTorch and JAX
would cost each process seconds and hundreds of megabytes.

Needs fbuf[torch,gymnasium], matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import sys
import time
from typing import Any

import gymnasium
import numpy as np

if __name__ == "__main__":
    import jax
    import matplotlib
    import torch
    from fbuf_adapters.gymnasium import ProcessCollector
    from fbuf_adapters.pytorch import from_torch, to_torch
    from torch import nn
    from tqdm import tqdm

    import fbuf

PROCESSES, ENVS_PER_PROCESS = 2, 8
NUM_ENVS = PROCESSES * ENVS_PER_PROCESS
HIDDEN = 64
DECAY = 0.95  # of generalised advantages
CLIP = 0.2  # how far a policy may move from the one that acted
EVALUATIONS = 10  # on the way, for the learning curve


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, and what learns it."""

    scale: tuple[float, ...]  # brings what is observed to the order of 1
    outputs: int  # of the policy: one for each action, or the mean of each number
    discrete: bool
    steps: int  # of each environment, in a rollout
    epochs: int
    batch_size: int  # divides the rows of a rollout, so that no minibatch has empty places
    gamma: float
    reward_scale: float  # and with it the values
    entropy: float
    learning_rate: float  # falls to 0 over the run
    iterations: int
    quick_iterations: int
    solved: float
    quick_bar: float

    @property
    def rows(self) -> int:
        """The rows of a rollout."""
        return self.steps * NUM_ENVS


TASKS = {
    "CartPole-v1": Task(
        scale=(1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2),
        outputs=2,
        discrete=True,
        steps=64,
        epochs=4,
        batch_size=256,
        gamma=0.99,
        reward_scale=0.05,
        entropy=0.005,
        learning_rate=2.5e-3,
        iterations=60,
        quick_iterations=20,
        solved=450.0,
        quick_bar=60.0,  # a new policy gets about 20
    ),
    "Pendulum-v1": Task(
        scale=(1.0, 1.0, 1 / 8),
        outputs=1,
        discrete=False,
        steps=128,
        epochs=10,
        batch_size=256,
        gamma=0.9,
        reward_scale=0.1,
        entropy=0.0,
        learning_rate=2e-3,
        iterations=60,
        quick_iterations=25,
        solved=-250.0,
        quick_bar=-1000.0,  # a new policy gets about -1200
    ),
}


# ---- in the processes: the policy, in NumPy ----------------------------------------------------


class Policy:
    """Chooses actions, and says how likely they were."""

    def __init__(self, task: Task, weights: list[Any]) -> None:
        self.task = task
        self.load(weights)

    def seed(self, number: int) -> None:
        """Draw other numbers than the copies of this policy in other processes."""
        self.random = np.random.default_rng(number)

    def load(self, weights: list[Any]) -> None:
        """Act with these weights: those of the layers, and the logarithms of the spread."""
        *self.layers, self.log_std = [np.asarray(weight) for weight in weights]

    def __call__(self, observation: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Actions `[num_envs, ...]`, and one more field for their rows."""
        output = self._forward(observation)
        if self.task.discrete:
            log_probs = output - np.logaddexp.reduce(output, axis=1, keepdims=True)
            action = (output + self.random.gumbel(size=output.shape)).argmax(1)
            log_prob = np.take_along_axis(log_probs, action[:, None], 1)[:, 0]
        else:
            noise = self.random.standard_normal(output.shape, np.float32)
            action = output + np.exp(self.log_std) * noise  # the pendulum clips it
            normal = -0.5 * noise**2 - self.log_std - 0.5 * math.log(2 * math.pi)
            log_prob = normal.sum(1)
        return action, {"log_prob": log_prob}

    def best(self, observation: np.ndarray) -> np.ndarray:
        """The likeliest actions."""
        output = self._forward(observation)
        return output.argmax(1) if self.task.discrete else output

    def _forward(self, observation: np.ndarray) -> np.ndarray:
        x = observation * np.array(self.task.scale, np.float32)
        *hidden, (weight, bias) = zip(self.layers[::2], self.layers[1::2], strict=True)
        for inner_weight, inner_bias in hidden:
            x = np.tanh(x @ inner_weight.T + inner_bias)
        return x @ weight.T + bias


# ---- in the main process: the learner, in PyTorch ----------------------------------------------


class Learner:
    """Proximal policy optimisation."""

    def __init__(self, task: Task, iterations: int) -> None:
        self.task = task
        self.policy = network(len(task.scale), task.outputs, last_scale=0.01)
        self.critic = network(len(task.scale), 1, last_scale=1.0)
        self.log_std = nn.Parameter(torch.zeros(task.outputs))  # that of discrete actions is idle
        self.scale = torch.tensor(task.scale)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters(), self.log_std]
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=task.learning_rate, eps=1e-5, fused=True
        )
        self.updates, self.all_updates = (
            0,
            iterations * task.epochs * (task.rows // task.batch_size),
        )

    def weights(self) -> list[Any]:
        """Return the weights that the policy acts with."""
        return [*self.policy.parameters(), self.log_std]

    def advantages(self, rollout: fbuf.Rollout) -> tuple[jax.Array, jax.Array]:
        """The values of a rollout, and generalised advantages: `[num_envs, steps]`."""
        data = to_torch(rollout.data)
        with torch.no_grad():
            value, following = from_torch(
                (self._value(data.item["observation"]), self._value(data.next_observation))
            )
        reward = self.task.reward_scale * rollout.data.item["reward"]
        found = fbuf.targets.gae(
            rollout, reward, value, following, gamma=self.task.gamma, lambda_=DECAY
        )
        return value, found.advantage

    def learn(self, rows: dict[str, torch.Tensor]) -> None:
        """Learn from a minibatch."""
        log_prob, entropy = self._log_prob(rows["observation"], rows["action"])
        advantage = rows["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob - rows["log_prob"]).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        error = self._value(rows["observation"]) - (rows["value"] + rows["advantage"])
        loss = (-gain - self.task.entropy * entropy + 0.5 * error.square()).mean()
        left = 1 - self.updates / self.all_updates
        self.optimiser.param_groups[0]["lr"] = self.task.learning_rate * left
        self.updates += 1
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimiser.step()

    def _value(self, observation: torch.Tensor) -> torch.Tensor:
        return self.critic(observation * self.scale).squeeze(-1)

    def _log_prob(
        self, observation: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of actions, and the policy's entropy."""
        output = self.policy(observation * self.scale)
        if self.task.discrete:
            log_probs = output.log_softmax(1)
            log_prob = log_probs.gather(1, action.long().unsqueeze(1)).squeeze(1)
            return log_prob, -(log_probs.exp() * log_probs).sum(1)
        constant = 0.5 * math.log(2 * math.pi)
        noise = (action - output) / self.log_std.exp()
        log_prob = (-0.5 * noise.square() - self.log_std - constant).sum(1)
        return log_prob, (self.log_std + 0.5 + constant).sum().expand_as(log_prob)


def network(inputs: int, outputs: int, last_scale: float) -> nn.Sequential:
    """Two hidden layers. With a small last one, a policy has no opinion at first."""
    layers = [nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, last_scale), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def evaluate(name: str, policy: Policy, episodes: int, seed: int) -> float:
    """The mean return of whole episodes without exploration."""
    envs = gymnasium.make_vec(name, episodes, vectorization_mode="sync")
    observation, _ = envs.reset(seed=seed)
    playing, total = np.ones(episodes, bool), np.zeros(episodes)
    while playing.any():
        observation, reward, terminated, truncated, _ = envs.step(policy.best(observation))
        total += playing * reward
        playing &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def train(name: str, iterations: int, seed: int) -> tuple[float, float, list[tuple[int, float]]]:
    """Train and report.

    Returns the mean return of the final evaluation, that of the last hundred episodes of training,
    which explore, and the learning curve.
    """
    task, started = TASKS[name], time.perf_counter()
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    learner, curve, seconds = Learner(task, iterations), [], {"collect": 0.0, "learn": 0.0}
    policy = Policy(task, [weight.detach().numpy() for weight in learner.weights()])
    progress = tqdm(total=iterations * task.rows, unit=" steps", mininterval=0.5, disable=None)

    def note(steps: int) -> None:
        # On the learner's memory: it always acts with the newest weights.
        curve.append((steps, evaluate(name, policy, 20, seed=10**6 + steps)))
        progress.write(f"{steps:>9,} steps   return {curve[-1][1]:7.1f}")

    note(0)
    with ProcessCollector(
        lambda: gymnasium.make(name),
        policy,
        processes=PROCESSES,
        envs_per_process=ENVS_PER_PROCESS,
        chunk=task.steps,
        seed=seed * NUM_ENVS,
        mode="sync",
        weights=learner.weights(),
        blank={"value": np.float32(0), "advantage": np.float32(0)},  # the learner writes them
    ) as collector:
        buffer = fbuf.init(
            collector.item,
            task.rows,
            sampler=fbuf.Shuffled(),
            next_of="observation",
            max_ends=task.rows // 4,  # early episodes are short
            **collector.options,
        )
        key = jax.random.key(seed)
        begun = time.perf_counter()
        for now in range(iterations):
            since = time.perf_counter()
            buffer = collector.collect(buffer, task.steps)
            seconds["collect"] += time.perf_counter() - since
            since = time.perf_counter()
            batch = fbuf.rollout(buffer, view=fbuf.Transition())
            value, advantage = learner.advantages(batch)
            found = {"value": value, "advantage": advantage}
            buffer = fbuf.write(buffer, batch.ids, found)
            key, sample_key = jax.random.split(key)
            for number in range(task.epochs * (task.rows // task.batch_size)):
                batch = fbuf.sample(buffer, sample_key, task.batch_size, step=number)
                learner.learn(to_torch(batch).data)
            buffer = fbuf.clear(buffer)
            collector.publish(learner.weights())
            seconds["learn"] += time.perf_counter() - since
            progress.update(task.rows)
            if (now + 1) % (iterations // EVALUATIONS) == 0:
                note((now + 1) * task.rows)
        fbuf.raise_on_fault(buffer)
        exploring = collector.stats()["mean_return"]
    progress.close()
    ended = time.perf_counter()
    final = evaluate(name, policy, 100, seed=10**9)
    print(f"\nevaluation return   {final:.1f}, the mean of 100 episodes without exploring")
    print(f"training return     {exploring:.1f}, the mean of the last 100 episodes, exploring")
    steps = iterations * task.rows
    print(f"environment steps   {steps:,}: {steps / (ended - begun):,.0f} a second")
    print(f"wall time           {ended - started:.0f} s, of which {begun - started:.0f} s to start")
    print(f"collecting          {seconds['collect']:.0f} s, in {PROCESSES} processes")
    print(f"learning            {seconds['learn']:.0f} s")
    return final, exploring, curve


def plot(name: str, curve: list[tuple[int, float]], path: pathlib.Path) -> None:
    """Save the learning curve."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    steps, returns = zip(*curve, strict=True)
    axes.axhline(TASKS[name].solved, color="grey", linewidth=0.8, linestyle="--")
    axes.plot([step / 1000 for step in steps], returns, marker="o", markersize=4)
    axes.set(
        xlabel="environment steps (thousands)",
        ylabel="mean return of 20 episodes",
        xlim=(0, None),
        title=f"{name}: environments in processes, PPO in PyTorch",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = argparse.ArgumentParser(
        description="PPO in PyTorch, with environments of Gymnasium in processes of their own. At "
        "the end it plays 100 episodes, and exits with an error if it did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--env", choices=tuple(TASKS), default="CartPole-v1", help="what to learn")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the environments, the networks and the sampling"
    )
    bars = ", ".join(f"{task.solved:.0f} ({name})" for name, task in TASKS.items())
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help="environment steps in all, by default as many as the task takes. The mean return "
        f"must then be {bars}",
    )
    bars = ", ".join(f"{task.quick_bar:.0f} ({name})" for name, task in TASKS.items())
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: fewer steps, "
        f"and a mean return of {bars} in the last 100 episodes of training will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/ppo_torch.png",
        help="where the picture of the learning curve goes",
    )
    options = parser.parse_args()
    task = TASKS[options.env]
    iterations = options.steps // task.rows if options.steps else task.iterations
    if options.quick:
        iterations = task.quick_iterations
    if iterations < EVALUATIONS:
        parser.error(f"--steps must be at least {EVALUATIONS * task.rows}")
    final, exploring, curve = train(options.env, iterations, options.seed)
    plot(options.env, curve, options.plot)
    # The likeliest actions of a new policy may happen to be good ones. Those it draws are not.
    reached, bar = (exploring, task.quick_bar) if options.quick else (final, task.solved)
    if reached < bar:
        sys.exit(f"failed: a mean return of {reached:.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
