"""Prioritised double DQN: environments and replay in JAX, the learner in PyTorch.

    python examples/torch_dqn.py --help

One round of the loop, and where it runs:

1. JAX, one compiled call: all environments take a step with an epsilon-greedy policy, and
   `fbuf.add` writes the transitions into the buffer, in place, for the buffer is donated.
2. JAX: `fbuf.sample` draws a batch by priority.
3. `to_torch`: PyTorch gets tensors on the memory of that batch. Nothing is copied.
4. PyTorch: a step of double DQN, weighted by the importance weights.
5. `from_torch`: the TD errors go back, and `fbuf.update_priority` makes them the priorities.

Every few rounds the network goes to JAX as well, to act with. It is copied, because PyTorch's
optimiser goes on writing into its parameters, and JAX takes arrays never to change.

Needs fbuf[torch], gymnax>=1.0 (and six, which it forgets to ask for), matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import collections
import copy
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
import jax.numpy as jnp
import matplotlib
import torch
from fbuf_adapters.pytorch import from_torch, to_torch
from torch import nn
from tqdm import tqdm

import fbuf

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")

NUM_ENVS = 16
CAPACITY = 100_000
BATCH_SIZE = 128
HIDDEN = 128
SCALE = (1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2)  # brings what is observed to the order of 1
GAMMA = 0.99
REWARD_SCALE = 0.01  # and with it the values, which are sums of up to 100 rewards
LEARNING_RATE = 2e-3  # falls to 0 over the run
TARGET_RATE = 0.05  # how far the target network moves towards the learned one in a step
EPSILON = (1.0, 0.05)  # exploration: from, to
EXPLORATION = 0.2  # the share of the run over which it falls
BETA = (0.4, 1.0)  # importance weights: from, to, over the whole run
WARM_UP = 60  # rounds before the first learner step
SYNC_EVERY = 2  # rounds between copies of the network for acting
TIME_EVERY = 16  # rounds between those whose parts are timed

ROUNDS, QUICK_ROUNDS = 15_000, 3_000
SOLVED, QUICK_BAR = 450.0, 60.0  # a policy that knows nothing gets about 20


# ---- JAX: acting, the environments and the replay memory -------------------------------------


class Actor(NamedTuple):
    """What acting carries from one round to the next."""

    env_state: Any
    observation: jax.Array
    key: jax.Array


def q_values(weights: list[jax.Array], observation: jax.Array) -> jax.Array:
    """The network in JAX: the parameters of PyTorch's `nn.Sequential`, in their order."""
    x = observation * jnp.array(SCALE)
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weight.T + bias)
    return x @ weights[-2].T + weights[-1]


def reset(key: jax.Array) -> Actor:
    """Start all environments."""
    key, reset_key = jax.random.split(key)
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, NUM_ENVS), ENV_PARAMS
    )
    return Actor(env_state, observation, key)


def act(actor: Actor, weights: list[jax.Array], epsilon: jax.Array) -> tuple[Actor, dict, dict]:
    """Take one step in all environments; returns the transitions, and how episodes ended."""
    key, explore_key, action_key, step_key = jax.random.split(actor.key, 4)
    greedy = q_values(weights, actor.observation).argmax(-1)
    explored = jax.random.randint(action_key, (NUM_ENVS,), 0, ENV.num_actions)
    explore = jax.random.uniform(explore_key, (NUM_ENVS,)) < epsilon
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        ENV.step, in_axes=(0, 0, 0, None)
    )(jax.random.split(step_key, NUM_ENVS), actor.env_state, action, ENV_PARAMS)
    transition = {
        "observation": actor.observation,
        "action": action,
        "reward": reward,
        # Not `observation`: where an episode ended, that is already the first one of the next.
        "next_observation": info["final_observation"],
    }
    ends = {"terminated": terminated, "truncated": truncated}
    return Actor(env_state, observation, key), transition, ends


@partial(jax.jit, donate_argnames="buffer")
def act_and_add(
    actor: Actor, buffer: fbuf.State, weights: list[jax.Array], epsilon: jax.Array
) -> tuple[Actor, fbuf.State, jax.Array]:
    """Act and remember, in one program; also returns a key to sample with."""
    actor, transition, ends = act(actor, weights, epsilon)
    # The two ends differ: what follows a terminated step is worth nothing, what follows a
    # truncated one is worth what the network says it is.
    buffer = fbuf.add(buffer, transition, **ends)
    key, sample_key = jax.random.split(actor.key)
    return actor._replace(key=key), buffer, sample_key


