"""Compile each function of `fbuf.sharded` for eight NVIDIA H200, and read the programs.

    python -m benchmarks.evidence.gpu_build_sharded [--kernels]

It has the needs of `gpu_build`. It takes four minutes, and exits with 1 if a bar is missed. Where
the plugin is not installed it says so in one line, and exits with 0.

No GPU is needed and nothing runs. The functions are compiled for eight described devices of one
host, and the program of one of them is read. Rows and kernels are those of `gpu_build`. Copies are
those of a kilobyte or more, of arrays with as many numbers as an array of the state has on a
device. A collective counts as one kernel.

The exchange is a loop, and its number of rounds is known only when it runs. So kernels are those
outside of it and those of a round, with the look whether there is another one. "One round" is all
of them together, as in a call that takes one round. A collective sends and receives the bytes that
its result takes on a device.

A kernel counts for the part that most of its operations come from. So the table of parts says where
kernels are, and not more.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.evidence import gpu_build  # before jax, which it prepares

if __name__ == "__main__" and (message := gpu_build.missing()):
    print(message)
    sys.exit(0)

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from benchmarks import harness, report
from benchmarks.evidence.gpu_build import ITEM, SMALL, Kernel
from fbuf import sharded
from fbuf.mesh import exchange, gather_totals, update_by_id

DEVICES = 8
SHARDS = (8, 32)
BATCH, ADDED = 256, 16
"""A device."""
LARGE = 2**10
"""Bytes from which a copy is looked at."""
SAMPLERS: tuple[Any, ...] = (
    fbuf.Uniform(),
    fbuf.Prioritized(),
    fbuf.Uniform(window=4),
    fbuf.Uniform(window=4, by="episode"),
)
KERNELS = {"sample": 40, "update_priority": 14}
"""The bars on kernels, with one round, with one shard a device."""
COLLECTIVES = {"sample": 3, "update_priority": 1}
"""The bars on collectives, with one round."""
IN_PLACE = ("add", "update_priority", "step")
"""The functions that must write in place: all bytes aliased, nothing copied."""

PARTS = {
    f"{function.__module__.rpartition('.')[2]}.{function.__name__}": part
    for function, part in (
        (gather_totals.gather_totals, "agreement"),
        (exchange.routes, "routes"),
        (exchange.fetched, "exchange"),
        (update_by_id._changed, "update"),
        (sharded.add, "add"),
        (sharded.update_priority, "update"),
    )
}
"""The parts of a call, by the function of fbuf that calls all of a part."""
OF_SAMPLERS = {"plan": "plan", "pick": "exchange", "weigh": "weigh", "shard_totals": "agreement"}
"""The same, by a method of a sampler."""
ORDER = ("agreement", "plan", "routes", "exchange", "weigh", "update", "add", "rest")


# --- reading -------------------------------------------------------------------------------------

COLLECTIVE = re.compile(
    r"= (?P<type>\([^=]*?\)|\S+) (?P<kind>all-gather|all-reduce|all-to-all|reduce-scatter|"
    r"collective-permute)(?:-start)?\("
)


@dataclasses.dataclass
class Row:
    """One line of the report."""

    sampler: str
    shards: int
    function: str
    outside: int
    round: int
    kernels: int
    collectives: list[str]
    temp_bytes: int
    alias_bytes: int
    state_bytes: int
    large_copies: list[str]
    parts: dict[str, int]
    missed: list[str]
    launches: list[Kernel]


def part_of(calls: list[str]) -> str:
    """The part of a call that a kernel belongs to, of the functions it is called by."""
    for call in calls:
        file, _, name = call.partition(".")
        method = OF_SAMPLERS.get(name.rpartition(".")[2])
        found = PARTS.get(f"{file}.{name}") or (method if "." in name else None)
        if found:
            return found
    return "rest"


def size_of(type_text: str) -> int:
    """Return the count of numbers of the first array of an HLO type."""
    match = gpu_build.ARRAY.search(type_text)
    return math.prod(int(n) for n in match[2].split(",") if n) if match else 0


def collectives(text: str) -> list[str]:
    """The collectives of a program: kind, and bytes that its result takes on a device."""
    found = []
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        match = COLLECTIVE.search(line)
        if match:
            found.append(f"{match['kind']} of {gpu_build.bytes_of(match['type']):,} B")
    return found


# --- what is compiled ----------------------------------------------------------------------------


def cases(mesh: jax.sharding.Mesh, shards: int, sampler: Any) -> gpu_build.Cases:
    """The functions, each with the arguments it is compiled for; the state comes first."""
    spec = jax.ShapeDtypeStruct
    # Made on simulated devices: those to compile for cannot be asked how much room they have.
    simulated = jax.make_mesh((DEVICES,), ("data",), devices=jax.devices("cpu")[:DEVICES])
    state = jax.eval_shape(
        lambda: sharded.init(
            ITEM, SMALL * DEVICES, mesh=simulated, shards=shards, num_envs=64, sampler=sampler
        )
    )
    state = dataclasses.replace(state, mesh=mesh)

    def lying(tree: Any, along: Any) -> Any:
        there = jax.sharding.NamedSharding(mesh, along)
        return jax.tree.map(lambda x: spec(x.shape, x.dtype, sharding=there), tree)

    batch, data, everywhere = BATCH * DEVICES, jax.P("data"), jax.P()
    steps = ADDED * DEVICES // 64
    rows = jax.tree.map(lambda x: spec((64, steps, *x.shape), x.dtype), ITEM)
    ids = sharded.ShardedIds(*(spec((batch,), jnp.int32) for _ in range(3)))
    state, rows, ids = lying(state, data), lying(rows, data), lying(ids, data)
    reals = lying(spec((batch,), jnp.float32), data)
    key = lying(jax.eval_shape(lambda: jax.random.key(0)), everywhere)
    prioritized = isinstance(sampler, fbuf.Prioritized)

    def step(state: Any, rows: Any, key: Any) -> Any:
        state = sharded.add(state, rows)
        drawn = sharded.sample(state, key, batch)
        if prioritized:
            state = sharded.update_priority(state, drawn.ids, jnp.abs(drawn.data["reward"]))
        return state, drawn

    found: gpu_build.Cases = {
        "add": (lambda s, x: sharded.add(s, x), (state, rows)),
        "sample": (lambda s, k: sharded.sample(s, k, batch), (state, key)),
        "update_priority": (lambda s, i, p: sharded.update_priority(s, i, p), (state, ids, reals)),
        "step": (step, (state, rows, key)),
    }
    if not prioritized:
        del found["update_priority"]
    return found


def measure(sampler: Any, shards: int) -> list[Row]:
    """Compile every function and hold it against the bars."""
    mesh = jax.sharding.Mesh(np.array(gpu_build.devices(DEVICES)), ("data",))
    return [
        compiled(gpu_build.brief(sampler), shards, function, call, arguments)
        for function, (call, arguments) in cases(mesh, shards, sampler).items()
    ]


def compiled(
    sampler: str, shards: int, function: str, call: Callable[..., Any], arguments: tuple[Any, ...]
) -> Row:
    """Compile a function and read its program."""
    writes = function in IN_PLACE
    jitted = jax.jit(call, donate_argnums=(0,) if writes else (), keep_unused=True)
    program = jitted.trace(*arguments).lower(lowering_platforms=("cuda",)).compile()
    text, memory = program.as_text(), program.memory_analysis()
    parts = {frame: part_of(calls) for frame, calls in gpu_build.calls_of_frames(text).items()}
    _, _, copies, launches = gpu_build.read(text, LARGE, parts, conditions=True)
    stored = {leaf.size // DEVICES for leaf in jax.tree.leaves(arguments[0])}
    copies = [copy for copy in copies if size_of(copy) in stored]
    state_bytes = gpu_build.bytes_in(arguments[:1]) // DEVICES
    in_round = sum(kernel.in_loop for kernel in launches)
    sent = collectives(text)
    where = collections.Counter(kernel.functions.split(", ")[0] or "rest" for kernel in launches)
    missed = []
    if shards == DEVICES and len(launches) > (bar := KERNELS.get(function, len(launches))):
        missed.append(f"{len(launches)} kernels, at most {bar} wanted")
    if len(sent) > (bar := COLLECTIVES.get(function, len(sent))):
        missed.append(f"{len(sent)} collectives, at most {bar} wanted")
    if writes and memory.alias_size_in_bytes < state_bytes:
        missed.append(f"{state_bytes - memory.alias_size_in_bytes} bytes not written in place")
    if copies:
        missed.append(f"copies {', '.join(dict.fromkeys(copies))}")
    return Row(
        sampler, shards, function, len(launches) - in_round, in_round, len(launches), sent,
        memory.temp_size_in_bytes, memory.alias_size_in_bytes, state_bytes, copies, dict(where),
        missed, launches,
    )  # fmt: skip


# --- reporting -----------------------------------------------------------------------------------


def table(rows: list[Row]) -> list[str]:
    """The report as lines of Markdown."""
    head = ["sampler", "function", "shards", "kernels, outside", "a round", "one round"]
    head += ["collectives", "temp bytes", "bytes in place", "bytes of state", "copies of the state"]
    lines = []
    for r in rows:
        place = [
            f"{n:,}" if r.function in IN_PLACE else "-" for n in (r.alias_bytes, r.state_bytes)
        ]
        kernels = [str(n) for n in (r.outside, r.round, r.kernels)]
        lines.append(
            [r.sampler, r.function, str(r.shards), *kernels, "; ".join(r.collectives) or "none",
             f"{r.temp_bytes:,}", *place, str(len(r.large_copies)), "; ".join(r.missed) or "held"]
        )  # fmt: skip
    where = [
        [r.sampler, r.function, str(r.shards), *(str(r.parts.get(part, 0)) for part in ORDER)]
        for r in rows
    ]
    return [
        *report.table([*head, "bars"], lines),
        *report.section("Where the kernels are", ["sampler", "function", "shards", *ORDER], where),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", action="store_true", help="also print what every kernel does")
    parser.add_argument("--only", help="compile for samplers whose names contain this; no report")
    report.add_options(parser)
    options = parser.parse_args()

    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = [
        row
        for sampler in SAMPLERS
        if options.only is None or options.only in gpu_build.brief(sampler)
        for shards in SHARDS
        for row in measure(sampler, shards)
    ]
    if options.kernels:
        for row in rows:
            print(f"{row.sampler}.{row.function}, {row.shards} shards:")
            for k in row.launches:
                print(f"  {'round ' if k.in_loop else ''}{k.name}: {k.result}")
                print(f"      {k.operations}\n      {k.functions}")
    if options.only is None:
        about = {
            **harness.about("fbuf", "jax", "jax-cuda12-plugin"),
            "device": f"{DEVICES} NVIDIA H200 of one host, compiled for without them",
            "rows a device": f"{SMALL:,}",
            "batch a device": str(BATCH),
            "added rows a device": str(ADDED),
        }
        report.write(
            "benchmarks.evidence.gpu_build_sharded",
            "The GPU build over a mesh",
            report.results_of(options),
            about,
            [dataclasses.asdict(row) for row in rows],
            table(rows),
            __doc__,
        )
    else:
        print("\n".join(table(rows)))
    missed = [f"{r.sampler}.{r.function}, {r.shards} shards: {m}" for r in rows for m in r.missed]
    gpu_build.end(missed)


if __name__ == "__main__":
    main()
