"""TorchRL's TD3 on Pendulum with TorchRL's replay buffer, and the same program with fbuf's.

    python -m benchmarks.evidence.torchrl_td3            about 10 minutes on one core
    python -m benchmarks.evidence.torchrl_td3 --quick    about a minute: too short to learn

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

Environment, transforms, collector, exploration, networks, loss and target networks are TorchRL's.
The function `train` is the whole program. It is given the constructor of the buffer, and that is
all that differs between the rows of the table:

- torchrl, uniform: `TensorDictReplayBuffer` on `LazyTensorStorage`, with `RandomSampler`.
- torchrl, prioritised: `TensorDictPrioritizedReplayBuffer`, where its C++ extension can be loaded.
- fbuf, uniform and prioritised: what `fbuf_adapters.tensordict.from_torchrl` makes of these two.

An iteration collects frames and extends the buffer by them. Then, a few times, it samples a batch
and takes a step for the action values, and every other time one for the policy. At last it calls
`update_tensordict_priority`, which does nothing to a uniform buffer. A new policy gets less than
-1000 in an episode, and a good one about -150.
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import (
    Compose,
    GymEnv,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

from benchmarks.evidence import torchrl
from benchmarks.evidence.torchrl import Clock, MakeBuffer, Script
from benchmarks.harness import Record

ENV = "Pendulum-v1"
ITERATIONS, QUICK_ITERATIONS = 1600, 400
REWARD_SCALE = 0.1
"""It brings the action values to the order of 10."""
FRAMES = 4
"""Collected in an iteration."""
UPDATES = 4
"""Batches learned from in an iteration."""
ACTOR_DELAY = 2
"""Updates of the action values for each one of the policy."""
CAPACITY = 100_000
BATCH_SIZE = 128
WARM_UP = 100
"""Iterations before the first update, all of them of random actions."""
CELLS = (128, 128)


def make_env() -> TransformedEnv:
    return TransformedEnv(
        GymEnv(ENV), Compose(RewardSum(), StepCounter(), RewardScaling(0.0, REWARD_SCALE))
    )


def make_networks(env: TransformedEnv) -> tuple[TensorDictSequential, ValueOperator]:
    """The policy, and the value of an action."""
    observed, actions = (
        spec.shape[-1] for spec in (env.observation_spec["observation"], env.action_spec)
    )
    activation = torch.nn.ReLU
    mlp = MLP(observed, actions, num_cells=CELLS, activation_class=activation)
    policy = TensorDictSequential(
        TensorDictModule(mlp, in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec),
    )
    value = ValueOperator(
        MLP(observed + actions, 1, num_cells=CELLS, activation_class=activation),
        in_keys=["observation", "action"],
    )
    return policy, value


def greedy_return(policy: TensorDictSequential, seed: int) -> float:
    """The mean return of episodes played without noise."""

    def act(observation: np.ndarray) -> np.ndarray:
        seen = TensorDict(observation=torch.as_tensor(observation), batch_size=[len(observation)])
        with torch.no_grad():
            return policy(seen)["action"].numpy()

    return torchrl.mean_return(ENV, act, seed)


def train(make_buffer: MakeBuffer, *, seed: int, iterations: int) -> Record:
    """Learn Pendulum with the buffer that `make_buffer` makes."""
    clock = Clock()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    buffer = make_buffer(seed)
    env = make_env()
    env.set_seed(seed)
    policy, value = make_networks(env)
    explore = AdditiveGaussianModule(env.action_spec, sigma_init=0.4, sigma_end=0.4)
    loss_module = TD3Loss(policy, value, action_spec=env.action_spec, loss_function="l2")
    loss_module.make_value_estimator(gamma=0.98)
    target = SoftUpdate(loss_module, tau=0.01)
    policy_optimiser = torch.optim.Adam(loss_module.actor_network_params.parameters(), lr=1e-3)
    value_optimiser = torch.optim.Adam(loss_module.qvalue_network_params.parameters(), lr=1e-3)
    collector = Collector(
        env,
        TensorDictSequential(policy, explore),
        frames_per_batch=FRAMES,
        total_frames=iterations * FRAMES,
        init_random_frames=WARM_UP * FRAMES,
        auto_register_policy_transforms=False,
    )

    frames = iter(collector)
    for iteration in range(iterations):
        clock.begin_iteration()
        data = next(frames)
        clock.stop("collect")
        buffer.extend(data)
        clock.stop("extend")
        if iteration < WARM_UP:
            continue
        for update in range(UPDATES):
            batch = buffer.sample()
            clock.stop("sample")
            loss, found = loss_module.value_loss(batch)
            value_optimiser.zero_grad()
            loss.backward()
            value_optimiser.step()
            if update % ACTOR_DELAY == 0:
                loss, _ = loss_module.actor_loss(batch)
                policy_optimiser.zero_grad()
                loss.backward()
                policy_optimiser.step()
                target.step()
            batch["td_error"] = found["td_error"].amax(0)  # as the loss as a whole does
            clock.stop("learn")
            buffer.update_tensordict_priority(batch)
            clock.stop("update_tensordict_priority")
        clock.end_iteration()
        if torchrl.due(iteration, iterations):
            clock.evaluate((iteration + 1) * FRAMES, lambda: greedy_return(policy, seed))
    collector.shutdown()
    return clock.record()


if __name__ == "__main__":
    torchrl.run(
        Script(
            module="benchmarks.evidence.torchrl_td3",
            how=__doc__,
            algorithm="TorchRL's TD3",
            env=ENV,
            buffers=torchrl.buffers_of_steps(CAPACITY, BATCH_SIZE),
            train=train,
            iterations=ITERATIONS,
            quick_iterations=QUICK_ITERATIONS,
            iteration=f"{FRAMES} frames and {UPDATES} batches of {BATCH_SIZE}",
            parts=("extend", "sample", "update_tensordict_priority", "learn", "collect"),
            good=-200.0,
        )
    )
