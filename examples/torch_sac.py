"""Soft actor-critic: environments and replay in JAX, the policy and the learner in PyTorch.

    python examples/torch_sac.py --help

The replay memory is a `ReplayBuffer`: it takes and returns tensors, and its rows lie in JAX. One
round of the loop, and what goes where:

1. `to_torch` brings the observations from JAX, the policy chooses actions, and `from_torch` brings
   these back.
2. JAX, in one compiled call: all environments take a step.
3. `buffer.add` stores the step. It keeps the next observation at ends of episodes only (`next_of`);
   for all other rows it reads the following row.
4. `buffer.sample` returns a batch, and PyTorch learns from it: once for each environment, so that
   there is one update for every step taken.

Observations and batches are not copied on their way from JAX. Actions are copied on their way back.

A pendulum never falls for good: each episode is cut off after 200 steps. So the value after the
last step counts, too. It is that of the last observation of the episode, not of the first one of
the next.

A new policy gets about -1300 in an episode, a good one about -150. Most of the time goes into the
learner.

Needs fbuf[torch], gymnax>=1.0 (and six, which gymnax does not declare) and matplotlib.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
import math
import os
import pathlib
import statistics
import sys
import time
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave PyTorch some of the GPU

import gymnax
import jax
import matplotlib
import torch
from fbuf_adapters.pytorch import ReplayBuffer, from_torch, to_torch
from torch import nn

import fbuf

ENV, ENV_PARAMS = gymnax.make("Pendulum-v1")
OBSERVATION, ACTION = 3, 1  # their sizes

NUM_ENVS = 8
CAPACITY = 20_000
BATCH_SIZE = 256
UPDATES = NUM_ENVS  # a round, after each step of all environments
HIDDEN = 128
SCALE = (1.0, 1.0, 1 / 8)  # brings what is observed to the order of 1
TORQUE = 2.0  # the policy's actions, -1 to 1, times this
GAMMA = 0.99
REWARD_SCALE = 0.1
LEARNING_RATE = 1e-3
TARGET_RATE = 0.005  # how far the target networks move towards the learned ones in an update
LOG_STD = (-5.0, 2.0)  # the policy's spread: from, to
ENTROPY = -float(ACTION)  # what the temperature is steered to
WARM_UP = 50  # rounds of random actions, before the first update
EVALUATIONS = 20  # on the way, for the learning curve
EPISODES = 100  # of an evaluation
TIME_EVERY = 10  # rounds between those whose parts are timed

ROUNDS, QUICK_ROUNDS = 1_000, 360
SOLVED = -200.0
QUICK_GAIN = 300.0  # over the new policy


# ---- JAX: the environments -------------------------------------------------------------------


class Worlds(NamedTuple):
    """The environments: what they carry from one step to the next."""

    env_state: Any
    key: jax.Array


class Outcome(NamedTuple):
    """The result of one step of all environments; leaves `[num_envs, ...]`."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: jax.Array  # at the end of an episode, its last observation


@partial(jax.jit, static_argnames="num_envs")
def reset(key: jax.Array, num_envs: int) -> tuple[Worlds, jax.Array]:
    """Start environments; returns their first observations as well."""
    key, reset_key = jax.random.split(key)
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, num_envs), ENV_PARAMS
    )
    return Worlds(env_state, key), observation


@jax.jit
def step(worlds: Worlds, action: jax.Array) -> tuple[Worlds, jax.Array, Outcome]:
    """Take a step in all environments; also returns what to act on next."""
    key, step_key = jax.random.split(worlds.key)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        ENV.step, in_axes=(0, 0, 0, None)
    )(jax.random.split(step_key, len(action)), worlds.env_state, TORQUE * action, ENV_PARAMS)
    # At the end of an episode `observation` is the first one of the next episode.
    outcome = Outcome(reward, terminated, truncated, info["final_observation"])
    return Worlds(env_state, key), observation, outcome


# ---- PyTorch: the policy and the learner -----------------------------------------------------


class Twins(nn.Module):
    """Two networks of the same shape side by side: a layer of both is one product."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in itertools.pairwise(sizes):
            reach = inputs**-0.5
            self.weights.append(torch.empty(2, inputs, outputs).uniform_(-reach, reach))
            self.biases.append(torch.empty(2, 1, outputs).uniform_(-reach, reach))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From `[B, inputs]` to `[2, B]`."""
        x = x.expand(2, *x.shape)
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for inner_weight, inner_bias in hidden:
            x = torch.baddbmm(inner_bias, x, inner_weight).relu()
        return torch.baddbmm(bias, x, weight).squeeze(2)


