"""TD-MPC2's use of TorchRL's replay buffer on Pendulum, and the same program with fbuf's.

    python -m benchmarks.evidence.torchrl_td_mpc2            about 9 minutes on one core
    python -m benchmarks.evidence.torchrl_td_mpc2 --quick    about a minute: hardly learns

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

[TD-MPC2](https://github.com/nicklashansen/tdmpc2) stores whole episodes, and draws slices of 4
steps. This program makes the buffer with its settings, fills it as it does, and learns from it by
its method. The function `train` is the whole program. It is given the constructor of the buffer,
and that is all that differs between the rows of the table:

- torchrl: `ReplayBuffer` on `LazyTensorStorage`, with `SliceSampler`.
- fbuf: what `fbuf_adapters.tensordict.from_torchrl` makes of it.

Only the key "episode" tells episodes apart: there are no flags. The first row of an episode is what
was observed after the reset; its action and reward are NaN. An iteration is an episode. After each
of its steps a batch is drawn and learned from, and at its end it is added in one call. The buffer
is full after two thirds of the training; then the oldest episode has lost its first steps.

The learner has the parts of TD-MPC2's: an encoder, dynamics of the latent state, reward, action
values with a target network, and a policy. All are learned from the same slices. The learner is
smaller, and simpler: two values instead of five, squared errors instead of distributions, and no
pretraining. It acts by its policy alone, without planning.

Each batch is checked. The ids of a slice must be equal. The rows have one more key, the number of
the step in its episode, and in a slice it must go up by one. Neither buffer looks at that key.

A new policy gets less than -1000 in an episode, and a good one about -150.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn import functional
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers import SliceSampler

from benchmarks import report
from benchmarks.evidence import torchrl
from benchmarks.evidence.torchrl import Clock, MakeBuffer, Script
from benchmarks.harness import Record

ENV = "Pendulum-v1"
EPISODES, QUICK_EPISODES = 30, 10
STEPS = 200
"""In every episode."""
RANDOM_EPISODES = 5
"""Episodes of random actions, before the first update."""
CAPACITY = 4_000
"""In rows."""
HORIZON = 3
SLICES = 256
"""In a batch."""
REWARD_SCALE = 0.1
TORQUE = 2.0
"""The largest; actions are stored from -1 to 1."""
HIDDEN, LATENT = 64, 32
GROUP = 8
"""Latent numbers that add up to 1."""
GAMMA = 0.975
RHO = 0.5
"""The weight of each further step of a slice."""
CONSISTENCY, REWARD, VALUE = 20.0, 1.0, 1.0
"""Weights of the losses."""
TAU = 0.01
ENTROPY = 0.02
"""The weight of the policy's entropy beside the value."""
LOG_STD = (-5.0, 1.0)
"""Bounds of the policy's."""
MOST_GRADIENT = 20.0


def make_slices(seed: int) -> Any:
    return ReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=SliceSampler(
            num_slices=SLICES,
            end_key=None,
            traj_key="episode",
            truncated_key=None,
            strict_length=True,
            cache_values=False,
        ),
        pin_memory=False,
        prefetch=0,
        batch_size=SLICES * (HORIZON + 1),
        generator=torch.Generator().manual_seed(seed),
    )


# --- the learner ---------------------------------------------------------------------------------


