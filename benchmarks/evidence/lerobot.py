"""Batches of action chunks from memory, beside LeRobot's own data set and PyTorch's loader.

    python -m benchmarks.evidence.lerobot            about 8 minutes on 2 cores
    python -m benchmarks.evidence.lerobot --quick    about a minute

It needs LeRobot and PyTorch beside fbuf; `make lerobot` installs them into `.venv-lerobot`.

LeRobot writes a data set of 50 episodes of 300 steps, with a state and an action of 14 numbers
each. The one "with images" has 20 episodes of 100 steps, and a picture of 32x32 pixels a step. A
batch has 64 rows: the state 3 steps before and now, and 16 actions, with masks at the ends of
episodes. Pictures are handed over as LeRobot does it, as floats with the channels first.

LeRobot's batches come from `torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)`,
without workers and with 2 of them, which stay. fbuf's rows were loaded by `from_lerobot`. "uniform"
is one compiled call of `fbuf.sample` with `fbuf.Window`, "shuffled" likewise with `fbuf.Shuffled`:
each row once an epoch, as the loader draws them. "tensors" are uniform ones after `to_torch`. Every
batch is waited for. All take turns in one process: 20 batches of LeRobot's a turn. So its workers
have up to 4 batches ready at the beginning of a turn. Figures are medians over processes of medians
over rounds. Both give the same items, which `tests/adapters/datasets/test_lerobot_itself.py` shows.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

STATES, IMAGES = "states", "with images"
KINDS = {STATES: (50, 300), IMAGES: (20, 100)}
"""Episodes and steps."""
ALONE, WORKERS = "LeRobot", "LeRobot, 2 workers"
UNIFORM, SHUFFLED, TENSORS = "fbuf, uniform", "fbuf, shuffled", "fbuf, tensors"
THEIRS, OURS = (ALONE, WORKERS), (UNIFORM, SHUFFLED, TENSORS)
BATCH, FPS, NUMBERS, PIXELS, PROCESSES = 64, 50, 14, 32, 3
OFFSETS = {"observation.state": (-3, 0), "action": tuple(range(16))}
IMAGE = "observation.image"
LEAST = 20

Table = tuple[list[str], list[list[str]]]
"""The head and the rows."""


def write(folder: pathlib.Path, kind: str, dataset_class: Any, quick: bool) -> None:
    """Have LeRobot write a data set of random numbers."""
    import numpy as np

    numbers = {"dtype": "float32", "shape": (NUMBERS,), "names": None}
    features: dict[str, Any] = {"observation.state": numbers, "action": numbers}
    shape = (PIXELS, PIXELS, 3)
    if kind == IMAGES:
        names = ["height", "width", "channels"]
        features[IMAGE] = {"dtype": "image", "shape": shape, "names": names}
    dataset = dataset_class.create("fbuf/random", FPS, features, root=folder)
    random = np.random.default_rng(0)
    episodes, steps = KINDS[kind]
    for _ in range(2 if quick else episodes):
        for _ in range(steps):
            frame: dict[str, Any] = {
                name: random.normal(size=NUMBERS).astype(np.float32)
                for name in ("observation.state", "action")
            }
            if kind == IMAGES:
                frame[IMAGE] = random.integers(0, 256, shape).astype(np.uint8)
            dataset.add_frame({**frame, "task": "move"})
        dataset.save_episode()
    dataset.finalize()


def of_theirs(dataset: Any, workers: int) -> Callable[[int], None]:
    """Return a step that takes one batch of a loader, which begins again when it ends."""
    from torch.utils.data import DataLoader

    options = {"persistent_workers": True} if workers else {}
    loader: Any = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)
    batches = itertools.chain.from_iterable(loader for _ in itertools.count())

    def step(_: int) -> None:
        assert next(batches)["action"].shape[1:] == (16, NUMBERS)

    return step


def of_ours(folder: pathlib.Path) -> dict[str, Callable[[int], None]]:
    """Return a step that draws one batch, for each way to draw."""
    import jax
    import jax.numpy as jnp
    from fbuf_adapters.datasets import from_lerobot
    from fbuf_adapters.pytorch import to_torch

    import fbuf

    view, key = fbuf.Window(OFFSETS), jax.random.key(0)

    def drawn(state: Any, number: Any, **more: Any) -> Any:
        data = fbuf.sample(state, jax.random.fold_in(key, number), BATCH, view=view, **more).data
        observation = dict(data.item["observation"])
        if "image" in observation:
            pixels = jnp.moveaxis(observation["image"], -1, -3)
            observation["image"] = pixels.astype(jnp.float32) / 255
        return {**data.item, "observation": observation}, data.valid

    uniform: Any = jax.jit(drawn)
    shuffled: Any = jax.jit(lambda state, number: drawn(state, 0, step=number))
    rows, dealt = from_lerobot(folder), from_lerobot(folder, sampler=fbuf.Shuffled())
    return {
        UNIFORM: lambda number: jax.block_until_ready(uniform(rows, number)),
        SHUFFLED: lambda number: jax.block_until_ready(shuffled(dealt, number)),
        TENSORS: lambda number: to_torch(uniform(rows, number)),
    }


def measure(task: Task) -> Measured:
    """Time the batches of one data set."""
    sys.path.insert(0, str(harness.ROOT / "tests"))
    from support.lerobot_files import import_lerobot

    quick, kind = task["quick"], task["kind"]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as parent:
        warnings.simplefilter("ignore")
        folder = pathlib.Path(parent) / "data"
        dataset_class = import_lerobot()
        write(folder, kind, dataset_class, quick)
        seconds = {name: [step / FPS for step in steps] for name, steps in OFFSETS.items()}
        dataset = dataset_class("fbuf/random", folder, delta_timestamps=seconds)
        steps = {ALONE: of_theirs(dataset, 0), WORKERS: of_theirs(dataset, 2)}
        programs: dict[str, harness.Run] = {}
        for name, step in steps.items():
            programs[name] = lambda step=step: sum(1 for n in range(20) if not step(n))
        for name, step in of_ours(folder).items():
            programs[name] = harness.repeated(step, 0.2)
        taken = harness.alternate(programs, 3 if quick else 5, seconds=60)
    return Measured(
        [
            {"kind": kind, "what": name, "us": harness.median(rounds), "rounds": rounds}
            for name, rounds in taken.items()
        ]
    )


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    return [
        {"label": f"{kind}, process {number + 1}", "kind": kind, "quick": quick}
        for number in range(1 if quick else PROCESSES)
        for kind in KINDS
    ]


def batch_table(records: list[Record]) -> Table:
    """Batches a second of each, and how many times LeRobot's without workers and with them."""
    found, rows = Find(records), []
    for kind in KINDS:
        alone, workers = (found(kind=kind, what=name) for name in THEIRS)
        for name in (*THEIRS, *OURS):
            us = found(kind=kind, what=name)
            if us is None or alone is None or workers is None:
                continue
            times = [f"{report.number(other / us)}x" for other in (alone, workers)]
            rows.append([kind, name, report.number(us / 1e3), f"{1e6 / us:,.0f}", *times])
    head = ["data set", "batches", "ms", "a second", f"of {ALONE}", f"of {WORKERS}"]
    return head, rows


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    return report.section("A batch of 64 rows", *batch_table(records))


def bars(records: list[Record]) -> list[str]:
    """Return the promise, and whether it was held."""
    found, lines = Find(records), []
    for kind in KINDS:
        for ours in OURS:
            us = found(kind=kind, what=ours)
            theirs = [found(kind=kind, what=name) for name in THEIRS]
            if us is None or None in theirs:
                continue
            least = min(t for t in theirs if t is not None) / us
            text = f"{kind}, {ours}: at least {LEAST} times LeRobot's batches, {least:,.0f} times"
            lines.append(report.bar(text, least >= LEAST))
    return lines


if __name__ == "__main__":
    report.script(
        title="Batches of action chunks, beside LeRobot",
        packages=("fbuf", "jax", "jaxlib", "lerobot", "torch", "datasets", "pyarrow", "numpy"),
        keys=("kind", "what"),
    )
