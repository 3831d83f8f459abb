"""DQN in PyTorch that is killed, and goes on from its last save with another environment seed.

Needs `pip install "fbuf[torch]" gymnasium`.
"""

import copy
import os
import signal
import subprocess
import sys
import tempfile

import gymnasium as gym
import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS, SAVE_EVERY, GAMMA = 10_000, 1000, 0.98
torch.manual_seed(SEED)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain

linear, relu = torch.nn.Linear, torch.nn.ReLU()
network = torch.nn.Sequential(linear(4, 64), relu, linear(64, 64), relu, linear(64, 2))
target_network = copy.deepcopy(network)
optimiser = torch.optim.Adam(network.parameters(), lr=5e-4)
parts = {"network": network, "target_network": target_network, "optimiser": optimiser}
# Each observation is stored once: with `next_of` the view reads it as the next one, too.
buffer = ReplayBuffer(20_000, next_of="observation", view=fbuf.Transition(), int64=True, seed=SEED)


def learn(batch):
    row, next_observation = batch.data.item, batch.data.next_observation
    with torch.no_grad():
        next_value = target_network(next_observation).max(dim=1).values
        # Bootstrap through a truncation, not through a termination. Values are from 0 to 1.
        target = (1 - GAMMA) * row["reward"] + GAMMA * next_value * ~batch.terminated
    chosen = network(row["observation"]).gather(1, row["action"][:, None])[:, 0]
    optimiser.zero_grad()
    (chosen - target).square().mean().backward()
    optimiser.step()


@torch.no_grad()
def act(observation, epsilon):
    best = network(torch.as_tensor(observation)).argmax()
    return int(torch.randint(2, ()) if torch.rand(()) < epsilon else best)


def run(folder, killed_at=None):
    """Train from the beginning, or from the last save in the folder; return where it began."""
    first = 0
    if fbuf.has_checkpoint(folder):
        # Open episodes are ended, because the environment of this process begins anew.
        extra = buffer.load(folder)
        for name, part in parts.items():
            part.load_state_dict(extra[name])
        torch.set_rng_state(extra["random"])
        first = extra["step"]
        print(f"goes on from step {first} with {len(buffer):,} rows")
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=SEED + first)  # not what the killed process began with
    for step in range(first, STEPS):
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        action = act(observation, epsilon=max(0.05, 1 - step / (0.2 * STEPS)))
        following, reward, terminated, truncated, _ = env.step(action)
        row = {"observation": observation, "action": action, "reward": reward, "step": step}
        buffer.add(row, terminated=terminated, truncated=truncated, next_observation=following)
        observation = env.reset()[0] if terminated or truncated else following
        if step >= 500 and step % 2 == 0:
            learn(buffer.sample(128))
        if step % 200 == 0:
            target_network.load_state_dict(network.state_dict())
        if (step + 1) % SAVE_EVERY == 0:
            extra = {name: part.state_dict() for name, part in parts.items()}
            extra |= {"random": torch.get_rng_state(), "step": step + 1}
            buffer.save(folder, extra=extra, background=True)
    fbuf.wait()  # for the last save
    return first


if len(sys.argv) > 2:  # in the process that is to be killed
    run(sys.argv[2], killed_at=4900)
with tempfile.TemporaryDirectory() as folder:
    code = subprocess.call([sys.executable, __file__, str(SEED), folder])
    print(f"a process ended with the code {code}")
    first = run(folder)

buffer.raise_on_fault()
updates = int(optimiser.state_dict()["state"][0]["step"])  # Adam counts them
lengths = [len(episode["step"]) for episode in buffer.episodes()]
mean_return = sum(lengths[-11:-1]) / 10  # CartPole gives a reward of 1 a step; one is still open
print(f"{len(buffer):,} rows, {updates:,} updates; the mean return is {mean_return:.0f}")
if first != 4000 or updates != 4750 or buffer["step"].tolist() != list(range(STEPS)):
    sys.exit("failed: something was lost, or done twice")
if mean_return < 100:
    sys.exit(f"failed: a mean return of {mean_return:.0f}, below 100")
print("Nothing but the rows since the last save was lost, and it learned.")
