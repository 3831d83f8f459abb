"""DQN in PyTorch, with a Gymnasium environment: no JAX is to be seen.

Needs `pip install "fbuf[torch]" gymnasium`.
"""

import copy
import sys

import gymnasium as gym
import torch
from fbuf_adapters.pytorch import ReplayBuffer

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS, GAMMA = 10_000, 0.98
torch.manual_seed(SEED)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain

env = gym.make("CartPole-v1")
linear, relu = torch.nn.Linear, torch.nn.ReLU()
network = torch.nn.Sequential(linear(4, 64), relu, linear(64, 64), relu, linear(64, 2))
target_network = copy.deepcopy(network)
optimiser = torch.optim.Adam(network.parameters(), lr=5e-4)
# PyTorch wants actions of int64 in `gather`; the buffer stores them in 32 bits.
buffer = ReplayBuffer(20_000, batch_size=128, int64=True, seed=SEED)


def learn(batch):
    """Take a step of DQN."""
    data = batch.data
    with torch.no_grad():
        next_value = target_network(data["next_observation"]).max(dim=1).values
        # Bootstrap through a truncation, not through a termination. Values are from 0 to 1.
        target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated
    chosen = network(data["observation"]).gather(1, data["action"][:, None])[:, 0]
    optimiser.zero_grad()
    (chosen - target).square().mean().backward()
    optimiser.step()


def act(observation, epsilon):
    """Return an action: the best one, or by chance any."""
    if torch.rand(()) < epsilon:
        return int(torch.randint(2, ()))
    with torch.no_grad():
        return int(network(torch.as_tensor(observation)).argmax())


returns, episode_return = [], 0.0
observation, _ = env.reset(seed=SEED)
for step in range(STEPS):
    action = act(observation, epsilon=max(0.05, 1 - step / (0.2 * STEPS)))
    next_observation, reward, terminated, truncated, _ = env.step(action)
    row = {
        "observation": observation,
        "action": action,
        "reward": reward,
        "next_observation": next_observation,
    }
    buffer.add(row, terminated=terminated, truncated=truncated)
    episode_return += reward
    observation = next_observation
    if terminated or truncated:
        returns.append(episode_return)
        episode_return = 0.0
        observation, _ = env.reset()
    if step >= 500 and step % 2 == 0:
        learn(buffer.sample())
    if step % 200 == 0:
        target_network.load_state_dict(network.state_dict())
    if step % 1000 == 999:
        print(f"{step + 1:>6} steps, mean return {sum(returns[-10:]) / 10:.0f}", flush=True)

buffer.raise_on_fault()
if sum(returns[-10:]) / 10 < 100:
    sys.exit(f"failed: a mean return of {sum(returns[-10:]) / 10:.0f}, below 100")
print("It learned.")
