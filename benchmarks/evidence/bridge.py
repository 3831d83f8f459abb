"""Cross between JAX and PyTorch, on CPU: microseconds a call.

    python -m benchmarks.evidence.bridge            about 2 minutes
    python -m benchmarks.evidence.bridge --quick    in a minute

It needs fbuf and PyTorch.

An item has 8 leaves: 6 of 8 floats, a reward, an action. A batch has 256 rows, and 16 are added to
a uniform buffer of 100,000 rows.

- "out": 8 arrays of a batch, as `torch.from_dlpack` on each hands them over, and as `to_torch`.
- "in": adding rows, and waiting for it. The jitted `fbuf.add`, its buffer donated, is given JAX
  arrays, or NumPy arrays on the tensors' memory. No way to add tensors can take less.
  `add_from_torch` and `ReplayBuffer.extend` are given tensors, `int64` ones for the action in the
  last row.
- "callback": a function of a [256, 64] array inside `jit`: multiplied in JAX, by a callback of
  PyTorch's, and by `jax.pure_callback`.

Everything runs in one process, turn by turn; medians of the rounds, and over processes. By default
each call goes to another thread and back. In the last column JAX was told to run programs in the
thread that waits for them (`jax_cpu_enable_async_dispatch` off).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

ROWS, BATCH, CAPACITY = 16, 256, 100_000
NAMES = "abcdef"
PACKAGES = ("fbuf", "jax", "jaxlib", "torch", "numpy")

OUT, IN, CALLBACK = "out", "in", "callback"
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


def measure(task: Task) -> Measured:
    """Time all of it, in this process."""
    import jax
    import torch

    jax.config.update("jax_cpu_enable_async_dispatch", task["mode"] == DEFAULT)
    torch.set_num_threads(1)
    rounds, seconds = (3, 0.05) if task["quick"] else (9, 0.1)
    found = Measured()
    for part, make in ((OUT, out_of_jax), (IN, into_a_buffer), (CALLBACK, inside_jit)):
        programs = {name: harness.repeated(step, seconds) for name, step in make().items()}
        for name, taken in harness.alternate(programs, rounds, 60.0).items():
            us = harness.median(taken)
            found.records.append({"part": part, "what": name, "mode": task["mode"], "us": us})
    return found


def tasks(quick: bool) -> list[Task]:
    """Both modes, in turn."""
    modes = MODES if quick else MODES * 2
    return [{"label": mode, "mode": mode, "quick": quick} for mode in modes]


def tables(records: list[Record]) -> list[str]:
    """The table, as lines of Markdown."""
    us = Find(records)
    rows = [
        [part, what, *(report.number(us(part=part, what=what, mode=mode)) for mode in MODES)]
        for part, what in dict.fromkeys((r["part"], r["what"]) for r in records)
    ]
    return report.table(["part", "what", *(f"us a call, {mode}" for mode in MODES)], rows)


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    lines = []
    for mode in MODES:
        us = {(r["part"], r["what"]): float(r["us"]) for r in records if r["mode"] == mode}
        ratio = us[OUT, TO_TORCH] / us[OUT, FROM_DLPACK]
        text = f"{TO_TORCH}: {ratio:.2f} times {FROM_DLPACK}, at most 1.5 wanted ({mode})"
        lines.append(report.bar(text, ratio <= 1.5))
        for name in (ADD, EXTEND):
            for base in (JITTED, NUMPY):
                more = us[IN, name] - us[IN, base]
                text = f"{name}: {more:.1f} us above {base}, at most 30 wanted ({mode})"
                lines.append(report.bar(text, more <= 30))
    return lines


if __name__ == "__main__":
    report.script(
        title="Crossing between JAX and PyTorch",
        packages=PACKAGES,
        keys=("part", "what", "mode"),
    )
