"""The buffer for Stable-Baselines3 beside its own: a step, a batch, a whole agent, bytes a row.

    python -m benchmarks.sb3            about 5 minutes on 2 cores, and 2 GB of memory
    python -m benchmarks.sb3 --quick    about a minute

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

The buffers have a million rows of 17 observed numbers and 6 actions, all written. "add" is a call
with one step of all environments. "sample" draws 256 rows, with nothing to write before. "both" is
one after the other, as an algorithm calls them. The buffers take turns.

"An agent" is `model.learn` with the algorithm's defaults, but for the buffer and the number of
environments. Two models take turns, a few hundred steps each. Its rows are those of
CartPole (DQN) and Pendulum (SAC).

Bytes a row are those of all arrays of a buffer: observations, their successors, flags, and what
fbuf keeps to find and draw rows.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import harness, report
from benchmarks.evidence.exchange_rounds import Table
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

SIZE, BATCH = 1_000_000, 256
ENVS = (1, 8)
SPACES = spaces.Box(-1, 1, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
NAMES = OURS, THEIRS = "fbuf", "Stable-Baselines3"
CALLS = ("add", "sample", "both")
AGENTS = {"DQN": (DQN, "CartPole-v1", 2000), "SAC": (SAC, "Pendulum-v1", 100)}


def made(name: str, size: int, n_envs: int, space: Any, action: Any, **options: Any) -> Any:
    """A buffer of a library."""
    from fbuf_adapters.sb3 import ReplayBuffer

    kind = ReplayBuffer if name == OURS else buffers.ReplayBuffer
    return kind(size, space, action, "cpu", n_envs, **options)


def fill(buffer: Any, rng: Any) -> None:
    """Write every row: a page of memory that nobody wrote to is read from the cache."""
    n_envs = buffer.n_envs
    obs = rng.standard_normal((n_envs, 17), dtype=np.float32)
    for step in range(buffer.buffer_size):
        following = rng.standard_normal((n_envs, 17), dtype=np.float32)
        ends = np.full(n_envs, step % 1000 == 999)
        buffer.add(obs, following, following[:, :6], following[:, 0], ends, [{}] * n_envs)
        obs = following


def calls(task: Task) -> Measured:
    """Time the calls of both buffers."""
    size, n_envs, runs = SIZE // (100 if task["quick"] else 1), task["envs"], {}
    for name in NAMES:
        rng = np.random.default_rng(0)
        buffer = made(name, size, n_envs, *SPACES)
        fill(buffer, rng)
        row = rng.standard_normal((n_envs, 17), dtype=np.float32)
        step = row, row, row[:, :6], row[:, 0], np.zeros(n_envs, bool), [{}] * n_envs

        def add(_: int, buffer: Any = buffer, step: Any = step) -> None:
            buffer.add(*step)

        def sample(_: int, buffer: Any = buffer) -> None:
            buffer.sample(BATCH)

        def both(_: int, buffer: Any = buffer, step: Any = step) -> None:
            buffer.add(*step)
            buffer.sample(BATCH)

        for call, run in zip(CALLS, (add, sample, both), strict=True):
            runs[call, name] = harness.repeated(run, 0.02 if task["quick"] else 0.2)
    timed = harness.alternate(runs, 3 if task["quick"] else 11, 10.0)
    return Measured(
        [
            {"what": call, "name": name, "envs": n_envs, "us": harness.median(rounds)}
            for (call, name), rounds in timed.items()
        ]
    )


def agents(task: Task) -> Measured:
    """Time `learn` of two models, in turns."""
    from fbuf_adapters.sb3 import ReplayBuffer

    torch.set_num_threads(1)
    kind, env, steps = AGENTS[task["agent"]]
    models, taken = {}, {name: [] for name in NAMES}
    for name in NAMES:
        options = {"replay_buffer_class": ReplayBuffer if name == OURS else None}
        envs = make_vec_env(env, task["envs"], seed=0)
        models[name] = kind("MlpPolicy", envs, seed=0, device="cpu", **options)
        models[name].learn(max(steps, 200))
    for number in range(3 if task["quick"] else 15):
        for name in NAMES[:: 1 if number % 2 else -1]:
            begun = models[name].num_timesteps, time.perf_counter()
            models[name].learn(steps, reset_num_timesteps=False)
            seconds = time.perf_counter() - begun[1]
            taken[name].append(seconds / (models[name].num_timesteps - begun[0]) * 1e6)
    return Measured(
        [
            {
                "what": task["agent"],
                "name": name,
                "envs": task["envs"],
                "us": harness.median(rounds),
            }
            for name, rounds in taken.items()
        ]
    )


def bytes_a_row(task: Task) -> Measured:
    """Count the bytes of all arrays."""
    found = []
    for rows, size, spaces_of in (
        ("17 numbers", 100_000, SPACES),
        ("4 frames of 84 x 84", 2000, IMAGES),
    ):
        for name, options in (
            (THEIRS, {}),
            (OURS, {}),
            (f"{OURS}, n_stack=4", {"n_stack": 4}),
        ):
            if options and spaces_of is SPACES:
                continue
            buffer = made(THEIRS if name == THEIRS else OURS, size, 1, *spaces_of, **options)
            arrays = [x for x in vars(buffer).values() if isinstance(x, np.ndarray)]
            total = sum(array.nbytes for array in arrays)
            if name != THEIRS:
                total = sum(leaf.nbytes for leaf in jax.tree.leaves(buffer.memory.state))
            found.append({"what": rows, "name": name, "bytes": total / size})
    return Measured(found)


MEASURES = {"calls": calls, "agents": agents, "bytes": bytes_a_row}


def measure(task: Task) -> Measured:
    """Do one task."""
    return MEASURES[task["kind"]](task)


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    found = []
    for _ in range(1 if quick else 2):
        for envs in ENVS[: 1 if quick else None]:
            found.append({"label": f"calls, {envs} environments", "kind": "calls", "envs": envs})
            for agent in AGENTS:
                task = {"kind": "agents", "agent": agent, "envs": envs}
                found.append({"label": f"{agent}, {envs} environments", **task})
    found.append({"label": "bytes", "kind": "bytes"})
    return [task | {"quick": quick} for task in found]


def call_table(records: list[Record]) -> Table:
    """The time of each call."""
    us, rows = Find(records), []
    for what in (*CALLS, *AGENTS):
        for envs in ENVS:
            ours, theirs = (us(what=what, envs=envs, name=name) for name in NAMES)
            if ours is not None:
                label = f"{what}: a step of an agent" if what in AGENTS else what
                rows.append([label, str(envs), report.number(ours), report.beside(theirs, ours)])
    return ["call", "environments", *NAMES], rows


def byte_table(records: list[Record]) -> Table:
    """The bytes of a row."""
    rows = []
    for record in records:
        if "bytes" in record:
            rows.append([record["what"], record["name"], f"{record['bytes']:,.0f}"])
    return ["observation", "buffer", "bytes a row"], rows


def tables(records: list[Record]) -> list[str]:
    """All tables, as lines of Markdown."""
    title = "Microseconds (and times fbuf's)"
    return [
        *report.section(title, *call_table(records)),
        *report.section("Bytes a row", *byte_table(records)),
    ]


def bars(records: list[Record]) -> list[str]:
    """Return the promises, and whether each was held."""
    us, found = Find(records), []
    for envs in ENVS:
        for what, most in (("sample", 1.0), *((agent, 1.03) for agent in AGENTS)):
            ours, theirs = (us(what=what, envs=envs, name=name) for name in NAMES)
            if ours is None or theirs is None:
                continue
            share = f"{ours / theirs:.2f} of {THEIRS}'s time"
            text = f"{what}, {envs} environments: {share}, {most} wanted"
            found.append(report.bar(text, ours <= most * theirs))
    of = {(r["what"], r["name"]): r["bytes"] for r in records if "bytes" in r}
    with contextlib.suppress(KeyError):
        for what, name, most in (
            ("17 numbers", OURS, 0.75),
            ("4 frames of 84 x 84", OURS, 0.55),
            ("4 frames of 84 x 84", f"{OURS}, n_stack=4", 0.15),
        ):
            share = of[what, name] / of[what, THEIRS]
            text = f"{what}, {name}: {share:.2f} of {THEIRS}'s bytes, {most} wanted"
            found.append(report.bar(text, share <= most))
    return found


if __name__ == "__main__":
    report.script(
        title="Stable-Baselines3's buffer and fbuf's",
        packages=("fbuf", "jax", "torch", "stable_baselines3", "gymnasium", "numpy"),
        keys=("what", "name", "envs"),
        figures=("us", "bytes"),
    )
