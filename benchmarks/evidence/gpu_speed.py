"""fbuf, flashbax and TorchRL with their rows on one GPU.

    python -m benchmarks.evidence.gpu_speed            at most 8 minutes, on a GPU
    python -m benchmarks.evidence.gpu_speed --quick    a minute or two, on a GPU or a CPU

It needs fbuf, flashbax, TorchRL, and JAX and PyTorch that both find the GPU.

All libraries are in one process and take turns, and each figure is the median of its rounds.

- "Step inside jit": add 16 rows, draw a batch and, if prioritised, give it new priorities, in one
  `lax.scan` whose carry, the buffer, is donated. The batch is used as in `compare.py`.
- Modes are those in which XLA records CUDA graphs. LHS is its default: kernels run one behind the
  other. With CONCURRENT each waits for those that it needs. A program is compiled in it with
  `jax.jit(f, compiler_options={"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"})`.
- "Calls" are those of `fbuf_adapters.pytorch.ReplayBuffer`, whose programs are compiled as it does
  that, and of TorchRL's `ReplayBuffer`. The loop draws a batch, gives it new priorities if there
  are any, and adds 16 rows. "Returned" is the time of the host: until the calls have returned, and
  of letting go of the batch. "Done" is all of that with `torch.cuda.synchronize` behind the calls.
- "As many fields": TorchRL hands out fewer tensors than fbuf. There its rows have more fields, of
  the kinds of fbuf's others: ids, a mask, ends, probabilities and weights.
- "Row gather": uniform draws in a scan that carries the batch, so that each is written out as a
  whole. The share is of the rate at which a large copy moves bytes, measured in the same process;
  both read and write every byte once. Small batches are bound by the launches of kernels.
"""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import math
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks import compare, harness, report
from benchmarks.evidence import gpu_calls
from benchmarks.evidence.gpu_speed_tables import (
    FBUF,
    FLASHBAX,
    GATHER,
    LARGE,
    MODES,
    NAMES,
    OWN,
    SAME,
    STEP,
    THINGS,
    TORCHRL,
    label_of,
    tables,  # noqa: F401 (part of the report)
)
from benchmarks.harness import Box, Measured, Record, Task

CHUNKS = {"row": 10**5, "frame": 10**4, LARGE: 10**6}
"""Rows written at a time to fill a buffer; the capacity is a multiple of it."""
MOST_FRAMES = 10**6
JAX_SHARE = 0.64
"""The part of the memory that JAX takes beforehand; PyTorch has the rest."""
STEPS_BEFORE = 400
"""The most steps in a scan: fewer with large batches."""


def items() -> dict[str, Any]:
    """Return the items, by name."""
    import jax
    import jax.numpy as jnp

    from benchmarks import peers

    large = {"observation": (24,), "action": (6,), "reward": ()}
    large = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in large.items()}
    return {"row": peers.ROW, "frame": peers.FRAME, LARGE: large}


# --- the libraries -------------------------------------------------------------------------------


def classes(device: str, notes: list[str]) -> dict[str, Any]:
    """The peers of `compare.py`, with TorchRL's rows on the device."""
    from benchmarks import peers

    class TorchRL(peers.TorchRL):
        """TorchRL with its storage on the device, and its tree too if that is built."""

        def __init__(self, item: Any, capacity: int, batch: int, prioritized: bool) -> None:
            from torchrl.data import LazyTensorStorage, ReplayBuffer, replay_buffers

            super().__init__(item, capacity, batch, prioritized)
            if prioritized and device == "cuda":
                sampler = replay_buffers.PrioritizedSampler
                try:
                    self.sampler = sampler(capacity, peers.ALPHA, peers.BETA, device="cuda")
                except RuntimeError as error:
                    notes.append(f"torchrl: its tree is on the host: {error}")
                    self.sampler = sampler(capacity, peers.ALPHA, peers.BETA, device="cpu")
            self.make = lambda: ReplayBuffer(
                storage=LazyTensorStorage(capacity, device=device), sampler=self.sampler
            )

        def array(self, array: Any) -> Any:
            return super().array(array).to(device)

        def wait(self, *trees: Any) -> None:
            if device == "cuda":
                self.torch.cuda.synchronize()

    return {FBUF: peers.Fbuf, FLASHBAX: peers.Flashbax, TORCHRL: TorchRL}


