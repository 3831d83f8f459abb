"""Prioritised DQN in PyTorch whose learner is one CUDA graph; without a GPU it runs uncaptured.

Needs `pip install "fbuf[torch]" gymnasium`, and JAX for CUDA if there is a GPU.
"""

import copy
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave PyTorch some of the GPU

import gymnasium as gym
import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS, BATCH, GAMMA = 10_000, 128, 0.98
torch.manual_seed(SEED)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"

env = gym.make("CartPole-v1")
linear, relu = torch.nn.Linear, torch.nn.ReLU()
network = torch.nn.Sequential(linear(4, 64), relu, linear(64, 64), relu, linear(64, 2)).to(device)
target_network = copy.deepcopy(network).requires_grad_(False)
optimiser = torch.optim.Adam(network.parameters(), lr=5e-4, capturable=on_gpu)
sampler = fbuf.Prioritized(alpha=0.6, beta=0.4, eps=1e-3)
buffer = ReplayBuffer(20_000, sampler=sampler, batch_size=BATCH, device=device, seed=SEED)
td_error = torch.zeros(BATCH, device=device)


def learn(batch):
    """Take a weighted step of DQN. All that it reads and writes stays where it is."""
    data = batch.data
    next_value = target_network(data["next_observation"]).max(dim=1).values
    # Bootstrap through a truncation, not through a termination. Values are from 0 to 1.
    target = (1 - GAMMA) * data["reward"] + GAMMA * next_value * ~batch.terminated
    action = data["action"].long()[:, None]
    error = network(data["observation"]).gather(1, action)[:, 0] - target
    optimiser.zero_grad()
    (batch.weight * error.square()).mean().backward()
    optimiser.step()
    td_error.copy_(error.detach().abs())


def captured(batch):
    """Return a call that learns from a batch: on a GPU the replay of a CUDA graph."""
    if not on_gpu:
        return lambda: learn(batch)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # PyTorch wants some steps before it captures one
        for _ in range(3):
            learn(batch)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        learn(batch)
    return graph.replay


def act(observation, epsilon):
    """Return an action: the best one, or by chance any."""
    if torch.rand(()) < epsilon:
        return int(torch.randint(2, ()))
    with torch.no_grad():
        return int(network(torch.as_tensor(observation, device=device)).argmax())


returns, episode_return, batch, step_of_learner = [], 0.0, None, None
observation, _ = env.reset(seed=SEED)
for step in range(STEPS):
    action = act(observation, epsilon=max(0.05, 1 - step / (0.2 * STEPS)))
    next_observation, reward, terminated, truncated, _ = env.step(action)
    row = {"observation": observation, "action": action, "reward": reward}
    row["next_observation"] = next_observation
    buffer.add(row, terminated=terminated, truncated=truncated)
    episode_return += reward
    observation = next_observation
    if terminated or truncated:
        returns.append(episode_return)
        episode_return = 0.0
        observation, _ = env.reset()
    if step >= 500 and step % 2 == 0:
        batch = buffer.sample(beta=0.4 + 0.6 * step / STEPS, out=batch)  # outside of the graph
        step_of_learner = step_of_learner or captured(batch)
        step_of_learner()
        buffer.update_priority(batch.ids, td_error)
    if step % 200 == 0:
        target_network.load_state_dict(network.state_dict())

buffer.raise_on_fault()
print(f"mean return of the last ten episodes: {sum(returns[-10:]) / 10:.0f}")
if sum(returns[-10:]) / 10 < 100:
    sys.exit(f"failed: a mean return of {sum(returns[-10:]) / 10:.0f}, below 100")
print("It learned.")
