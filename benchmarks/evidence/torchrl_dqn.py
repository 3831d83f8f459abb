"""TorchRL's DQN on CartPole with TorchRL's replay buffer, and the same program with fbuf's.

    python -m benchmarks.evidence.torchrl_dqn            about 4 minutes on one core
    python -m benchmarks.evidence.torchrl_dqn --quick    about a minute: too short to learn

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

Environment, transforms, collector, exploration, network, loss and target network are TorchRL's, put
together as in its own DQN for CartPole. The function `train` is the whole program. It is given the
constructor of the buffer, and that is all that differs between the rows of the table:

- torchrl, uniform: `TensorDictReplayBuffer` on `LazyTensorStorage`, with `RandomSampler`.
- torchrl, prioritised: `TensorDictPrioritizedReplayBuffer`, where its C++ extension can be loaded.
- fbuf, uniform and prioritised: what `fbuf_adapters.tensordict.from_torchrl` makes of these two.

An iteration collects frames and extends the buffer by them. Then, a few times, it samples a batch,
takes a step of the loss and the optimiser, and calls `update_tensordict_priority`. The call does
nothing to a uniform buffer. No episode is longer than 500 steps, and a step is worth 1.
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import Composite
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

from benchmarks.evidence import torchrl
from benchmarks.evidence.torchrl import Clock, MakeBuffer, Script
from benchmarks.harness import Record

ENV = "CartPole-v1"
ITERATIONS, QUICK_ITERATIONS = 800, 300
SPREAD = (2.4, 2.0, 0.21, 2.0)
"""Observations are divided by it, which brings them to the order of 1."""
FRAMES = 8
"""Collected in an iteration."""
UPDATES = 2
"""Batches learned from in an iteration."""
CAPACITY = 100_000
BATCH_SIZE = 128
WARM_UP = 100
"""Iterations before the first update."""


def make_env() -> TransformedEnv:
    scale = ObservationNorm(0.0, torch.tensor(SPREAD), ["observation"], standard_normal=True)
    return TransformedEnv(GymEnv(ENV), Compose(RewardSum(), StepCounter(), scale))


def make_network(env: TransformedEnv) -> QValueActor:
    """The action values of what is observed, and the best action."""
    mlp = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=env.action_spec.shape[-1],
        num_cells=[120, 84],
        activation_class=torch.nn.ReLU,
    )
    return QValueActor(mlp, in_keys=["observation"], spec=Composite(action=env.action_spec))


def greedy_return(network: QValueActor, seed: int) -> float:
    """The mean return of episodes played greedily."""

    def act(observation: np.ndarray) -> np.ndarray:
        scaled = torch.as_tensor(observation / np.float32(SPREAD))
        with torch.no_grad():
            seen = network(TensorDict(observation=scaled, batch_size=[len(scaled)]))
        return seen["action"].argmax(-1).numpy()  # of one-hot vectors

    return torchrl.mean_return(ENV, act, seed)


def train(make_buffer: MakeBuffer, *, seed: int, iterations: int) -> Record:
    """Learn CartPole with the buffer that `make_buffer` makes."""
    clock = Clock()
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

    frames = iter(collector)
    for iteration in range(iterations):
        clock.begin_iteration()
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
        clock.end_iteration()
        if torchrl.due(iteration, iterations):
            clock.evaluate((iteration + 1) * FRAMES, lambda: greedy_return(network, seed))
    collector.shutdown()
    return clock.record()


if __name__ == "__main__":
    torchrl.run(
        Script(
            module="benchmarks.evidence.torchrl_dqn",
            how=__doc__,
            algorithm="TorchRL's DQN",
            env=ENV,
            buffers=torchrl.buffers_of_steps(CAPACITY, BATCH_SIZE),
            train=train,
            iterations=ITERATIONS,
            quick_iterations=QUICK_ITERATIONS,
            iteration=f"{FRAMES} frames and {UPDATES} batches of {BATCH_SIZE}",
            parts=("extend", "sample", "update_tensordict_priority", "learn", "collect"),
            good=400.0,
        )
    )