def simplices() -> torch.nn.Module:
    """A softmax in each group of the latent numbers."""
    groups = torch.nn.Unflatten(-1, (LATENT // GROUP, GROUP))
    return torch.nn.Sequential(groups, torch.nn.Softmax(-1), torch.nn.Flatten(-2))


def make_network(inputs: int, outputs: int, last: torch.nn.Module) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for size in (inputs, HIDDEN):
        layers += [torch.nn.Linear(size, HIDDEN), torch.nn.LayerNorm(HIDDEN), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, outputs), last)


class Agent:
    """A latent world model, two action values, and a policy."""

    def __init__(self, observed: int, actions: int) -> None:
        acted, identity = LATENT + actions, torch.nn.Identity()
        self.encode = make_network(observed, LATENT, simplices())
        self.dynamics = make_network(acted, LATENT, simplices())
        self.reward = make_network(acted, 1, identity)
        self.values = torch.nn.ModuleList(make_network(acted, 1, identity) for _ in range(2))
        self.target_values = copy.deepcopy(self.values).requires_grad_(False)
        self.policy = make_network(LATENT, 2 * actions, identity)
        model = (self.encode, self.dynamics, self.reward, self.values)
        self.model_parameters = list(itertools.chain(*(part.parameters() for part in model)))
        self.optimiser = torch.optim.Adam(self.model_parameters, lr=1e-3)
        self.policy_optimiser = torch.optim.Adam(self.policy.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(self, observation: np.ndarray, noise: float = 1.0) -> torch.Tensor:
        """The policy's actions, of observations `[..., observed]`."""
        return self.decide(self.encode(torch.as_tensor(observation)), noise)[0]

    def decide(self, latent: torch.Tensor, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions, and how uncertain they are: their entropy, but for a constant."""
        mean, log_std = self.policy(latent).chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD)
        action = (mean + noise * log_std.exp() * torch.randn_like(mean)).tanh()
        return action, (log_std + torch.log(1 - action.square() + 1e-6)).sum(-1)

    def learn(self, batch: TensorDictBase) -> None:
        """Take a step of learning on slices, `[HORIZON + 1, SLICES]`."""
        observation = batch["obs"]
        # The row of an observation has the action that led to it.
        action, reward = batch["action"][1:], batch["reward"][1:].unsqueeze(-1)
        with torch.no_grad():
            encoded = self.encode(observation[1:])
            following = torch.cat([encoded, self.decide(encoded)[0]], -1)
            target = reward + GAMMA * torch.min(*(value(following) for value in self.target_values))

        latents = [self.encode(observation[0])]
        for step in range(HORIZON):
            latents.append(self.dynamics(torch.cat([latents[-1], action[step]], -1)))
        rolled = torch.stack(latents)
        acted = torch.cat([rolled[:-1], action], -1)
        errors = (
            CONSISTENCY * functional.mse_loss(rolled[1:], encoded, reduction="none").mean(-1)
            + REWARD * (self.reward(acted) - reward).square().squeeze(-1)
            + VALUE * sum((value(acted) - target).square().squeeze(-1) for value in self.values)
        )
        rho = RHO ** torch.arange(HORIZON + 1)
        loss = (rho[:-1] * errors.mean(1)).mean()
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model_parameters, MOST_GRADIENT)
        self.optimiser.step()

        self.values.requires_grad_(False)
        latent = rolled.detach()
        action, entropy = self.decide(latent)
        acted = torch.cat([latent, action], -1)
        value = sum(value(acted).squeeze(-1) for value in self.values) / len(self.values)
        loss = -(rho * (value + ENTROPY * entropy).mean(1)).mean()
        self.policy_optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), MOST_GRADIENT)
        self.policy_optimiser.step()
        self.values.requires_grad_(True)

        with torch.no_grad():
            for slow, fast in zip(
                self.target_values.parameters(), self.values.parameters(), strict=True
            ):
                slow.lerp_(fast, TAU)


# --- one training --------------------------------------------------------------------------------


def empty_episode(number: int, observed: int, actions: int) -> TensorDict:
    """Rows for an episode; the first has an observation alone."""
    rows = STEPS + 1
    return TensorDict(
        obs=torch.empty(rows, observed),
        action=torch.full((rows, actions), torch.nan),
        reward=torch.full((rows,), torch.nan),
        episode=torch.full((rows,), number),
        step=torch.arange(rows),
        batch_size=[rows],
    )


def mixed_slices(batch: TensorDictBase) -> int:
    """Count the slices that are not steps of one episode, one after the other."""
    episode, step = batch["episode"], batch["step"]
    good = (episode == episode[0]) & (step == step[0] + torch.arange(HORIZON + 1).unsqueeze(1))
    return int((~good.all(0)).sum())


def greedy_return(agent: Agent, seed: int) -> float:
    """The mean return of episodes played without noise."""

    def act(observation: np.ndarray) -> np.ndarray:
        return agent.act(observation, noise=0.0).numpy() * TORQUE

    return torchrl.mean_return(ENV, act, seed)


def train(make_buffer: MakeBuffer, *, seed: int, iterations: int) -> Record:
    """Learn Pendulum with the buffer that `make_buffer` makes."""
    clock = Clock()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    buffer = make_buffer(seed)
    env = gymnasium.make(ENV)
    observed, actions = env.observation_space.shape[0], env.action_space.shape[0]
    agent = Agent(observed, actions)
    slices = mixed = 0
    for iteration in range(iterations):
        clock.begin_iteration()
        learning = iteration >= RANDOM_EPISODES
        rows = empty_episode(iteration, observed, actions)
        observation, _ = env.reset(seed=seed if iteration == 0 else None)
        rows["obs"][0] = torch.as_tensor(observation)
        for step in range(1, STEPS + 1):
            action = agent.act(observation) if learning else 2 * torch.rand(actions) - 1
            observation, reward, *_ = env.step(action.numpy() * TORQUE)
            rows["obs"][step] = torch.as_tensor(observation)
            rows["action"][step] = action
            rows["reward"][step] = REWARD_SCALE * float(reward)
            clock.stop("act")
            if learning:
                batch = buffer.sample().view(-1, HORIZON + 1).permute(1, 0)
                clock.stop("sample")
                agent.learn(batch)
                clock.stop("learn")
                slices += SLICES
                mixed += mixed_slices(batch)
                clock.stop("check")
        buffer.extend(rows)
        clock.stop("extend")
        if learning:
            clock.end_iteration()
        if torchrl.due(iteration, iterations):
            clock.evaluate((iteration + 1) * STEPS, lambda: greedy_return(agent, seed))
    return {**clock.record(), "slices": slices, "mixed": mixed}


def whole_slices(name: str, records: list[Record]) -> list[str]:
    """Whether each slice was of one episode."""
    mixed, slices = (sum(r[key] for r in records) for key in ("mixed", "slices"))
    text = f"{name}: slices that mix episodes: {mixed:,} of {slices:,}, 0 wanted"
    return [report.bar(text, mixed == 0)]


if __name__ == "__main__":
    torchrl.run(
        Script(
            module="benchmarks.evidence.torchrl_td_mpc2",
            how=__doc__,
            algorithm="A small TD-MPC2",
            env=ENV,
            buffers={"torchrl": make_slices, "fbuf": torchrl.ours(make_slices)},
            train=train,
            iterations=EPISODES,
            quick_iterations=QUICK_EPISODES,
            iteration=(
                f"an episode of {STEPS} steps, and after each step a batch of {SLICES} slices of "
                f"{HORIZON + 1} steps"
            ),
            parts=("extend", "sample", "learn", "act"),
            good=-200.0,
            more_bars=whole_slices,
        )
    )