@jax.jit
def evaluate(weights: list[jax.Array], key: jax.Array) -> jax.Array:
    """The returns of 100 whole episodes, played greedily."""
    reset_key, step_key = jax.random.split(key)
    start = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(reset_key, 100), ENV_PARAMS)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        observation, env_state, playing, score = carry
        action = q_values(weights, observation).argmax(-1)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(
            ENV.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(key, 100), env_state, action, ENV_PARAMS)
        score += jnp.where(playing, reward, 0)
        return (observation, env_state, playing & ~(terminated | truncated), score), None

    keys = jax.random.split(step_key, ENV_PARAMS.max_steps_in_episode)
    carry = (*start, jnp.ones(100, bool), jnp.zeros(100))
    return jax.lax.scan(step, carry, keys)[0][-1]


# ---- PyTorch: the learner --------------------------------------------------------------------


class Learner:
    """Double DQN with a target network that follows slowly."""

    def __init__(self, device: str) -> None:
        self.network = nn.Sequential(
            nn.Linear(4, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2),
        ).to(device)
        self.scale = torch.tensor(SCALE, device=device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, batch: fbuf.Sample, learning_rate: float) -> torch.Tensor:
        """Learn from a batch; returns the magnitude of each row's TD error."""
        data = batch.data
        now, then = data["observation"] * self.scale, data["next_observation"] * self.scale
        with torch.no_grad():
            best = self.network(then).argmax(1, keepdim=True)
            value = self.target(then).gather(1, best).squeeze(1)
            # Bootstrap through a truncation, not through a termination.
            wanted = REWARD_SCALE * data["reward"] + GAMMA * value * ~batch.terminated
        said = self.network(now).gather(1, data["action"].long().unsqueeze(1)).squeeze(1)
        loss = (batch.weight * nn.functional.smooth_l1_loss(said, wanted, reduction="none")).mean()
        self.optimiser.param_groups[0]["lr"] = learning_rate
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self.optimiser.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.network.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, TARGET_RATE)
        return (said.detach() - wanted).abs()

    def weights(self) -> list[jax.Array]:
        """The network for JAX, as copies: the next step writes into the originals."""
        return from_torch([parameter.detach() for parameter in self.network.parameters()])


# ---- the loop --------------------------------------------------------------------------------


