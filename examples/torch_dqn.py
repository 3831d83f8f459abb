"""Prioritised double DQN: environments and replay in JAX, the learner in PyTorch.

    python examples/torch_dqn.py --help

One round of the loop, and where it runs:

1. JAX, in one compiled call: all environments take a step with an epsilon-greedy policy, and
   `fbuf.add` writes the transitions into the buffer. The buffer is donated, so this is in place.
2. JAX: `fbuf.sample` draws a batch by priority.
3. `to_torch`: PyTorch gets tensors on the memory of that batch. Nothing is copied.
4. PyTorch: a step of double DQN, weighted by the importance weights.
5. `from_torch`: the TD errors go back to JAX, and `fbuf.update_priority` stores them.

Every few rounds JAX gets the network, too, to act with. It gets a copy, because PyTorch's optimiser
keeps writing into the parameters, and JAX relies on arrays not to change.

Needs fbuf[torch], gymnax>=1.0 (and six, which gymnax does not declare), matplotlib and tqdm.
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
LEARNING_RATE = 1e-3  # falls to 0 over the run, as a square: late steps are small
TARGET_RATE = 0.03  # how far the target network moves towards the learned one in a step
EPSILON = (1.0, 0.05)  # exploration: from, to
EXPLORATION = 0.2  # the share of the run over which it falls
BETA = (0.4, 1.0)  # importance weights: from, to, over the whole run
EVALUATIONS = 20  # on the way, for the learning curve
WARM_UP = 60  # rounds before the first learner step
SYNC_EVERY = 10  # rounds between copies of the network for acting
TIME_EVERY = 27  # rounds between those whose parts are timed; shares no factor with SYNC_EVERY

ROUNDS, QUICK_ROUNDS = 20_000, 3_000
SOLVED = 450.0
QUICK_BAR, QUICK_GAIN = 100.0, 50.0  # a new network gets about 10, a lucky one 150: so it must gain


# ---- JAX: acting, the environments and the replay memory -------------------------------------


class Actor(NamedTuple):
    """The state of acting, carried from one round to the next."""

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
        # Not `observation`: at the end of an episode that is the first one of the next episode.
        "next_observation": info["final_observation"],
    }
    ends = {"terminated": terminated, "truncated": truncated}
    return Actor(env_state, observation, key), transition, ends


@partial(jax.jit, donate_argnames="buffer")
def act_and_add(
    actor: Actor, buffer: fbuf.State, weights: list[jax.Array], epsilon: jax.Array
) -> tuple[Actor, fbuf.State, jax.Array]:
    """Act and add to the buffer, in one program; also returns a key to sample with."""
    actor, transition, ends = act(actor, weights, epsilon)
    # The two ends differ: after a termination the value is 0, after a truncation it is what
    # the network says.
    buffer = fbuf.add(buffer, transition, **ends)
    key, sample_key = jax.random.split(actor.key)
    return actor._replace(key=key), buffer, sample_key


@jax.jit
def evaluate(weights: list[jax.Array], key: jax.Array) -> jax.Array:
    """The returns of the greedy policy in 100 whole episodes."""
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
        loss = (batch.weight * (said - wanted) ** 2).mean()
        self.optimiser.param_groups[0]["lr"] = learning_rate
        self.optimiser.zero_grad()
        loss.backward()
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
    """Times the parts of some rounds; those rounds wait for each part's result, others do not."""

    def __init__(self, device: str) -> None:
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.running = False
        self._device = device
        self._since = 0.0

    def start(self, running: bool) -> None:
        """Begin a round, or a part that counts for nothing before it."""
        self.running = running
        self._since = time.perf_counter()

    def stop(self, part: str, result: Any = None) -> None:
        """End a part, once its result is there."""
        if self.running:
            jax.block_until_ready(result)
            if self._device == "cuda":
                torch.cuda.synchronize()
            self.seconds[part].append(time.perf_counter() - self._since)
            self._since = time.perf_counter()

    def per_round(self) -> dict[str, float]:
        """The seconds each part takes in a round: its median, by how often it comes in one."""
        rounds = len(self.seconds["learn"])
        typical = {
            part: statistics.median(times) * len(times) / rounds
            for part, times in self.seconds.items()
        }
        # `add` is fused with acting: it is what acting takes more than without it.
        acting = typical.pop("act alone")
        together = typical.pop("act and add")
        return {"act": min(acting, together), "add": max(together - acting, 0.0), **typical}


def same_memory(batch: fbuf.Sample, tensors: fbuf.Sample) -> bool:
    """Whether every tensor lies where the array it came from does."""
    pairs = zip(jax.tree.leaves(batch), jax.tree.leaves(tensors), strict=True)
    return all(array.unsafe_buffer_pointer() == tensor.data_ptr() for array, tensor in pairs)


def ramp(bounds: tuple[float, float], done: float) -> float:
    """The first bound at the start, the second from `done=1` on."""
    return bounds[0] + (bounds[1] - bounds[0]) * min(done, 1.0)