def store_bytes(name: str, item: Any, capacity: int, prioritized: bool) -> int:
    """Return the least bytes of a library's buffer, on the device."""
    import fbuf
    from benchmarks import peers

    if name == FBUF:
        sampler = fbuf.Prioritized() if prioritized else fbuf.Uniform()
        return fbuf.nbytes(item, capacity, sampler=sampler)
    rows = capacity * peers.row_bytes(item)
    tree = 4 * 2 ** (math.ceil(math.log2(capacity)) + 1)
    return rows + (2 * tree if prioritized else 0)  # flashbax copies its tree at every step


def pools(device: str) -> dict[str, float]:
    """Bytes of the device that JAX and PyTorch may fill, found before JAX takes its own."""
    import torch

    if device == "cpu":
        return {"jax": math.inf, "torch": math.inf, "free": math.inf}
    free, total = torch.cuda.mem_get_info()
    jax_pool = JAX_SHARE * total
    return {"jax": 0.9 * jax_pool, "torch": 0.9 * (free - jax_pool), "free": free}


def plan(task: Task, room: dict[str, float], notes: list[str]) -> int:
    """Return the number of rows: as many as asked for, or as fit."""
    from benchmarks import peers

    item, wanted, chunk = items()[task["item"]], task["n"], chunk_of(task)
    if task["item"] == "frame":
        # Stores of all libraries in half of the memory: the batches are large, too.
        fit = room["free"] / 2 / (len(NAMES) * peers.row_bytes(item))
    else:
        largest = store_bytes(FBUF, item, wanted, prioritized=True)
        fit = wanted * min(1.0, room["jax"] / largest)
    capacity = int(min(wanted, fit)) // chunk * chunk
    if capacity < wanted:
        space = f"{'half of ' if task['item'] == 'frame' else ''}{room['free'] / 1e9:.0f} GB"
        notes.append(
            f"{THINGS[task['item']]}: {capacity:,} instead of {wanted:,}, to fit in {space}"
        )
    return capacity