class Clock:
    """Adds up how long each part of some rounds takes; waiting for results belongs to the part."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = collections.defaultdict(list)
        self.since = 0.0

    def start(self) -> None:
        """Start a round."""
        self.since = time.perf_counter()

    def stop(self, part: str, result: Any = None) -> None:
        """End a part, once its result is there."""
        jax.block_until_ready(result)
        now = time.perf_counter()
        self.parts[part].append(now - self.since)
        self.since = now

    def share(self, *parts: str) -> float:
        """The share that parts have of a whole round, by their medians."""
        medians = {name: statistics.median(times) for name, times in self.parts.items()}
        return sum(medians[part] for part in parts) / sum(medians.values())


def same_memory(batch: fbuf.Sample, tensors: fbuf.Sample) -> bool:
    """Whether every tensor lies where the array it came from does."""
    pairs = zip(jax.tree.leaves(batch), jax.tree.leaves(tensors), strict=True)
    return all(array.unsafe_buffer_pointer() == tensor.data_ptr() for array, tensor in pairs)


def ramp(bounds: tuple[float, float], done: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * min(done, 1.0)


def time_of_add(actor: Actor, buffer: fbuf.State, weights: list[jax.Array]) -> float:
    """The share that `fbuf.add` has of the program it is fused into: beside one without it."""
    alone = jax.jit(act)
    epsilon = jnp.float32(EPSILON[1])
    buffer = jax.tree.map(jnp.copy, buffer)
    fused_times, alone_times = [], []
    for _ in range(60):
        start = time.perf_counter()
        _, buffer, _ = jax.block_until_ready(act_and_add(actor, buffer, weights, epsilon))
        between = time.perf_counter()
        jax.block_until_ready(alone(actor, weights, epsilon))
        fused_times.append(between - start)
        alone_times.append(time.perf_counter() - between)
    fused, without = statistics.median(fused_times[10:]), statistics.median(alone_times[10:])
    return max(0.0, 1 - without / fused)


def train(rounds: int, seed: int, device: str) -> tuple[float, list[tuple[int, float]]]:
    """Train, report, and return the final evaluation return and the learning curve."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    started = time.perf_counter()
    key, reset_key, evaluation_key = jax.random.split(jax.random.key(seed), 3)
    actor = jax.jit(reset)(reset_key)
    item = {
        "observation": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "next_observation": jnp.zeros(4),
    }
    buffer = fbuf.init(item, CAPACITY, sampler=fbuf.Prioritized(alpha=0.6, eps=1e-3))
    learner, clock, curve, shared = Learner(device), Clock(), [], None
    weights = learner.weights()
    progress = tqdm(range(rounds), unit="round", mininterval=1.0, disable=None)
    for round_ in progress:
        done = round_ / rounds
        timed = round_ > 2 * WARM_UP and round_ % TIME_EVERY == 0
        if timed:
            jax.block_until_ready(buffer)
            clock.start()
        epsilon = jnp.float32(ramp(EPSILON, done / EXPLORATION))
        actor, buffer, key = act_and_add(actor, buffer, weights, epsilon)
        if timed:
            clock.stop("act and add", buffer)
        if round_ < WARM_UP:
            continue
        batch = fbuf.sample(buffer, key, BATCH_SIZE, beta=ramp(BETA, done))
        if timed:
            clock.stop("sample", batch)
        tensors = to_torch(batch)
        if timed:
            clock.stop("to torch")
        error = learner.step(tensors, LEARNING_RATE * (1 - done))
        if shared is None:
            shared = same_memory(batch, tensors)
        if timed:
            clock.stop("learn")
        priority = from_torch(error)
        if round_ % SYNC_EVERY == 0:
            weights = learner.weights()
        if timed:
            clock.stop("from torch", (priority, weights))
        buffer = fbuf.update_priority(buffer, batch.ids, priority)
        if timed:
            clock.stop("update priorities", buffer)
        if (round_ + 1) % (rounds // 20) == 0:
            curve.append((round_ + 1, float(evaluate(weights, evaluation_key).mean())))
            progress.set_postfix_str(f"return {curve[-1][1]:.0f}")
    seconds = time.perf_counter() - started
    fbuf.raise_on_fault(buffer)
    final = float(evaluate(learner.weights(), jax.random.key(seed + 1)).mean())
    add_share = time_of_add(actor, buffer, weights)
    acting = clock.share("act and add")
    replay = clock.share("sample", "update priorities") + acting * add_share
    print(f"evaluation return   {final:.1f}, the mean of 100 episodes")
    print(
        f"environment steps   {rounds * NUM_ENVS / seconds:,.0f} a second, {seconds:.0f} s in all"
    )
    print(f"time in replay      {replay:.1%}  (sample, update, and add beside acting alone)")
    print(f"time in the bridge  {clock.share('to torch', 'from torch'):.1%}")
    print(f"batch shared        {'yes, all pointers are equal' if shared else 'NO'}")
    if not shared:
        raise SystemExit("the batch was copied on its way to PyTorch")
    return final, curve


def plot(curve: list[tuple[int, float]], path: pathlib.Path) -> None:
    """Save the learning curve."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    rounds, returns = zip(*curve, strict=True)
    axes.plot([r * NUM_ENVS / 1000 for r in rounds], returns, marker="o")
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.text(0, SOLVED, "solved ", va="bottom", color="grey")
    axes.set(
        xlabel="thousand environment steps", ylabel="mean return of 100 episodes", ylim=(0, 520)
    )
    axes.set_title("CartPole-v1: replay in JAX, learner in PyTorch")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = argparse.ArgumentParser(
        description="Prioritised double DQN on CartPole-v1: environments and replay in JAX, "
        "learner in PyTorch, the batch shared without a copy.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of {NUM_ENVS} steps each")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where both frameworks run"
    )
    parser.add_argument(
        "--plot", type=pathlib.Path, default="outputs/torch_dqn.png", help="where the curve goes"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a short form: {QUICK_ROUNDS} rounds, and a return of {QUICK_BAR:.0f} will do",
    )
    options = parser.parse_args()
    if options.rounds < 2 * WARM_UP + 20:
        parser.error(f"--rounds must be at least {2 * WARM_UP + 20}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; leave it out, or install a CUDA build")
    platform = {"cpu": "cpu", "cuda": "gpu"}[options.device]
    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        parser.error(f"--device {options.device}: JAX finds no GPU; install jax[cuda13]")
    rounds, bar = (QUICK_ROUNDS, QUICK_BAR) if options.quick else (options.rounds, SOLVED)
    with jax.default_device(device):
        final, curve = train(rounds, options.seed, options.device)
    plot(curve, options.plot)
    if final < bar:
        sys.exit(f"did not learn: a mean return of {final:.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