def train(rounds: int, seed: int, device: str) -> tuple[float, list[tuple[int, float]]]:
    """Train, report, and return the final evaluation return and the learning curve."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small lose more to threads than they gain
    reset_key, evaluation_key, final_key = jax.random.split(jax.random.key(seed), 3)
    learner, clock, curve, compared = Learner(device), Clock(device), [], []
    weights = learner.weights()
    actor = reset(reset_key)
    # The item is one row of what `act` gives to `add`. Only its shapes are computed.
    transitions = jax.eval_shape(act, actor, weights, 1.0)[1]
    item = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), transitions)
    sampler = fbuf.Prioritized(alpha=0.6, eps=1e-3)
    buffer = fbuf.init(item, CAPACITY, num_envs=NUM_ENVS, sampler=sampler)
    # Arrays from PyTorch are committed to their device. Commit the others, too, or JAX compiles
    # everything once more when the two meet.
    actor, buffer = jax.device_put((actor, buffer), weights[0].device)

    def note(steps: int) -> None:
        curve.append((steps, float(evaluate(learner.weights(), evaluation_key).mean())))
        progress.write(f"{steps:>9,} steps   return {curve[-1][1]:5.1f}")

    act_alone = jax.jit(act)  # only to be timed beside `act_and_add`
    jax.block_until_ready(act_alone(actor, weights, EPSILON[0]))
    progress = tqdm(total=rounds * NUM_ENVS, unit=" steps", mininterval=0.5, disable=None)
    note(0)
    for now in range(rounds):
        done = now / rounds
        epsilon = ramp(EPSILON, done / EXPLORATION)
        timed = now > 2 * WARM_UP and now % TIME_EVERY == 0
        if timed:
            jax.block_until_ready((buffer, act_alone(actor, weights, epsilon)))  # nothing is left
            clock.start(timed)
            clock.stop("act alone", act_alone(actor, weights, epsilon))
        else:
            clock.start(timed)
        actor, buffer, key = act_and_add(actor, buffer, weights, epsilon)
        clock.stop("act and add", buffer)
        progress.update(NUM_ENVS)
        if now < WARM_UP:
            continue

        clock.start(timed)
        batch = fbuf.sample(buffer, key, BATCH_SIZE, beta=ramp(BETA, done))
        clock.stop("sample", batch)
        tensors = to_torch(batch)
        clock.stop("batch to PyTorch")
        if timed or not compared:
            compared.append(same_memory(batch, tensors))
        clock.start(timed)
        error = learner.step(tensors, LEARNING_RATE * (1 - done) ** 2)
        clock.stop("learn")
        priority = from_torch(error)
        clock.stop("errors to JAX", priority)
        buffer = fbuf.update_priority(buffer, batch.ids, priority)
        clock.stop("update priorities", buffer)
        if now % SYNC_EVERY == 0:
            weights = learner.weights()
            clock.stop("network to JAX", weights)

        if (now + 1) % (rounds // EVALUATIONS) == 0:
            note((now + 1) * NUM_ENVS)
    progress.close()
    fbuf.raise_on_fault(buffer)
    seconds = time.perf_counter() - started
    final = float(evaluate(learner.weights(), final_key).mean())
    report(final, rounds * NUM_ENVS, seconds, clock.per_round(), compared)
    return final, curve


def report(
    final: float, steps: int, seconds: float, parts: dict[str, float], compared: list[bool]
) -> None:
    """Print how it went; fail if a batch was copied."""

    def share(*names: str) -> str:
        return f"{sum(parts[name] for name in names) / sum(parts.values()):.1%}"

    print(f"\nevaluation return   {final:.1f}, the mean of 100 episodes played greedily")
    print(f"environment steps   {steps:,}: {steps / seconds:,.0f} a second")
    print(f"wall time           {seconds:.0f} s, with compiling and the evaluations on the way")
    print(f"in replay           {share('add', 'sample', 'update priorities')} of a round")
    bridge = share("batch to PyTorch", "errors to JAX", "network to JAX")
    print(f"in the bridge       {bridge} of a round")
    print(
        f"a round             {1e6 * sum(parts.values()):,.0f} us; every {TIME_EVERY}th was timed"
    )
    for part, typical in parts.items():
        print(f"    {part:<20}{1e6 * typical:6.0f} us")
    equal = f"{sum(compared)} of {len(compared)}"
    print(f"shared memory       {equal} batches looked at, the first one included, had all")
    print("                    leaves at the same address in JAX and in PyTorch")
    if not all(compared):
        sys.exit("failed: a batch was copied on its way to PyTorch")


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
        ylabel="mean return of 100 episodes",
        xlim=(0, None),
        ylim=(0, 520),
        yticks=(0, 100, 200, 300, 400, SOLVED, 500),
        title="CartPole-v1: replay in JAX, learner in PyTorch",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = argparse.ArgumentParser(
        description="Prioritised double DQN on CartPole-v1: environments and replay in JAX, the "
        "learner in PyTorch, batches shared without a copy. At the end it plays 100 episodes, and "
        "says what the time went into. Exits with an error if it did not learn or if a batch was "
        "copied.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the environments, the network and the sampling"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps in all; each round takes {NUM_ENVS} of them, one in every "
        f"environment, and learns from one batch. The mean return must then be {SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: "
        f"{QUICK_ROUNDS * NUM_ENVS} steps, and a mean return of {QUICK_BAR:.0f} will do if it is "
        f"{QUICK_GAIN:.0f} more than before training",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where both libraries run; networks this small are fastest on the CPU",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/torch_dqn.png",
        help="where the picture of the learning curve goes",
    )
    options = parser.parse_args()
    least = 2 * WARM_UP + SYNC_EVERY * TIME_EVERY  # so that every part has been timed
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
    bar = max(QUICK_BAR, curve[0][1] + QUICK_GAIN) if options.quick else SOLVED
    if final < bar:
        sys.exit(f"failed: a mean return of {final:.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
