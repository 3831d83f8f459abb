"""Data-parallel prioritised DQN: one replay buffer, its environments and its learner on a mesh.

    python examples/data_parallel_dqn.py --help

Each device steps its own environments and stores their rows in its shards of one buffer. A batch is
drawn from the rows of all devices. Each device learns from its part of it, and the mean of the
gradients goes to all, so that their networks stay equal. All of this is one `lax.scan` in one
`jax.shard_map`, compiled once.

The number of shards is fixed, so batches do not depend on the number of devices. The random numbers
of an environment depend on its number, and not on the device that steps it. Only rounding is left:
`lax.pmean` adds up gradients in an order that depends on the devices. One draw that falls on
another row is then enough to make another agent. With `--exact` gradients are added up in the order
of the shards. One device, four devices, and two processes of two devices each then train the same
agent, bit for bit. `--compare` puts their learning curves over each other.

The devices are simulated: parts of this machine's CPU. JAX has to know how many before it starts.
So this script starts itself again, once for each process of the mesh. The first process only
watches them, draws the progress and the picture, and ends all of them if one fails.

Needs gymnax>=1.0 (and six, which gymnax does not declare), optax, matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec
from tqdm import tqdm

import fbuf

AXIS = "data"
SPLIT, SAME = PartitionSpec(AXIS), PartitionSpec()  # an equal part for each device; all on each

SHARDS = 4  # of the buffer, on any number of devices
NUM_ENVS = 64  # these, and all sizes below, are of all devices together
CAPACITY = 409_600
BATCH_SIZE = 256
HIDDEN = 128
SCALE = (1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2)  # brings what is observed to the order of 1
ACTIONS = 2
GAMMA = 0.99
REWARD_SCALE = 0.01  # and with it the values, which are sums of up to 100 rewards
LEARNING_RATE = 3e-3  # falls to 0 over the run, as a square: late steps are small
TARGET_RATE = 0.03  # how far the target network moves towards the learned one in a step
EPSILON = 0.05  # after falling from 1 over the first fifth of the run
WARM_UP = 1024  # rows in the buffer before learning begins

ROUNDS, QUICK_ROUNDS = 8_000, 100
EVALUATIONS, EPISODES = 20, 128
SOLVED = 450.0  # a new network gets about 20 on average

Weights = list[tuple[jax.Array, jax.Array]]
Report = Callable[[dict[str, Any]], None]


# ---- on the mesh -------------------------------------------------------------------------------


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights
    target: Weights
    optimiser: Any
    buffer: fbuf.sharded.ShardedState
    env_keys: jax.Array  # one for each environment
    env_state: Any
    observation: jax.Array
    round: jax.Array


@functools.cache
def environment() -> tuple[Any, Any]:
    """CartPole, and its parameters."""
    import gymnax  # starts JAX, which must have been told of its devices

    return gymnax.make("CartPole-v1")


def q_values(weights: Weights, observation: jax.Array) -> jax.Array:
    """A network of two hidden layers."""
    x = observation * jnp.array(SCALE)
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ weights[-1][0] + weights[-1][1]


def initial_weights(key: jax.Array) -> Weights:
    """Uniform in the reach of one over the root of a layer's inputs."""
    sizes = ((4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ACTIONS))
    weights = []
    for (inputs, outputs), layer in zip(sizes, jax.random.split(key, 3), strict=True):
        reach = inputs**-0.5
        one, two = jax.random.split(layer)
        weights.append(
            (
                jax.random.uniform(one, (inputs, outputs), minval=-reach, maxval=reach),
                jax.random.uniform(two, (outputs,), minval=-reach, maxval=reach),
            )
        )
    return weights


def optimiser(rounds: int) -> optax.GradientTransformation:
    """Adam, with a learning rate that falls to 0."""
    return optax.adam(optax.polynomial_schedule(LEARNING_RATE, 0.0, 2, rounds))


