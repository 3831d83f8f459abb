"""Collecting the steps of environments in processes, into a buffer.

    python -m benchmarks.processes            some minutes
    python -m benchmarks.processes --quick    less of everything

It needs fbuf, JAX, Gymnasium and TorchRL; what is missing is left out.

A policy of random actions steps environments, and every step is put into a buffer. "one process" is
`Collector` over a `SyncVectorEnv`, "AsyncVectorEnv" is `Collector` over that, with a process for
each environment. "async" and "sync" are `ProcessCollector`; `2 x 8` is two processes of eight
environments each. All of these add chunks of 64 steps. "TorchRL" is `MultiSyncCollector` with two
workers of eight environments, 1024 steps a batch, and `ReplayBuffer(LazyTensorStorage)`.

CartPole takes about 10 microseconds a step. "Heavy" is CartPole with a millisecond of computing in
each step. Figures are steps a second of all environments together, and microseconds of CPU time a
step of all processes together. They begin once all has started and is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import resource
import time
from collections.abc import Callable
from typing import Any

from benchmarks import report
from benchmarks.harness import Measured, Record, Task

WAYS = {
    "CartPole": [
        "one process, 8",
        "one process, 16",
        "AsyncVectorEnv, 8",
        "async, 1 x 8",
        "async, 2 x 8",
        "sync, 2 x 8",
        "TorchRL, 2 x 8",
    ],
    "heavy": [
        "one process, 4",
        "AsyncVectorEnv, 4",
        "async, 1 x 4",
        "async, 2 x 4",
        "sync, 2 x 4",
    ],
}


def _env(heavy: bool) -> Any:
    import gymnasium

    # Its four types are those of any environment.
    class Heavy(gymnasium.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            until = time.process_time() + 1e-3
            while time.process_time() < until:
                pass
            return self.env.step(action)

    env = gymnasium.make("CartPole-v1")
    return Heavy(env) if heavy else env


def _policy(observation: Any) -> Any:
    import numpy as np

    return np.random.randint(2, size=len(observation))  # noqa: NPY002 (as users' policies do)


def cpu_seconds() -> float:
    """Return the seconds of this process, its children and theirs, and of those that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = status.read_text().rpartition(")")[2].split()
            pid = int(status.parent.name)
            children.setdefault(int(words[1]), []).append(pid)
            ticks[pid] = int(words[11]) + int(words[12])
    found, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        found += ticks.get(pid, 0)
        todo += children.get(pid, [])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def _of_fbuf(how: str, heavy: bool, stack: contextlib.ExitStack) -> Callable[[], int]:
    """Collects for a moment, and returns how many steps it were."""
    import gymnasium
    import jax
    from fbuf_adapters.gymnasium import Collector, ProcessCollector

    import fbuf

    way, _, size = how.partition(", ")
    make_env = functools.partial(_env, heavy)
    collector: Any
    if way in ("async", "sync"):
        processes, each = map(int, size.split(" x "))
        collector = ProcessCollector(
            make_env, _policy, processes=processes, envs_per_process=each, mode=way
        )
        envs = processes * each
    else:
        envs = int(size)
        same = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        if way == "AsyncVectorEnv":
            vector: Any = gymnasium.vector.AsyncVectorEnv(
                [make_env] * envs, context="spawn", **same
            )
        else:
            vector = gymnasium.vector.SyncVectorEnv([make_env] * envs, **same)
        collector = Collector(vector, _policy, chunk=64, seed=0)
    stack.enter_context(collector)
    capacity = 2000 * envs
    options = {"next_of": "observation", "max_ends": capacity // 4, **collector.options}
    state = fbuf.init(collector.item, capacity, **options)

    def run() -> int:
        nonlocal state
        before = collector.stats()["steps"]
        if way == "async":
            state = collector.drain(state, at_least=64)
        else:
            state = collector.collect(state, 64)
        jax.block_until_ready(state)
        return collector.stats()["steps"] - before

    return run


def _of_torchrl(stack: contextlib.ExitStack) -> Callable[[], int]:
    from torchrl.collectors import MultiSyncCollector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv

    make = functools.partial(SerialEnv, 8, functools.partial(GymEnv, "CartPole-v1"))
    collector = MultiSyncCollector(
        [make, make], None, frames_per_batch=1024, total_frames=-1, split_trajs=False
    )
    stack.callback(collector.shutdown)
    buffer = ReplayBuffer(storage=LazyTensorStorage(32_000))
    batches = iter(collector)

    def run() -> int:
        batch = next(batches).reshape(-1)
        buffer.extend(batch)
        return batch.numel()

    return run


def measure(task: Task) -> Measured:
    """Collect in one way for some seconds."""
    with contextlib.ExitStack() as stack:
        try:
            if task["how"].startswith("TorchRL"):
                run = _of_torchrl(stack)
            else:
                run = _of_fbuf(task["how"], task["env"] == "heavy", stack)
        except ImportError as error:
            return Measured([], [f"{task['how']}: {error}"])
        for _ in range(3):
            run()
        steps, wall, cpu = 0, time.perf_counter(), cpu_seconds()
        while (spent := time.perf_counter() - wall) < task["measured_seconds"]:
            steps += run()
        cpu = cpu_seconds() - cpu
    of = {"env": task["env"], "how": task["how"]}
    return Measured([{**of, "rate": steps / spent, "us": cpu / steps * 1e6}])


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process: all ways in turn, and again."""
    return [
        {
            "label": f"{env}: {how}",
            "env": env,
            "how": how,
            "measured_seconds": 1.0 if quick else 5.0,
        }
        for _ in range(1 if quick else 3)
        for env, ways in WAYS.items()
        for how in ways
    ]


def tables(records: list[Record]) -> list[str]:
    """Steps a second and CPU time."""
    rates, cpu = report.Find(records, "rate"), report.Find(records)
    body = []
    for env, ways in WAYS.items():
        for how in ways:
            rate, us = rates(env=env, how=how), cpu(env=env, how=how)
            body.append(
                [f"{env}: {how}", "-" if rate is None else f"{rate:,.0f}", report.number(us)]
            )
    return report.section(
        "Collecting into a buffer", ["how", "steps a second", "CPU microseconds a step"], body
    )


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    rates = report.Find(records, "rate")
    nan = float("nan")
    rate = lambda env, how: rates(env=env, how=how) or nan
    ours = rate("CartPole", "async, 2 x 8")
    lines = []
    for than, least in (("TorchRL, 2 x 8", 20), ("AsyncVectorEnv, 8", 1)):
        ratio = ours / rate("CartPole", than)
        lines.append(
            report.bar(f"async, 2 x 8: {ratio:.1f} times {than}, at least {least}", ratio >= least)
        )
    ratio = rate("heavy", "async, 2 x 4") / rate("heavy", "async, 1 x 4")
    lines.append(
        report.bar(f"heavy: two processes {ratio:.2f} times one, at least 1.7", ratio >= 1.7)
    )
    return lines


if __name__ == "__main__":
    report.script(
        title="Collecting in processes",
        packages=("fbuf", "jax", "jaxlib", "gymnasium", "torchrl", "torch", "numpy"),
        keys=("env", "how"),
        figures=("rate", "us"),
    )
