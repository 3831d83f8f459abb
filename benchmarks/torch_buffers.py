"""The buffers for PyTorch programs beside TorchRL's, call by call.

    python -m benchmarks.torch_buffers            about 8 minutes, and 2 GB of memory
    python -m benchmarks.torch_buffers --quick    in two minutes

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

A buffer of a million rows is full. A row has 8 leaves: 6 of 8 floats, a reward, and an int64
action. 16 rows are added, 256 are drawn, and the 256 get new priorities. JAX hands each call to
another thread, as it does by default, but for "in this thread".

- TorchRL: `TensorDictReplayBuffer` on `LazyTensorStorage`, prioritised by its C++ tree.
- "steady": the same size in every call. The buffers take turns.
- "in this thread": the same with `jax_cpu_enable_async_dispatch` off. To wake another thread takes
  longer than most calls, and how much longer depends on the machine.
- "lengths": episodes of 64 lengths from 1 to 300 are added in random order, and batches of as many
  sizes drawn. Every one comes once beforehand, and then again: the figures are of the second time.
  "steady" is a call of 300, the longest of them. The first time is counted as "first seconds", all
  that is compiled included.
- "loops": a small uniform batch is drawn, once or several times, and then 16 rows are added. Rows
  have 4, 5 or 8 leaves; "frames" are 4 leaves and two frames of 84 by 84 bytes.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

from benchmarks import harness, report
from benchmarks.evidence.bridge import rows_of_torch
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

ADDED, BATCH, CAPACITY, SMALL = 16, 256, 1_000_000, 100_000
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "torchrl", "tensordict", "numpy")
UNIFORM, PRIORITISED = "uniform", "prioritised"
THEIRS, PLAIN, TENSORDICT = "TorchRL", "ReplayBuffer", "TensorDictReplayBuffer"
STEADY, ALONE, LENGTHS = "steady", "in this thread", "lengths"
LOOPS, LOOPS_ALONE = "loops", "loops, in this thread"
CALLS = ("extend", "sample", "update")
LONGEST = 300
LOOP_CASES = (
    *((leaves, batch, 1) for leaves in ("4", "5", "8") for batch in (32, 64)),
    *(("8", batch, 20) for batch in (32, 64)),
    ("frames", 32, 1),
)
"""The leaves of an item, the rows of a batch, and how many are drawn for each call of `extend`."""

Step = Callable[[int], None]


def made(name: str, kind: str, capacity: int, batch: int = BATCH) -> Any:
    """A buffer."""
    import fbuf

    sampler = fbuf.Prioritized() if kind == PRIORITISED else fbuf.Uniform()
    if name == PLAIN:
        from fbuf_adapters.pytorch import ReplayBuffer

        return ReplayBuffer(capacity, sampler=sampler, batch_size=batch, int64=True)
    if name == TENSORDICT:
        from fbuf_adapters.tensordict import TensorDictReplayBuffer

        return TensorDictReplayBuffer(capacity, sampler=sampler, batch_size=batch)
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    theirs = PrioritizedSampler(capacity, alpha=0.6, beta=0.4) if kind == PRIORITISED else None
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity), sampler=theirs, batch_size=batch
    )


def given(name: str, count: int) -> Any:
    """Rows as such a buffer takes them."""
    rows = rows_of_torch(count, long=True)
    if name == PLAIN:
        return rows
    from tensordict import TensorDict

    return TensorDict(rows, batch_size=[count])


def filled(name: str, kind: str, capacity: int) -> Any:
    """A full one."""
    buffer = made(name, kind, capacity)
    for _ in range(capacity // 10_000):
        buffer.extend(given(name, 10_000))
    return buffer


def updated(buffer: Any, name: str, batch: Any, errors: Any) -> None:
    """Give the rows of a batch new priorities."""
    if name == PLAIN:
        buffer.update_priority(batch.ids, errors)
    else:
        batch["td_error"] = errors
        buffer.update_tensordict_priority(batch)


def steady(buffer: Any, name: str, kind: str) -> dict[str, Step]:
    """One call of each."""
    import torch

    rows, errors = given(name, ADDED), torch.rand(BATCH)
    batch = buffer.sample()
    steps: dict[str, Step] = {
        "extend": lambda _: buffer.extend(rows),
        "sample": lambda _: buffer.sample(),
    }
    if kind == PRIORITISED:
        steps["update"] = lambda _: updated(buffer, name, batch, errors)
    return steps


def lengths(name: str, kind: str, rounds: int) -> list[Record]:
    """Calls of many sizes: microseconds a call, and seconds for all of them the first time."""
    import numpy as np

    buffer = made(name, kind, SMALL)
    sizes = np.random.default_rng(0).permutation(LONGEST)[:64] + 1
    episodes = {size: given(name, size) for size in (*sizes.tolist(), LONGEST)}
    buffer.extend(given(name, 1000))
    buffer.sample()

    def all_of(sizes: list[int]) -> dict[str, float]:
        taken: dict[str, float] = {}
        for call, step in (
            ("extend", lambda size: buffer.extend(episodes[size])),
            ("sample", lambda size: buffer.sample(size)),
        ):
            start = time.perf_counter()
            for size in sizes:
                step(size)
            taken[call] = time.perf_counter() - start
        return taken

    first = all_of(sizes.tolist())
    all_of([LONGEST])
    many: dict[str, list[float]] = {call: [] for call in first}
    same: dict[str, list[float]] = {call: [] for call in first}
    for _ in range(rounds):
        for found, asked in ((many, sizes.tolist()), (same, [LONGEST] * 64)):
            for call, seconds in all_of(asked).items():
                found[call].append(seconds / 64 * 1e6)
    return [
        {
            "part": LENGTHS, "kind": kind, "what": name, "call": call,
            "us": harness.median(many[call]), "steady": harness.median(same[call]),
            "first": first[call],
        }
        for call in first
    ]  # fmt: skip


def rows_of_loops(name: str, leaves: str, count: int) -> Any:
    """Rows of so many leaves, as such a buffer takes them."""
    import torch

    frames = leaves == "frames"
    every = rows_of_torch(count, long=True)
    named = ["reward", "action", *(key for key in every if key not in ("reward", "action"))]
    rows = {key: every[key] for key in named[: 4 if frames else int(leaves)]}
    if frames:
        rows |= {key: torch.ones(count, 84, 84, dtype=torch.uint8) for key in ("frame", "after")}
    if name == PLAIN:
        return rows
    from tensordict import TensorDict

    return TensorDict(rows, batch_size=[count])


def one_loop(buffer: Any, added: Any, draws: int, _: int) -> None:
    """Draw some batches, and add rows."""
    for _ in range(draws):
        buffer.sample()
    buffer.extend(added)


def loops(quick: bool, part: str) -> list[Record]:
    """Time loops of draws and writes: microseconds a loop."""
    rounds, seconds = (3, 0.02) if quick else (9, 0.1)
    found: list[Record] = []
    for leaves, batch, draws in LOOP_CASES:
        capacity = SMALL // 10 if leaves == "frames" else SMALL
        programs: dict[str, harness.Run] = {}
        for name in (THEIRS, PLAIN, TENSORDICT):
            buffer, added = made(name, UNIFORM, capacity, batch), rows_of_loops(name, leaves, ADDED)
            many = rows_of_loops(name, leaves, 1000)
            for _ in range(capacity // 1000):
                buffer.extend(many)

            step = functools.partial(one_loop, buffer, added, draws)
            for number in range(3):  # compiles whatever it needs
                step(number)
            programs[name] = harness.repeated(step, seconds)
        taken = harness.alternate(programs, rounds, 60.0)
        call = f"{leaves} leaves, {draws} of {batch}"
        found += [
            {"part": part, "kind": UNIFORM, "what": n, "call": call, "us": harness.median(us)}
            for n, us in taken.items()
        ]
    return found


def measure(task: Task) -> Measured:
    """Time one kind of sampler, in this process."""
    import jax
    import torch

    alone = task["part"] in (ALONE, LOOPS_ALONE)
    jax.config.update("jax_cpu_enable_async_dispatch", not alone)
    torch.set_num_threads(1)
    quick, kind = task["quick"], task["kind"]
    rounds, seconds = (3, 0.05) if quick else (15, 0.1)
    names = (THEIRS, PLAIN, TENSORDICT)
    if task["part"] in (LOOPS, LOOPS_ALONE):
        return Measured(loops(quick, task["part"]))
    if task["part"] == LENGTHS:
        found = [record for name in names for record in lengths(name, kind, rounds)]
        return Measured(found)
    capacity = SMALL if quick else CAPACITY
    programs: dict[tuple[str, str], harness.Run] = {}
    for name in names:
        buffer = filled(name, kind, capacity)
        for call, step in steady(buffer, name, kind).items():
            for _ in range(3):  # compiles whatever it needs
                step(0)
            programs[call, name] = harness.repeated(step, seconds)
    taken = harness.alternate(programs, rounds, 60.0)
    return Measured(
        [
            {
                "part": task["part"], "kind": kind, "what": name, "call": call,
                "us": harness.median(us),
            }
            for (call, name), us in taken.items()
        ]
    )  # fmt: skip


def tasks(quick: bool) -> list[Task]:
    """Each sampler by itself, and again."""
    every: list[Task] = [
        {
            "label": f"{part}, {kind}",
            "part": part,
            "kind": kind,
            "quick": quick,
        }
        for part in (STEADY, ALONE, LENGTHS, LOOPS, LOOPS_ALONE)
        for kind in (UNIFORM, PRIORITISED)
        if kind == UNIFORM or part not in (LOOPS, LOOPS_ALONE)
    ]
    return every if quick else every * 3


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    us = Find(records)
    lines: list[str] = []
    for part in (STEADY, ALONE):
        rows: list[list[Any]] = []
        for kind in (UNIFORM, PRIORITISED):
            for call in CALLS[: 3 if kind == PRIORITISED else 2]:
                asked = {"part": part, "kind": kind, "call": call}
                times = [_float(us(what=name, **asked)) for name in (THEIRS, PLAIN, TENSORDICT)]
                ratios = [f"{time / times[0]:.2f}" for time in times[1:]]
                rows.append([kind, call, *map(report.number, times), *ratios])
        heads = ["sampler", "call", THEIRS, PLAIN, TENSORDICT, "ratio", "ratio of TensorDicts"]
        lines += report.section(f"Microseconds a call, {part}", heads, rows)
    for part in (LOOPS, LOOPS_ALONE):
        rows = []
        for leaves, batch, draws in LOOP_CASES:
            asked = {"part": part, "kind": UNIFORM, "call": f"{leaves} leaves, {draws} of {batch}"}
            times = [_float(us(what=name, **asked)) for name in (THEIRS, PLAIN, TENSORDICT)]
            ratios = [f"{time / times[0]:.2f}" for time in times[1:]]
            rows.append([leaves, batch, draws, *map(report.number, times), *ratios])
        heads = ["leaves", "batch", "draws an extend", THEIRS, PLAIN, TENSORDICT, "ratio"]
        heads.append("ratio of TensorDicts")
        lines += report.section(f"Microseconds a loop, {part}", heads, rows)
    of_sizes = [r for r in records if r["part"] == LENGTHS]
    rows = [
        [r["kind"], r["what"], r["call"], f"{r['first']:.2f}", report.number(r["us"]),
         report.number(r["steady"]), f"{r['us'] / r['steady']:.2f}"]
        for r in of_sizes
    ]  # fmt: skip
    heads = ["sampler", "buffer", "call", "first seconds", "us of 64 sizes", "us steady", "ratio"]
    return [*lines, *report.section("Calls of many sizes", heads, rows)]


def _float(time: Any) -> float:
    """Return a time, NaN if there is none: TorchRL's prioritised one needs its C++ trees."""
    return math.nan if time is None else float(time)


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    us = Find(records)
    lines: list[str] = []
    for name, most in ((PLAIN, 1.0), (TENSORDICT, 1.1)):
        for kind in (UNIFORM, PRIORITISED):
            for call in CALLS[: 3 if kind == PRIORITISED else 2]:
                asked = {"part": STEADY, "kind": kind, "call": call}
                ratio = _float(us(what=name, **asked)) / _float(us(what=THEIRS, **asked))
                text = f"{name}, {call}, {kind}: {ratio:.2f} times {THEIRS}, at most {most} wanted"
                lines.append(report.bar(text, ratio <= most))
    for record in (r for r in records if r["part"] == LENGTHS and r["what"] != THEIRS):
        ratio = record["us"] / record["steady"]
        what = f"{record['what']}, {record['call']}, {record['kind']}"
        text = f"{what}: new sizes {ratio:.2f} times the steady one, at most 3 wanted"
        lines.append(report.bar(text, ratio <= 3))
    return lines


if __name__ == "__main__":
    report.script(
        title="The buffers for PyTorch beside TorchRL's",
        packages=PACKAGES,
        keys=("part", "kind", "what", "call"),
        figures=("us", "steady", "first"),
    )
