"""DQN of TorchRL, whose replay buffer becomes fbuf's by one line.

Needs `pip install "fbuf[tensordict]" torchrl gymnasium`.
"""

import sys

import torch
from fbuf_adapters.tensordict import from_torchrl
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = 7500
torch.manual_seed(SEED)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain

cart_pole = GymEnv("CartPole-v1", categorical_action_encoding=True)
env = TransformedEnv(cart_pole, Compose(InitTracker(), StepCounter()))
env.set_seed(SEED)
network = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=torch.nn.ReLU)
actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
explore = EGreedyModule(env.action_spec, annealing_num_steps=STEPS // 5, eps_init=1.0, eps_end=0.05)
collector = Collector(
    env, TensorDictSequential(actor, explore), frames_per_batch=50, total_frames=STEPS
)

buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20_000), batch_size=128)
buffer = from_torchrl(buffer)  # the one line: all others are a program of TorchRL

loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
loss_module.make_value_estimator(gamma=0.98)
target_updater = SoftUpdate(loss_module, tau=0.01)
optimiser = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

returns = []
for number, steps in enumerate(collector):
    explore.step(steps.numel())
    buffer.extend(steps)
    ended = steps["next", "done"]
    returns += steps["next", "step_count"][ended].tolist()  # CartPole gives a reward of 1 a step
    for _ in range(15):
        batch = buffer.sample()
        loss = loss_module(batch)["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        target_updater.step()
    mean_return = sum(returns[-10:]) / 10
    if number % 15 == 14:
        print(f"{50 * (number + 1):>6} steps, mean return {mean_return:.0f}", flush=True)
collector.shutdown()

if mean_return < 100:
    sys.exit(f"failed: a mean return of {mean_return:.0f}, below 100")
print("It learned.")