def keys_of(key: jax.Array, count: int) -> jax.Array:
    """A key for each of this device's part of so many environments, or episodes.

    They follow from the numbers of these among all. So they are the same on any number of devices.
    """
    here = count // lax.axis_size(AXIS)
    numbers = lax.axis_index(AXIS) * here + jnp.arange(here)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def td_error(weights: Weights, target: Weights, batch: fbuf.sharded.ShardedSample) -> jax.Array:
    """Double DQN: the learned network chooses, the target network values."""
    data = batch.data
    best = q_values(weights, data["next_observation"]).argmax(-1)
    then = q_values(target, data["next_observation"])
    value = jnp.take_along_axis(then, best[:, None], 1)[:, 0]
    # Bootstrap through a truncation, not through a termination.
    wanted = REWARD_SCALE * data["reward"] + GAMMA * value * ~batch.terminated
    said = jnp.take_along_axis(q_values(weights, data["observation"]), data["action"][:, None], 1)
    return said[:, 0] - lax.stop_gradient(wanted)


def by_shard(function: Callable[[Any], Any], tree: Any) -> Any:
    """Call a function with as much as one shard's part of this device's rows, one after another.

    The arrays that it sees have the same shapes on any number of devices.
    """
    here = SHARDS // lax.axis_size(AXIS)

    def divided(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(here, len(leaf) // here, *leaf.shape[1:])

    return lax.map(function, jax.tree.map(divided, tree))


def mean_in_order(parts: jax.Array) -> jax.Array:
    """The mean over all parts of all devices, added up in the order of the parts.

    `pmean` adds up what each device has added up before, so rounding depends on the devices.
    """
    here = SHARDS // lax.axis_size(AXIS)
    nothing = jnp.zeros((SHARDS, *parts.shape[1:]))
    mine = lax.dynamic_update_slice_in_dim(nothing, parts, lax.axis_index(AXIS) * here, 0)
    everyones = lax.psum(mine, AXIS)  # adds zeros to each part, which is exact
    return sum(everyones[1:], start=everyones[0]) / SHARDS


def flattened(tree: Any) -> tuple[Callable[[Any], jax.Array], Callable[[jax.Array], Any]]:
    """Ways from such a tree to one array, and back: one message costs less than many."""
    return lambda tree: ravel_pytree(tree)[0], ravel_pytree(tree)[1]


def train_round(
    training: Training, _: None, key: jax.Array, rounds: int, exact: bool
) -> tuple[Training, tuple[jax.Array, jax.Array]]:
    """One step in every environment, and one of learning. Also returns the loss and faults."""
    env, env_params = environment()
    done = training.round / rounds
    keys = jax.vmap(jax.random.fold_in, (0, None))(training.env_keys, training.round)
    explore_key, action_key, step_key = jax.vmap(
        functools.partial(jax.random.split, num=3), out_axes=1
    )(keys)
    greedy = q_values(training.weights, training.observation).argmax(-1)
    explored = jax.vmap(lambda key: jax.random.randint(key, (), 0, ACTIONS))(action_key)
    epsilon = jnp.maximum(EPSILON, 1 - done / 0.2)
    explore = jax.vmap(jax.random.uniform)(explore_key) < epsilon
    action = jnp.where(explore, explored, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        env.step, in_axes=(0, 0, 0, None)
    )(step_key, training.env_state, action, env_params)
    transition = {
        "observation": training.observation,
        "action": action,
        "reward": reward,
        # Not `observation`: at the end of an episode that is the first one of the next episode.
        "next_observation": info["final_observation"],
    }
    # Rows of this device's environments go into its shards: nothing is sent.
    buffer = fbuf.add(training.buffer, transition, terminated=terminated, truncated=truncated)

    # The key is the same on all devices, and the batch is of all devices. This is its part here.
    ready = fbuf.size(buffer) >= WARM_UP
    sample_key = jax.random.fold_in(key, training.round)
    batch = fbuf.sample(buffer, sample_key, BATCH_SIZE, beta=0.4 + 0.6 * done)

    def loss(weights: Weights, part: Any) -> tuple[jax.Array, jax.Array]:
        error = td_error(weights, training.target, part)
        return (ready * part.weight * error**2).mean(), jnp.abs(error)

    # Without this JAX knows that the weights are the same everywhere, and adds up the gradients of
    # all devices on its own. The mean would then be one of sums.
    own = lax.pcast(training.weights, AXIS, to="varying")
    flat, unflat = flattened((jnp.float32(0), own))
    of_part = functools.partial(jax.value_and_grad(loss, has_aux=True), own)
    if exact:
        (value, error), gradient = by_shard(of_part, dataclasses.replace(batch, fault=None))
        together = mean_in_order(jax.vmap(flat)((value, gradient)))
    else:
        (value, error), gradient = of_part(batch)
        together = lax.pmean(flat((value, gradient)), AXIS)
    value, gradient = unflat(together)
    updates, state = optimiser(rounds).update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    target = optax.incremental_update(weights, training.target, TARGET_RATE)
    # Ids name rows of all shards: each priority goes to where its row is.
    buffer = fbuf.update_priority(buffer, batch.ids, error.reshape(-1), mask=ready)
    after = training._replace(
        weights=weights,
        target=target,
        optimiser=state,
        buffer=buffer,
        env_state=env_state,
        observation=observation,
        round=training.round + 1,
    )
    return after, (value, batch.fault)


def evaluate(weights: Weights, key: jax.Array) -> jax.Array:
    """The mean return of the greedy policy over whole episodes; each device plays some of them."""
    env, env_params = environment()
    reset_keys = keys_of(key, EPISODES)
    observation, env_state = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, env_params)
    # These begin as the same on all devices, and a scan wants to know that they will not stay so.
    constants = (env_state.time, jnp.ones(len(reset_keys), bool), jnp.zeros(len(reset_keys)))
    clock, playing, score = lax.pcast(constants, AXIS, to="varying")

    def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
        observation, env_state, playing, score = carry
        keys = jax.vmap(jax.random.fold_in, (0, None))(reset_keys, number)
        action = q_values(weights, observation).argmax(-1)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(
            env.step, in_axes=(0, 0, 0, None)
        )(keys, env_state, action, env_params)
        score += jnp.where(playing, reward, 0)
        return (observation, env_state, playing & ~(terminated | truncated), score), None

    carry = (observation, env_state.replace(time=clock), playing, score)
    numbers = jnp.arange(env_params.max_steps_in_episode)
    return lax.pmean(lax.scan(step, carry, numbers)[0][-1].mean(), AXIS)


def start(mesh: Mesh, seed: int, rounds: int) -> tuple[Training, Training]:
    """A new agent, its environments and an empty buffer; and how all this lies on the mesh."""
    env, env_params = environment()
    item = {
        "observation": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": 0.0,
        "next_observation": jnp.zeros(4),
    }
    buffer = fbuf.sharded.init(
        item,
        CAPACITY,
        mesh=mesh,
        shards=SHARDS,
        num_envs=NUM_ENVS,
        sampler=fbuf.Prioritized(alpha=0.6, eps=1e-3),
    )
    specs = Training(
        weights=SAME,
        target=SAME,
        optimiser=SAME,
        buffer=fbuf.sharded.specs(buffer),
        env_keys=SPLIT,
        env_state=SPLIT,
        observation=SPLIT,
        round=SAME,
    )

    def make(buffer: fbuf.sharded.ShardedState) -> Training:
        weights_key, env_key = jax.random.split(jax.random.key(seed))
        weights = initial_weights(weights_key)
        reset_keys, env_keys = jax.vmap(jax.random.split, out_axes=1)(keys_of(env_key, NUM_ENVS))
        observation, env_state = jax.vmap(env.reset, in_axes=(0, None))(reset_keys, env_params)
        return Training(
            weights=weights,
            target=weights,
            optimiser=optimiser(rounds).init(weights),
            buffer=buffer,
            env_keys=env_keys,
            env_state=env_state,
            observation=observation,
            round=jnp.int32(0),
        )

    on_each = jax.shard_map(make, mesh=mesh, in_specs=(specs.buffer,), out_specs=specs)
    return jax.jit(on_each, donate_argnums=0)(buffer), specs


def train(seed: int, rounds: int, exact: bool, report: Report) -> None:
    """Train on all devices that JAX has. Every process of the mesh calls this."""
    since = time.perf_counter()
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,))
    training, specs = start(mesh, seed, rounds)
    sample_key, evaluation_key = jax.random.split(jax.random.key(seed + 2**31))

    def stretch(training: Training) -> tuple[Training, jax.Array, jax.Array, jax.Array]:
        body = functools.partial(train_round, key=sample_key, rounds=rounds, exact=exact)
        training, (losses, faults) = lax.scan(body, training, None, length=rounds // EVALUATIONS)
        key = jax.random.fold_in(evaluation_key, training.round)
        return training, evaluate(training.weights, key), losses, faults.max()

    on_each = jax.shard_map(
        stretch, mesh=mesh, in_specs=(specs,), out_specs=(specs, SAME, SAME, SAME)
    )
    program = jax.jit(on_each, donate_argnums=0).lower(training).compile()
    started = time.perf_counter()
    report({"compiled": started - since})
    for _ in range(EVALUATIONS):
        training, mean_return, losses, fault = program(training)
        report({"return": float(mean_return), "losses": losses.tolist()})
        if fault:
            raise RuntimeError(f"a batch is masked: {fbuf.Fault(int(fault))!r}")
    fbuf.raise_on_fault(training.buffer)
    report({"seconds": time.perf_counter() - started})


def be_process(address: str, number: str, options: argparse.Namespace) -> None:
    """Be a process of the mesh. The first one reports in lines of JSON."""

    def watch() -> None:
        sys.stdin.read()  # ends when the process that started this one is gone, however it ended
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo prints of its own accord
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.devices // options.processes)
        if options.processes > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(address, options.processes, int(number))

        def report(found: dict[str, Any]) -> None:
            if number == "0":
                print(json.dumps(found), file=reports, flush=True)

        train(options.seed, options.steps // NUM_ENVS, options.exact, report)
    except BaseException:
        # JAX would wait at its exit for the other processes, and they wait for this one.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


# ---- in the process that was started by hand -----------------------------------------------------


class Setting(NamedTuple):
    """Where to train, and how gradients are added up."""

    devices: int
    processes: int = 1
    exact: bool = True

    @property
    def name(self) -> str:
        """For people."""
        each = self.devices // self.processes
        where = f"{each} device{'s' * (each > 1)}"
        if self.processes > 1:
            where = f"{self.processes} processes of {where}"
        return where if self.exact else f"{where}, pmean"


class Curve(NamedTuple):
    """The results of a run."""

    setting: Setting
    returns: np.ndarray  # one for each evaluation
    losses: np.ndarray  # one for each round
    seconds: float


COMPARED = (Setting(1), Setting(4), Setting(4, 2), Setting(4, exact=False))
QUICK = (Setting(1), Setting(4, 2))


def run(setting: Setting, seed: int, rounds: int, flags: str = "") -> Curve:
    """Start the processes of a mesh, and wait for them. Exits if one of them fails.

    `flags` are more flags for XLA.
    """
    with socket.socket() as found:
        found.bind(("localhost", 0))
        address = f"localhost:{found.getsockname()[1]}"
    devices, processes, exact = setting
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()  # XLA reads a blank as a file name
    command = [sys.executable, __file__, "--seed", seed, "--steps", rounds * NUM_ENVS]
    command += ["--exact"] * exact + ["--devices", devices, "--processes", processes]
    command += ["--of-mesh", address]
    events: queue.Queue[dict[str, Any] | None] = queue.Queue()
    returns, losses, seconds = [], [], 0.0
    each = rounds // EVALUATIONS * NUM_ENVS
    progress = tqdm(desc=setting.name, total=each * EVALUATIONS, unit=" steps", disable=None)
    with tempfile.TemporaryDirectory() as folder:
        errors = [pathlib.Path(folder, f"errors of {number}") for number in range(processes)]
        children = []
        try:
            for number, path in enumerate(errors):
                with path.open("wb") as stderr:
                    child = subprocess.Popen(
                        [*map(str, command), str(number)],
                        stdin=subprocess.PIPE,  # it closes with this process, and they end
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        env={**os.environ, "XLA_FLAGS": flags},
                        start_new_session=True,  # Ctrl-C is for this process, which ends them
                    )
                children.append(child)
            threading.Thread(target=_listen, args=(children[0], events), daemon=True).start()
            while event := _next(events, children, errors):
                if "compiled" in event:
                    progress.write(f"{setting.name}: compiled in {event['compiled']:.0f} s")
                if "return" in event:
                    returns.append(event["return"])
                    losses += event["losses"]
                    progress.set_postfix_str(f"return {returns[-1]:.1f}", refresh=False)
                    progress.update(each)
                seconds = event.get("seconds", seconds)
        finally:
            progress.close()
            for child in children:
                child.kill()
            for child in children:
                child.wait()
    return Curve(setting, np.array(returns), np.array(losses), seconds)


def _listen(child: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]) -> None:
    """Pass on what a process reports, and None when it ends."""
    try:
        for line in child.stdout or ():
            events.put(json.loads(line))
    finally:
        events.put(None)


def _next(
    events: queue.Queue[dict[str, Any] | None],
    children: list[subprocess.Popen[bytes]],
    errors: list[pathlib.Path],
) -> dict[str, Any] | None:
    """The next report, or None when all processes have ended well. Exits if one fails."""
    reports = True
    while True:
        ended = {number: child.poll() for number, child in enumerate(children)}
        failed = {number: status for number, status in ended.items() if status}
        if failed:
            # A process whose neighbour dies fails soon after, so this may be more than one.
            for number in failed:
                tail = errors[number].read_text(errors="replace").splitlines()[-30:]
                print(f"\n--- process {number} ---", *tail, sep="\n", file=sys.stderr)
            what = " and ".join(f"process {number} {_fate(failed[number])}" for number in failed)
            sys.exit(f"failed: {what}; all others were ended")
        if not reports and None not in ended.values():
            return None
        try:
            event = events.get(timeout=0.05)
        except queue.Empty:
            continue
        if event is not None:
            return event
        reports = False


def _fate(status: int) -> str:
    """Return in words how a process has ended."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def report_on(curves: list[Curve]) -> None:
    """Print what the runs got, and how far the others are from the first one."""
    first, width = curves[0], max(len(curve.setting.name) for curve in curves)
    for curve in curves:
        line = f"{curve.setting.name:<{width}}   return {curve.returns[-1]:5.1f}"
        line += f"   {curve.seconds:4.0f} s"
        if curve is not first:
            apart = np.abs(curve.returns - first.returns).max()
            line += f"   curves differ by up to {apart:.1f}; losses "
            differ = curve.losses != first.losses
            if differ.any():
                far = np.abs(curve.losses - first.losses) > 0.01 * np.abs(first.losses)
                line += f"differ from round {differ.argmax()} on"
                line += f", by 1 % from round {far.argmax()} on" if far.any() else ""
            else:
                line += "are equal, bit for bit"
        print(line)


def plot(curves: list[Curve], rounds: int, path: pathlib.Path) -> None:
    """Save the learning curves. Equal ones are drawn ever thinner, so that all can be seen."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    steps = np.arange(1, EVALUATIONS + 1) * (rounds // EVALUATIONS) * NUM_ENVS / 1000
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    looks = [("#a6cbe8", 8.0, "-"), ("#2b6cb0", 3.5, "-"), ("#dd6b20", 1.5, "--"), ("grey", 1, ":")]
    for curve, (color, width, style) in zip(curves, looks[len(curves) == 1 :], strict=False):
        axes.plot(
            steps, curve.returns, style, color=color, linewidth=width, label=curve.setting.name
        )
    axes.set(
        xlabel="environment steps (thousands)",
        ylabel=f"mean return of {EPISODES} episodes",
        xlim=(0, None),
        ylim=(0, 520),
        yticks=(0, 100, 200, 300, 400, SOLVED, 500),
        title="CartPole-v1: a DQN with one buffer over a mesh",
    )
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curve      {path}")


def make_parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description="Data-parallel prioritised DQN on CartPole-v1, on simulated devices of this "
        f"machine: one replay buffer of {SHARDS} shards over all of them. At the end the agent "
        f"plays {EPISODES} episodes. Exits with an error if it did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, in all processes")
    parser.add_argument(
        "--devices",
        type=int,
        default=4,
        help=f"how many devices there are in all; they must divide the {SHARDS} shards",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="how many processes have these devices"
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="add up gradients in the order of the shards, not by pmean; then training is the "
        "same, bit for bit, on any number of devices",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="train on 1 device, on 4, and in 2 processes of 2 devices, all with --exact; and on 4 "
        "with pmean. Fails if the exact ones are not the same",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=ROUNDS * NUM_ENVS,
        help=f"environment steps of all environments together; each round takes {NUM_ENVS} of "
        f"them, and learns from one batch. The mean return must then be {SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs, not that it learns: "
        f"{QUICK_ROUNDS * NUM_ENVS} steps on 1 device and in 2 processes, which must do the same",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/data_parallel_dqn.png",
        help="where the picture of the learning curves goes",
    )
    parser.add_argument("--of-mesh", nargs=2, help=argparse.SUPPRESS)  # the address, the number
    return parser