class Agent:
    """Soft actor-critic: two critics, a stochastic policy, and a temperature that adapts."""

    def __init__(self, device: str) -> None:
        self.policy = nn.Sequential(
            nn.Linear(OBSERVATION, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2 * ACTION),
        ).to(device)
        self.critics = Twins(OBSERVATION + ACTION, HIDDEN, HIDDEN, 1).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.zeros((), device=device, requires_grad=True)
        self.scale = torch.tensor(SCALE, device=device)
        adam = partial(torch.optim.Adam, lr=LEARNING_RATE, fused=True)
        self.policy_optimiser = adam(self.policy.parameters())
        self.critic_optimiser = adam(self.critics.parameters())
        self.temperature_optimiser = adam([self.log_temperature])

    @torch.no_grad()
    def act(self, observation: torch.Tensor, *, explore: bool) -> torch.Tensor:
        """An action for each observation: drawn from the policy, or its middle."""
        if explore:
            return self._draw(observation * self.scale)[0]
        return self.policy(observation * self.scale)[:, :ACTION].tanh()

    def learn(self, batch: fbuf.Sample) -> None:
        """Update everything once, from a batch."""
        item = batch.data.item
        now, then = item["observation"] * self.scale, batch.data.next_observation * self.scale
        temperature = self.log_temperature.detach().exp()

        with torch.no_grad():
            action, log_density = self._draw(then)
            value = self.targets(torch.cat([then, action], 1)).amin(0) - temperature * log_density
            # Bootstrap through a truncation, not through a termination.
            wanted = REWARD_SCALE * item["reward"] + GAMMA * value * ~batch.terminated
        said = self.critics(torch.cat([now, item["action"]], 1))
        loss = (said - wanted).square().mean(1).sum()
        self._update(self.critic_optimiser, loss)

        action, log_density = self._draw(now)
        value = self.critics(torch.cat([now, action], 1)).amin(0)
        self._update(self.policy_optimiser, (temperature * log_density - value).mean())

        surplus = -(log_density.detach().mean() + ENTROPY)
        self._update(self.temperature_optimiser, self.log_temperature * surplus)

        with torch.no_grad():
            pairs = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, TARGET_RATE)

    def _draw(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions from the policy, and the logarithms of their densities."""
        mean, log_std = self.policy(observation).chunk(2, 1)
        log_std = log_std.clamp(*LOG_STD)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        action = raw.tanh()
        # The log-probability is that of a normal distribution, less the logarithm of the slope of
        # tanh. The slope is 1 - tanh(raw)**2, written so that it is finite for any `raw`.
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        return action, (normal - slope).sum(1)

    @staticmethod
    def _update(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        """Take a step down the loss, and compute no gradient but what that needs."""
        optimiser.zero_grad()
        loss.backward(inputs=optimiser.param_groups[0]["params"])
        optimiser.step()


def evaluate(agent: Agent, key: jax.Array) -> float:
    """The mean return of whole episodes without exploration."""
    worlds, observation = reset(key, EPISODES)
    total = 0.0
    for _ in range(ENV_PARAMS.max_steps_in_episode):  # no pendulum's episode is shorter
        action = agent.act(to_torch(observation), explore=False)
        worlds, observation, outcome = step(worlds, from_torch(action))
        total = total + to_torch(outcome.reward).mean()
    return float(total)


# ---- the loop --------------------------------------------------------------------------------


class Clock:
    """Times the parts of some rounds; on a GPU those wait for each part, others do not."""

    def __init__(self, device: str) -> None:
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self._wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._running = False
        self._since = 0.0

    def start(self, running: bool) -> None:
        """Begin a round."""
        self._running = running
        if running:
            self._wait()
            self._since = time.perf_counter()

    def stop(self, part: str) -> None:
        """End a part."""
        if self._running:
            self._wait()
            now = time.perf_counter()
            self.seconds[part].append(now - self._since)
            self._since = now

    def per_round(self) -> dict[str, float]:
        """The seconds each part takes in a round: its median, by how often it comes in one."""
        rounds = len(self.seconds["policy"])
        return {
            part: statistics.median(times) * len(times) / rounds
            for part, times in self.seconds.items()
        }


def train(rounds: int, seed: int, device: str) -> tuple[float, list[tuple[int, float]]]:
    """Train, report, and return the final evaluation return and the learning curve."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    keys = jax.random.split(jax.random.key(seed), 3)
    # Arrays from PyTorch are committed to their device. Commit the others, too, or JAX compiles
    # everything once more when the two meet.
    reset_key, evaluation_key, final_key = jax.device_put(keys, keys.sharding)
    agent, clock, curve = Agent(device), Clock(device), []
    worlds, observation = reset(reset_key, NUM_ENVS)

    def note(steps: int) -> None:
        curve.append((steps, evaluate(agent, jax.random.fold_in(evaluation_key, steps))))
        print(f"{steps:>9,} steps   return {curve[-1][1]:7.1f}", flush=True)

    note(0)
    with ReplayBuffer(
        CAPACITY,
        num_envs=NUM_ENVS,
        next_of="observation",
        view=fbuf.Transition(),
        batch_size=BATCH_SIZE,
        device=device,
        seed=seed,
    ) as buffer:
        for now in range(rounds):
            clock.start(now > 2 * WARM_UP and now % TIME_EVERY == 0)
            seen = to_torch(observation)
            if now < WARM_UP:
                action = 2 * torch.rand(NUM_ENVS, ACTION, device=device) - 1
            else:
                action = agent.act(seen, explore=True)
            clock.stop("policy")
            worlds, observation, outcome = step(worlds, from_torch(action))
            outcome = to_torch(outcome)
            clock.stop("environments")
            buffer.add(
                {"observation": seen, "action": action, "reward": outcome.reward},
                # The two ends differ: after a termination the value is 0, after a truncation it is
                # what the critics say.
                terminated=outcome.terminated,
                truncated=outcome.truncated,
                next_observation=outcome.next_observation,
            )
            clock.stop("add")
            for _ in range(UPDATES if now >= WARM_UP else 0):
                batch = buffer.sample()
                clock.stop("sample")
                agent.learn(batch)
                clock.stop("learn")
            if (now + 1) % (rounds // EVALUATIONS) == 0:
                note((now + 1) * NUM_ENVS)
        fbuf.raise_on_fault(buffer.state)
    seconds = time.perf_counter() - started
    final = evaluate(agent, final_key)
    report(final, rounds * NUM_ENVS, seconds, clock.per_round())
    return final, curve


def report(final: float, steps: int, seconds: float, parts: dict[str, float]) -> None:
    """Print how it went."""
    total = sum(parts.values())
    print(f"\nevaluation return   {final:.1f}, the mean of {EPISODES} episodes without exploring")
    print(f"environment steps   {steps:,}: {steps / seconds:,.0f} a second")
    print(f"wall time           {seconds:.0f} s, with compiling and the evaluations on the way")
    print(f"in replay           {(parts['add'] + parts['sample']) / total:.1%} of a round")
    print(f"a round             {1e6 * total:,.0f} us; every {TIME_EVERY}th was timed")
    for part, typical in parts.items():
        times = f", {UPDATES} times" if part in ("sample", "learn") else ""
        print(f"    {part:<16}{1e6 * typical:6.0f} us{times}")


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
        ylabel=f"mean return of {EPISODES} episodes",
        xlim=(0, None),
        ylim=(min(-1600, *returns), 0),
        yticks=(-1600, -1200, -800, -400, SOLVED, 0),
        title="Pendulum-v1: replay in JAX, SAC in PyTorch",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = argparse.ArgumentParser(
        description="Soft actor-critic on Pendulum-v1: environments and replay in JAX, the policy "
        f"and the learner in PyTorch. At the end it plays {EPISODES} episodes, says what the time "
        "went into, and exits with an error if it did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the environments, the networks and the sampling"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps in all; each round takes {NUM_ENVS} of them, one in every "
        f"environment, and learns from {UPDATES} batches. The mean return must then be "
        f"{SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: "
        f"{QUICK_ROUNDS * NUM_ENVS} steps, and a mean return {QUICK_GAIN:.0f} more than before "
        "training will do",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the environments, the replay memory and the learner are",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/torch_sac.png",
        help="where the picture of the learning curve goes",
    )
    options = parser.parse_args()
    least = 2 * WARM_UP + 2 * TIME_EVERY  # so that every part has been timed
    if options.steps < least * NUM_ENVS:
        parser.error(f"--steps must be at least {least * NUM_ENVS}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; leave it out, or install a CUDA build")
    platform = {"cpu": "cpu", "cuda": "gpu"}[options.device]
    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        parser.error(f"--device {options.device}: JAX finds no GPU; install jax[cuda13]")
    rounds = QUICK_ROUNDS if options.quick else options.steps // NUM_ENVS
    with jax.default_device(device):
        final, curve = train(rounds, options.seed, options.device)
    plot(curve, options.plot)
    bar = curve[0][1] + QUICK_GAIN if options.quick else SOLVED
    if final < bar:
        sys.exit(f"failed: a mean return of {final:.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
