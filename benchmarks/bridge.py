"""What it costs to cross between JAX and PyTorch, on CPU, in microseconds a call.

    python benchmarks/bridge.py            about 5 minutes
    python benchmarks/bridge.py --quick    in a minute

It needs fbuf and the packages of `benchmarks/requirements.lock` (`make bench` sees to that), and
writes `results/bridge.json` and `bridge.md`.

An item has 8 leaves: 6 of 8 floats, a reward, an action. 16 rows are added, 256 are drawn, from a
uniform buffer of 100,000 rows.

- "out": 8 arrays of a batch, as `torch.from_dlpack` on each hands them over, and as `to_torch`.
- "in": adding rows, and waiting for it. The jitted `fbuf.add`, its buffer donated, is given JAX
  arrays, or NumPy arrays on the tensors' memory, which is the least that anything made of tensors
  can be; `add_from_torch` and `ReplayBuffer.extend` are given tensors, `int64` ones for the action
  in the last row.
- "callback": a function of a [256, 64] array inside `jit`: multiplied in JAX, by a callback of
  PyTorch's, and by `jax.pure_callback`.
- "buffer": `extend` and `sample` of TorchRL's `ReplayBuffer` with `LazyTensorStorage`, of ours, and
  of `TensorDictReplayBuffer`, which has to build TensorDicts.

Everything runs in one process, turn by turn; medians of the rounds, and over processes. In the last
column JAX was told to run programs in the thread that waits for them
(`jax_cpu_enable_async_dispatch` off); by default each call goes to another one and back.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import timing
from timing import RESULTS, Record, render

ROWS, BATCH, CAPACITY = 16, 256, 100_000
NAMES = "abcdef"
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "torchrl", "tensordict", "numpy")

OUT, IN, CALLBACK, BUFFER = "out", "in", "callback", "buffer"
FROM_DLPACK, TO_TORCH = "torch.from_dlpack on each", "to_torch"
JITTED, NUMPY = "jitted fbuf.add, JAX arrays", "jitted fbuf.add, NumPy arrays"
ADD, EXTEND = "add_from_torch", "ReplayBuffer.extend"

MODES = DEFAULT, INLINE = "by default", "in the thread that waits"

Step = Callable[[int], None]


def does(call: Callable[..., Any], *arguments: Any) -> Step:
    """A step that makes a call."""

    def step(_: int) -> None:
        call(*arguments)

    return step


def out_of_jax() -> dict[str, Step]:
    """Ways to hand 8 arrays to PyTorch."""
    import jax
    import jax.numpy as jnp
    import torch
    from fbuf_adapters.pytorch import to_torch

    arrays = {name: jnp.ones((BATCH, 8)) for name in "abcdefgh"}
    jax.block_until_ready(arrays)

    return {
        FROM_DLPACK: does(lambda: {name: torch.from_dlpack(x) for name, x in arrays.items()}),
        TO_TORCH: does(to_torch, arrays),
    }


def rows_of_torch(count: int, long: bool = False) -> Any:
    """Rows as a PyTorch program has them."""
    import torch

    rows = {name: torch.ones(count, 8) for name in NAMES}
    action = torch.ones(count, dtype=torch.int64 if long else torch.int32)
    return rows | {"reward": torch.ones(count), "action": action}


def into_a_buffer() -> dict[str, Step]:
    """Ways to add rows."""
    import jax
    import jax.numpy as jnp
    from fbuf_adapters.pytorch import ReplayBuffer, add_from_torch

    import fbuf

    item = {name: jnp.zeros(8) for name in NAMES} | {"reward": 0.0, "action": 0}
    given = rows_of_torch(ROWS)
    numpy = {name: leaf.numpy() for name, leaf in given.items()}
    arrays = jax.tree.map(jnp.asarray, numpy)
    jitted = jax.jit(fbuf.add, donate_argnums=0)
    states = {
        name: jax.device_put(fbuf.init(item, CAPACITY), jax.devices()[0])
        for name in (JITTED, NUMPY, ADD)
    }
    buffer, longs = ReplayBuffer(CAPACITY), ReplayBuffer(CAPACITY)
    long = rows_of_torch(ROWS, long=True)

    def compiled(name: str, rows: Any) -> Step:
        def step(_: int) -> None:
            states[name] = jax.block_until_ready(jitted(states[name], rows))

        return step

    def added(_: int) -> None:
        states[ADD] = add_from_torch(states[ADD], given)

    return {
        JITTED: compiled(JITTED, arrays),
        NUMPY: compiled(NUMPY, numpy),
        ADD: added,
        EXTEND: does(buffer.extend, given),
        f"{EXTEND}, int64": does(longs.extend, long),
    }


def inside_jit() -> dict[str, Step]:
    """Ways to multiply by two."""
    import jax
    import jax.numpy as jnp
    from fbuf_adapters.pytorch import callback

    x = jnp.ones((BATCH, 64))
    spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
    programs = {
        "in JAX": jax.jit(lambda x: x * 2),
        "callback": jax.jit(callback(lambda x: x * 2, spec)),
        "jax.pure_callback": jax.jit(
            lambda x: jax.pure_callback(lambda x: np.asarray(x) * 2, spec, x)
        ),
    }

    return {
        name: does(lambda program=program: program(x).block_until_ready())
        for name, program in programs.items()
    }


def buffers() -> dict[str, Step]:
    """Buffers of PyTorch programs."""
    from fbuf_adapters.pytorch import ReplayBuffer
    from fbuf_adapters.tensordict import TensorDictReplayBuffer
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage
    from torchrl.data import ReplayBuffer as Theirs

    given = rows_of_torch(ROWS, long=True)
    tensordict = TensorDict(given, batch_size=[ROWS])
    theirs = Theirs(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    plain = ReplayBuffer(CAPACITY, batch_size=BATCH)
    ours = TensorDictReplayBuffer(CAPACITY, batch_size=BATCH)
    many = {name: leaf.repeat(4096, *[1] * (leaf.ndim - 1)) for name, leaf in given.items()}
    theirs.extend(TensorDict(many, batch_size=[4096 * ROWS]))
    plain.extend(many)
    ours.extend(TensorDict(many, batch_size=[4096 * ROWS]))

    return {
        "extend, TorchRL": does(theirs.extend, tensordict),
        "extend, ReplayBuffer": does(plain.extend, given),
        "extend, TensorDictReplayBuffer": does(ours.extend, tensordict),
        "sample, TorchRL": does(theirs.sample),
        "sample, ReplayBuffer": does(plain.sample),
        "sample, TensorDictReplayBuffer": does(ours.sample),
    }


def measure(quick: bool, mode: str) -> list[Record]:
    """Time all of it, in this process."""
    import jax
    import torch

    jax.config.update("jax_cpu_enable_async_dispatch", mode == DEFAULT)
    torch.set_num_threads(1)
    rounds, seconds = (5, 0.05) if quick else (11, 0.1)
    records: list[Record] = []
    for part, make in (
        (OUT, out_of_jax), (IN, into_a_buffer), (CALLBACK, inside_jit), (BUFFER, buffers),
    ):  # fmt: skip
        programs = {name: timing.repeated(step, seconds) for name, step in make().items()}
        for name, taken in timing.alternate(programs, rounds, 60.0).items():
            us = timing.median(taken)
            records.append({"part": part, "what": name, "mode": mode, "us": us})
    return records


def bars(found: dict[tuple[str, str], float]) -> list[str]:
    """What the project promises of itself here, and what came out."""
    ratio = found[OUT, TO_TORCH] / found[OUT, FROM_DLPACK]
    lines = [
        f"- {TO_TORCH}: {ratio:.2f} times {FROM_DLPACK}, at most 1.5 wanted: "
        + ("held" if ratio <= 1.5 else "MISSED")
    ]
    for name in (ADD, EXTEND):
        for base in (JITTED, NUMPY):
            more = found[IN, name] - found[IN, base]
            verdict = "held" if more <= 30 else "MISSED"
            lines.append(f"- {name}: {more:.1f} us above {base}, at most 30 wanted: {verdict}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one process, short rounds")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="where to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        task = json.loads(options.worker)
        options.out.write_text(json.dumps({"records": measure(task["quick"], task["mode"])}))
        return
    records: list[Record] = []
    for _ in range(1 if options.quick else 3):
        for mode in MODES:
            task = {"quick": options.quick, "mode": mode}
            records += timing.in_own_process(__file__, task)["records"]
            print(".", end="", file=sys.stderr, flush=True)
    records = timing.merged(records, ("part", "what", "mode"), "us")
    by_mode = {
        mode: {(r["part"], r["what"]): float(r["us"]) for r in records if r["mode"] == mode}
        for mode in MODES
    }
    about = timing.about(*PACKAGES)
    table = [
        [part, what, *(f"{by_mode[mode][part, what]:,.1f}" for mode in MODES)]
        for part, what in by_mode[DEFAULT]
    ]
    text = [
        "# Crossing between JAX and PyTorch",
        "",
        ", ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        *render(["part", "what", *(f"us a call, {mode}" for mode in MODES)], table),
        "",
        "## Bars",
        "",
        *(f"{line} ({mode})" for mode in MODES for line in bars(by_mode[mode])),
        "",
        "## How it was measured",
        "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(),
    ]
    timing.write_report("bridge", options.results, about, records, text)


if __name__ == "__main__":
    main()
