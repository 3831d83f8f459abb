"""SAC in PyTorch on Pendulum: with the same `--folder` it goes on from its last save.

Needs `pip install "fbuf[torch]" gymnasium`.
"""

import argparse
import copy
import sys
import tempfile

import gymnasium as gym
import torch
from fbuf_adapters.pytorch import ReplayBuffer
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import fbuf

parser, temporary = argparse.ArgumentParser(description=__doc__), tempfile.TemporaryDirectory()
parser.add_argument("seed", type=int, nargs="?", default=0)
parser.add_argument("--folder", default=temporary.name, help="where the saves lie and stay")
seed, folder = vars(parser.parse_args()).values()
STEPS, SAVE_EVERY, GAMMA, TAU, TARGET_ENTROPY = 6000, 750, 0.98, 0.01, -1
torch.manual_seed(seed)
torch.set_num_threads(1)  # networks this small lose more to threads than they gain


def mlp(inputs, outputs):
    linear, relu = torch.nn.Linear, torch.nn.ReLU()
    return torch.nn.Sequential(linear(inputs, 64), relu, linear(64, 64), relu, linear(64, outputs))


actor, critics = mlp(3, 2), torch.nn.ModuleList([mlp(4, 1), mlp(4, 1)])
actor.log_alpha = torch.nn.Parameter(torch.zeros(()))  # the temperature
target_critics = copy.deepcopy(critics)
optimiser = torch.optim.Adam([*actor.parameters(), *critics.parameters()], lr=1e-3)
parts = {"actor": actor, "critics": critics, "target": target_critics, "optimiser": optimiser}
# Each observation is stored once: with `next_of` the view reads it as the next one, too.
buffer = ReplayBuffer(10_000, next_of="observation", view=fbuf.Transition(), seed=seed)


def act(observation):
    mean, log_std = actor(observation).chunk(2, dim=-1)
    gaussian = Normal(mean, log_std.clamp(-5, 2).exp())
    policy = TransformedDistribution(gaussian, TanhTransform(cache_size=1))
    action = policy.rsample()  # in (-1, 1); the density below is that after tanh
    return action, policy.log_prob(action).sum(dim=-1)


def values(twins, observation, action):
    return torch.cat([critic(torch.cat([observation, action], -1)) for critic in twins], -1)


def learn(batch):
    row, following = batch.data.item, batch.data.next_observation
    alpha = actor.log_alpha.detach().exp()
    with torch.no_grad():
        action, log_prob = act(following)
        value = values(target_critics, following, action).amin(dim=-1) - alpha * log_prob
        # Bootstrap through a truncation, not through a termination.
        target = row["reward"] + GAMMA * value * ~batch.terminated
    optimiser.zero_grad()
    error = values(critics, row["observation"], row["action"]) - target[:, None]
    error.square().sum(dim=-1).mean().backward(inputs=list(critics.parameters()))
    action, log_prob = act(row["observation"])
    value = values(critics, row["observation"], action).amin(dim=-1) - alpha * log_prob
    loss = -value.mean() - actor.log_alpha * (log_prob.detach().mean() + TARGET_ENTROPY)
    loss.backward(inputs=list(actor.parameters()))  # and not the critics
    optimiser.step()
    for slow, fast in zip(target_critics.parameters(), critics.parameters(), strict=True):
        slow.data.lerp_(fast.data, TAU)


first, env = 0, gym.make("Pendulum-v1")
if fbuf.has_checkpoint(folder):
    extra = buffer.load(folder)  # it ends open episodes, because the environment begins anew
    for name, part in parts.items():
        part.load_state_dict(extra[name])
    torch.set_rng_state(extra["random"])
    first = extra["step"]
    print(f"goes on from step {first} with {len(buffer):,} rows", flush=True)
observation, _ = env.reset(seed=seed + first)  # not what the process before began with
for step in range(first, STEPS):
    action = act(torch.as_tensor(observation))[0].detach().numpy()
    following, reward, terminated, truncated, _ = env.step(2 * action)  # torques from -2 to 2
    row = {"observation": observation, "action": action, "reward": reward, "step": step}
    buffer.add(row, terminated=terminated, truncated=truncated, next_observation=following)
    observation = env.reset()[0] if terminated or truncated else following
    if step >= 500:
        learn(buffer.sample(128))
    if (step + 1) % SAVE_EVERY == 0:  # often within an episode, which has 200 steps
        extra = {name: part.state_dict() for name, part in parts.items()}
        extra |= {"random": torch.get_rng_state(), "step": step + 1}
        buffer.save(folder, extra=extra, background=True)
        print(f"{step + 1:>6} steps, return {buffer['reward'][-1000:].sum() / 5:.0f}", flush=True)
fbuf.wait()
buffer.raise_on_fault()
mean_return = buffer["reward"][-1000:].sum() / 5  # of 200 steps each; there is room for all rows
if buffer["step"].tolist() != list(range(STEPS)) or mean_return < -300:
    sys.exit(f"failed: {len(buffer):,} rows of {STEPS:,}; a mean return of {mean_return:.0f}")
print("It learned.")