def chunk_of(task: Task) -> int:
    return min(CHUNKS[task["item"]], max(task["n"] // 10, 1))


# --- one process that measures -------------------------------------------------------------------


class Stopwatch(Measured):
    """The figures of a process, and the time when it has to stop."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.end = time.monotonic() + task["stop_after"]

    def over(self, what: str) -> bool:
        """Whether time is up for this; it is noted."""
        up = time.monotonic() > self.end
        if up:
            self.notes.append(f"{what}: left, time was up")
        return up


def copy_rate(device: str) -> float:
    """Bytes a second that a large copy reads and writes, by the faster of the libraries."""
    import jax
    import jax.numpy as jnp
    import torch

    size = 2 * 10**9 if device == "cuda" else 64 * 10**6
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    array = jnp.ones(size, jnp.uint8)

    def by_torch() -> int:
        for _ in range(10):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        return 10

    def by_jax() -> int:
        for _ in range(10):
            last = jnp.copy(array)
        jax.block_until_ready(last)
        return 10

    taken = harness.alternate({"torch": by_torch, "jax": by_jax}, 3, 3.0)
    return 2 * size / min(min(rounds) for rounds in taken.values()) * 1e6


def gather(peer: Any, box: Box, steps: int, options: dict[str, Any]) -> harness.Run:
    """Draws alone, each of which writes its batch into the carry of a scan."""
    import jax

    keys = jax.random.split(jax.random.key(5), steps)
    shapes = jax.eval_shape(lambda: peer.data(peer.sample(box.state, keys[0])[1]))
    batch = harness.zeros_like(shapes)

    def step(carry: Any, key: Any) -> Any:
        state, drawn = peer.sample(carry[0], key)
        return state, peer.data(drawn)

    return harness.in_scan(step, box, [batch], keys, options)[0]


def fill(task: Task, prioritized: bool, able: dict[str, Any], watch: Stopwatch) -> Any:
    """Full buffers of the libraries that can have one."""
    import jax

    from benchmarks import peers

    item, room = items()[task["item"]], task["room"]
    boxes: dict[str, Box] = {}
    for name, cls in able.items():
        label = f"{name}, {THINGS[task['item']]}, {'prioritised' if prioritized else 'uniform'}"
        if name not in task["peers"]:
            watch.notes.append(f"{label}, N = {task['n']:,}: left, see tasks in gpu_speed.py")
            continue
        pool = "torch" if name == TORCHRL else "jax"
        needed = store_bytes(name, item, task["n"], prioritized)
        if needed > room[pool]:
            watch.notes.append(
                f"{label}: left, {needed / 1e9:.0f} GB do not fit beside the others in what "
                f"remains of its library's pool, {room[pool] / 1e9:.0f} GB"
            )
            continue
        if watch.over(label):
            continue
        try:
            peer = cls(item, task["n"], task["batches"][0], prioritized)
            boxes[name] = Box(peers.filled(peer, chunk_of(task)))
            room = {**room, pool: room[pool] - needed}
        except (peers.Unable, ImportError) as reason:
            watch.notes.append(f"{label}: left, {reason}")
        except Exception as error:  # out of memory, mostly; the others are measured all the same
            watch.notes.append(f"{label}: FAILED, {brief(error)}")
    if FBUF in boxes:
        jax.block_until_ready(boxes[FBUF].state)
    return boxes


def brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def rows_right(task: Task, state: Any, batch: int) -> bool:
    """Whether rows drawn from anywhere are those that were written there."""
    import jax
    import jax.numpy as jnp

    import fbuf
    from benchmarks import peers

    chunk = chunk_of(task)
    written = peers.random_rows(items()[task["item"]], chunk, seed=0)
    drawn = fbuf.sample(state, jax.random.key(7), batch)
    same = jax.tree.map(
        lambda found, rows: bool((found == jnp.asarray(rows)[drawn.ids.slot % chunk]).all()),
        drawn.data,
        written,
    )
    return all(jax.tree.leaves(same))


def measure(task: Task) -> Measured:
    """Time all libraries with one kind of buffer."""
    watch = Stopwatch(task)
    able = classes(task["device"], watch.notes)
    room = pools(task["device"])
    task = task | {"n": plan(task, room, watch.notes), "room": room}
    rate = copy_rate(task["device"])
    release(task["device"])
    watch.records.append({"what": "copy", "item": task["item"], "bytes_per_second": rate})
    measure_kind(task, task["prioritized"], able, rate, watch)
    return watch


def release(device: str) -> None:
    """Give back the memory of the copies before the buffers are made."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_kind(
    task: Task, prioritized: bool, able: dict[str, Any], rate: float, watch: Stopwatch
) -> None:
    """Fill the buffers of all libraries, check their rows, and time each thing that they do."""
    start = time.monotonic()
    boxes = fill(task, prioritized, able, watch)
    kind: Record = {"item": task["item"], "n": task["n"], "prioritized": prioritized}
    if FBUF in boxes:
        drawn = task["batches"][-1]
        right = rows_right(task, boxes[FBUF].state, drawn)
        watch.records.append(kind | {"what": "rows", "drawn": drawn, "right": right})
    seconds = time.monotonic() - start
    watch.records.append(kind | {"what": "preparing", "fill_s": seconds})
    time_calls(task, kind, able, boxes, watch)
    time_scans(task, kind, able, boxes, rate, watch)


def time_calls(
    task: Task, kind: Record, able: dict[str, Any], boxes: dict[str, Box], watch: Stopwatch
) -> None:
    """Time the buffers that users of PyTorch hold; fbuf's takes the state over meanwhile."""
    import jax
    from fbuf_adapters.pytorch import ReplayBuffer

    item, device, prioritized = items()[kind["item"]], task["device"], kind["prioritized"]
    rounds, seconds = (2, 0.02) if task["quick"] else (5, 0.05)
    theirs = {TORCHRL: (boxes[TORCHRL].state, item)} if TORCHRL in boxes else {}
    for batch in task["batches"]:
        label = f"{label_of(kind)}, calls, batch {batch:,}"
        if watch.over(label):
            return
        given = batch, prioritized, device
        calls: dict[tuple[str, str], gpu_calls.Call] = {}
        if FBUF in boxes:
            ours = ReplayBuffer.from_state(boxes[FBUF].state, batch_size=batch, seed=0)
            calls |= by_name(FBUF, gpu_calls.of_fbuf(ours, item, *given))
            if task["same_fields"] and TORCHRL in theirs and SAME not in theirs:
                more = gpu_calls.as_many(item, ours.sample(), prioritized)
                theirs |= with_more_fields(task, more, prioritized, able, watch)
        for name, (buffer, rows) in theirs.items():
            calls |= by_name(name, gpu_calls.of_torchrl(buffer, rows, *given))
        numbers = gpu_calls.numbers_of_fields(calls, label, watch.notes)
        figures = {key: gpu_calls.round_of(calls[key], seconds) for key in numbers}
        for (what, name), taken in harness.by_turns(figures, rounds, 8 * seconds).items():
            times = gpu_calls.median(taken)
            watch.records.append(
                kind | {
                    "batch": batch, "what": what, "peer": name, "mode": OWN,
                    "jax": jax.__version__, "fields": numbers[what, name],
                    "us": times.done + times.dropped, "returned_us": times.returned + times.dropped,
                }
            )  # fmt: skip
        if FBUF in boxes:
            try:
                boxes[FBUF].state = ours.state
            except RuntimeError as error:  # lost with a call that had no memory
                watch.notes.append(f"{FBUF}, {label}: {brief(error)}")
                del boxes[FBUF]


def by_name(name: str, calls: dict[str, gpu_calls.Call]) -> dict[tuple[str, str], gpu_calls.Call]:
    return {(what, name): call for what, call in calls.items()}


def with_more_fields(
    task: Task, item: Any, prioritized: bool, able: dict[str, Any], watch: Stopwatch
) -> dict[str, tuple[Any, Any]]:
    """Return TorchRL's buffer with rows of more fields, and such a row; nothing if that fails."""
    from benchmarks import peers

    try:
        peer = able[TORCHRL](item, task["n"], task["batches"][0], prioritized)
        return {SAME: (peers.filled(peer, chunk_of(task)), item)}
    except Exception as error:  # out of memory, mostly
        watch.notes.append(f"{SAME}: FAILED, {brief(error)}")
        return {}


def time_scans(
    task: Task,
    kind: Record,
    able: dict[str, Any],
    boxes: dict[str, Box],
    rate: float,
    watch: Stopwatch,
) -> None:
    """Time the steps and the draws that are compiled, in each of XLA's modes."""
    import jax

    from benchmarks import peers

    item, prioritized = items()[kind["item"]], kind["prioritized"]
    start = time.monotonic()
    jobs: dict[tuple[str, int, str, str], Callable[[], harness.Run]] = {}
    for batch in task["batches"]:
        steps = max(4, min(STEPS_BEFORE, 10**6 // batch) // (8 if task["item"] == "frame" else 1))
        steps = min(steps, 20) if task["quick"] else steps
        for (name, box), (mode, options) in itertools.product(boxes.items(), MODES.items()):
            peer = able[name](item, task["n"], batch, prioritized)
            if not peer.traceable:
                continue
            jobs[STEP, batch, name, mode] = lambda p=peer, b=box, s=steps, o=options: (
                compare.in_scan(p, b, compare.STEP, s, o)[0]
            )
            if not prioritized:
                jobs[GATHER, batch, name, mode] = lambda p=peer, b=box, s=steps, o=options: gather(
                    p, b, s, o
                )
    programs = compiled(jobs, label_of(kind), watch)
    seconds = time.monotonic() - start
    watch.records.append(kind | {"what": "compiling", "compile_s": seconds})
    for what, batch in dict.fromkeys((what, batch) for what, batch, *_ in jobs):
        label = f"{label_of(kind)}, {what}, batch {batch:,}"
        if watch.over(label):
            return
        runs = {key[2:]: run for key, run in programs.items() if key[:2] == (what, batch)}
        for name, mode in list(runs):
            try:
                runs[name, mode]()
            except Exception as error:  # its buffer may be gone with it
                watch.notes.append(f"{name}, {mode}, {label}: {brief(error)}")
                runs.pop((name, mode))
                programs = {key: run for key, run in programs.items() if key[2] != name}
        rounds, seconds = (2, 0.1) if task["quick"] else (5, 0.4)
        for (name, mode), taken in harness.alternate(runs, rounds, seconds).items():
            us = harness.median(taken)
            record = kind | {
                "batch": batch, "what": what, "peer": name, "mode": mode, "jax": jax.__version__,
                "us": us, "rounds": taken,
            }  # fmt: skip
            if what == GATHER:
                moved = 2 * batch * peers.row_bytes(item)
                record |= {"bytes": moved, "share": moved / (us * 1e-6) / rate}
            watch.records.append(record)


def compiled(
    jobs: dict[Any, Callable[[], harness.Run]], label: str, watch: Stopwatch
) -> dict[Any, harness.Run]:
    """Build all programs side by side, for compiling takes longer than running."""

    def build(job: Callable[[], harness.Run]) -> Any:
        try:
            return job()
        except Exception as error:  # the others are measured all the same
            return brief(error)

    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        built = dict(zip(jobs, pool.map(build, jobs.values()), strict=True))
    for (what, batch, name, mode), run in built.items():
        if isinstance(run, str):
            watch.notes.append(f"{name}, {mode}, {label}, {what}, batch {batch:,}: FAILED, {run}")
    return {key: run for key, run in built.items() if not isinstance(run, str)}


# --- the report ----------------------------------------------------------------------------------

SECONDS = 8 * 60
"""The most seconds of a whole run."""


def device_of_both() -> str:
    """Where JAX and PyTorch both can keep their arrays; found without starting JAX here."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name() -> str:
    """Return the name of the device."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def tasks(quick: bool, device: str | None = None) -> list[Task]:
    """Return the task of each process, the largest buffer first."""
    device = device or device_of_both()
    # At that size TorchRL's tree takes minutes to fill on the host. At times there are two of
    # flashbax's, which do not fit beside the other libraries.
    alone = (FBUF,)
    kinds = [
        (LARGE, 345 * 10**6, True, alone, 80),
        ("frame", MOST_FRAMES, False, NAMES, 90),
        ("row", 10**6, False, NAMES, 100),
        ("row", 10**6, True, NAMES, 110),
        ("row", 10**7, False, NAMES, 70),
        ("row", 10**7, True, NAMES, 90),
    ]
    small = quick or device == "cpu"
    if small:
        few = {"row": 20_000, "frame": 500, LARGE: 50_000}
        kinds = [(item, few[item], *rest) for item, n, *rest in kinds if n != 10**7]
    whole = sum(seconds for *_, seconds in kinds)
    return [
        {
            "label": f"{THINGS[item]}, {'prioritised' if prioritized else 'uniform'}, N = {n:,}",
            "item": item,
            "n": n,
            "prioritized": prioritized,
            "peers": peers,
            "batches": (256,) if small else (256, 4096, 65_536),
            "device": device,
            "quick": small,
            # A second one of TorchRL's, where there is memory to spare.
            "same_fields": item == "row" and n <= 10**6,
            # It stops by itself some seconds before it would be stopped.
            "stop_after": SECONDS * seconds / whole - 15,
            "seconds": SECONDS * seconds / whole,
            "environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{JAX_SHARE}"},
        }
        for item, n, prioritized, peers, seconds in kinds
    ]


if __name__ == "__main__":
    report.script(
        title="fbuf and its peers on a GPU",
        packages=("fbuf", "jax", "jaxlib", "flashbax", "torch", "torchrl"),
        keys=("item", "n", "prioritized", "batch", "what", "peer", "mode"),
        figures=("us", "returned_us"),
        device=device_name,
    )