def main() -> None:
    """Read the command line, train, and fail if nothing was learned."""
    parser = make_parser()
    options = parser.parse_args()
    devices, processes = options.devices, options.processes
    rounds = QUICK_ROUNDS if options.quick else options.steps // NUM_ENVS
    if rounds < EVALUATIONS:
        parser.error(f"there must be at least {EVALUATIONS * NUM_ENVS} steps")
    if devices < 1 or SHARDS % devices:
        fit = ", ".join(str(count) for count in range(1, SHARDS + 1) if SHARDS % count == 0)
        parser.error(
            f"{devices} devices cannot have equal parts of {SHARDS} shards; take one of {fit}"
        )
    if processes < 1 or devices % processes:
        parser.error(f"{processes} processes cannot have equal parts of {devices} devices")
    if options.of_mesh:
        be_process(*options.of_mesh, options)
        return
    settings = (Setting(devices, processes, options.exact),)
    if options.quick or options.compare:
        settings = QUICK if options.quick else COMPARED
    # A program that runs for a moment only is not worth the time to optimise it.
    flags = "--xla_backend_optimization_level=0" if options.quick else ""
    try:
        curves = [run(setting, options.seed, rounds, flags) for setting in settings]
    except KeyboardInterrupt:
        sys.exit("stopped; all processes were ended")
    report_on(curves)
    plot(curves, rounds, options.plot)
    exact = [curve.losses for curve in curves if curve.setting.exact]
    if not all(np.array_equal(losses, exact[0]) for losses in exact[1:]):
        sys.exit("failed: training was not the same on all numbers of devices")
    final = curves[0].returns[-1]
    if not options.quick and final < SOLVED:
        sys.exit(f"failed: a mean return of {final:.1f}, below {SOLVED:.0f}")


if __name__ == "__main__":
    main()
