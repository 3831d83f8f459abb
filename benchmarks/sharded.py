"""Time calls of `fbuf.sharded` as devices are added: simulated ones, on one machine.

    python -m benchmarks.sharded            ten minutes
    python -m benchmarks.sharded --quick    fewer rounds: does it run?

It needs fbuf and JAX. Two processes talk to each other through ports of this machine.

Weak scaling: each device has 131,072 rows of 36 bytes, is given 16 more, draws 256 and updates 256
priorities, however many devices there are. Calls are made from Python and waited for, one round of
each in turn; a figure is the median over rounds. "fbuf" is a plain buffer of one device, beside
them in the same rounds. "2 processes x 2" talk through gloo, by `jax.distributed`. Their figures
are those of the first process, and the plain buffer beside them is called in both at once.

**All devices share the cores of one machine**, so this is not how a mesh of real devices scales.
With as many devices as cores, or more, twice the devices take at least twice the time. Each device
also plans the whole batch. This work grows with the square of the number of devices here, and only
with their number where each has a processor of its own. The tables show the cost of a call beside a
plain one, on one device, and the part of collectives in it. They also show the cost of several
shards on one device. No figure of a link can be had: memory is all that is crossed.

"Collectives alone" are compiled and called by themselves, with the data of the calls of a
prioritised buffer. They are the plan (a sum), a round of the exchange (`all_to_all`), the least
weight, and the ids and priorities of `update_priority`. A call that does nothing but hand back an
array is beside them: a collective cannot take less.

Bytes are read off compiled steps. The 8 B are the least weight and the largest priority, 4 each.
"By the rule" is as `docs/know/scale_costs.md` has it: buckets of `fbuf.mesh.exchange.bucket_size`,
words of a message as counted by `evidence/exchange_rounds.py`. A bucket for itself crosses nothing,
and a sum goes around twice.

A step adds, draws and updates in one compiled program. Its copies are those of arrays as large as
one that a device stores: such a step takes time in proportion to the capacity.
"""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from benchmarks import harness, report
from benchmarks.evidence import exchange_rounds
from benchmarks.harness import ROOT, Measured, Record, Run, Task
from fbuf import sharded
from fbuf.mesh.exchange import bucket_size

ITEM = exchange_rounds.ITEMS["36 bytes"]
ROWS, ADDED, BATCH = 2**17, 16, 256
"""A device."""
DEVICES = (1, 2, 4, 8)
MANY, FEW = 8, (1, 2)
"""Shards, where there are several on a device, and the devices there are then."""
PROCESSES, EACH = 2, 2
PLAIN = "fbuf, one device"
UNIFORM, PRIORITIZED = "Uniform", "Prioritized"
ADD, SAMPLE, UPDATE = "add", "sample", "update_priority"
NOTHING, PLAN, ROUND, LEAST, TOLD = (
    "nothing", "plan", "a round", "least weight", "update_priority",
)  # fmt: skip


def setting_text(devices: int, shards: int) -> str:
    """A setting, in words."""
    text = "1 device" if devices == 1 else f"{devices} devices"
    return text if shards == devices else f"{text}, {shards} shards"


BETWEEN = f"{PROCESSES} processes x {EACH}"
SETTINGS = {
    **{setting_text(d, d): (d, d) for d in DEVICES},
    **{setting_text(d, MANY): (d, MANY) for d in FEW},
}
"""Devices and shards of each, in one process."""


# --- what is called ------------------------------------------------------------------------------


def calls(
    state: Any, module: Any, along: Any, devices: int, prioritized: bool
) -> dict[str, Callable[[], Any]]:
    """The calls of one buffer, each to be waited for."""
    envs = devices * ADDED
    rows = jax.tree.map(lambda leaf: np.ones((envs, *leaf.shape), leaf.dtype), ITEM)
    rows = placed(rows, along)
    for _ in range(64):
        state = module.add(state, rows)
    batch = module.sample(state, jax.random.key(0), BATCH * devices)
    priority = placed(np.linspace(0.5, 1.5, BATCH * devices).astype(np.float32), along)
    keys = [jax.random.key(number) for number in range(16)]
    turn = 0

    def add() -> Any:
        nonlocal state
        state = module.add(state, rows)
        return state.fault

    def sample() -> Any:
        nonlocal turn
        turn = (turn + 1) % len(keys)
        return module.sample(state, keys[turn], BATCH * devices)

    def update() -> Any:
        nonlocal state
        state = module.update_priority(state, batch.ids, priority)
        return state.fault

    # Uniform and prioritised buffers add alike, and only one of them is asked.
    return {ADD: add, SAMPLE: sample, UPDATE: update} if prioritized else {SAMPLE: sample}


def placed(tree: Any, along: Any) -> Any:
    """Arrays of the host where they belong; None is the one device there is."""
    if along is None:
        return jax.tree.map(jnp.asarray, tree)
    make = lambda leaf: jax.make_array_from_callback(leaf.shape, along, lambda at: leaf[at])
    return jax.tree.map(make, tree)


def collectives(mesh: Any, shards: int) -> dict[str, Callable[[], Any]]:
    """Return the collectives of the calls of a prioritised buffer, alone."""
    devices = mesh.size
    words = exchange_rounds.words(ITEM, fbuf.Prioritized())
    data, same = jax.P("data"), jax.P()
    room = bucket_size(BATCH / shards, BATCH, shards * devices) * shards // devices

    def made(shape: tuple[int, ...], send: Callable[[Any], Any], out: Any) -> Callable[[], Any]:
        ones = np.ones((devices * shape[0], *shape[1:]), np.uint32)
        sent = placed(ones, jax.NamedSharding(mesh, data))
        run = jax.jit(jax.shard_map(send, mesh=mesh, in_specs=data, out_specs=out))
        return lambda: run(sent)

    lax = jax.lax
    return {
        NOTHING: made((1,), lambda x: x + 1, data),
        PLAN: made((shards, words["plan"]), lambda x: lax.psum(x, "data"), same),
        ROUND: made(
            (devices, room, words["message"]),
            lambda x: lax.all_to_all(x, "data", 0, 0, tiled=True),
            data,
        ),
        LEAST: made((1,), lambda x: lax.pmin(x, "data"), same),
        TOLD: made((BATCH, words["update"]), lambda x: lax.all_gather(x, "data", tiled=True), data),
    }


def programs(setting: str, mesh: Any, shards: int) -> dict[Any, Callable[[], Any]]:
    """All calls over a mesh, by setting, sampler and name."""
    devices = mesh.size
    along = jax.NamedSharding(mesh, jax.P("data"))
    found: dict[Any, Callable[[], Any]] = {}
    for name, sampler in exchange_rounds.SAMPLERS.items():
        state = sharded.init(
            ITEM, ROWS * devices, mesh=mesh, shards=shards, num_envs=ADDED * devices,
            sampler=sampler,
        )  # fmt: skip
        for call, run in calls(state, sharded, along, devices, name == PRIORITIZED).items():
            found[setting, name, call] = run
    if shards == devices:
        for call, run in collectives(mesh, shards).items():
            found[setting, "alone", call] = run
    return found


def plain() -> dict[Any, Callable[[], Any]]:
    """All calls of a buffer of one device."""
    found: dict[Any, Callable[[], Any]] = {}
    for name, sampler in exchange_rounds.SAMPLERS.items():
        state = fbuf.init(ITEM, ROWS, num_envs=ADDED, sampler=sampler)
        for call, run in calls(state, fbuf, None, 1, name == PRIORITIZED).items():
            found[PLAIN, name, call] = run
    return found


def repeated(run: Callable[[], Any], times: int) -> Run:
    """So many calls, each waited for."""

    def steps() -> int:
        for _ in range(times):
            jax.block_until_ready(run())
        return times

    return steps


def records_of(runs: Mapping[Any, Callable[[], Any]], rounds: int, among: str) -> list[Record]:
    """Time all, one round of each in turn. `among` says what they ran beside."""
    # The same number of calls in all processes, or they would wait for each other for ever.
    steps = {name: repeated(run, 10) for name, run in runs.items()}
    taken = harness.alternate(steps, rounds, seconds=math.inf)
    return [
        {
            "among": among, "setting": setting, "sampler": sampler, "call": call,
            "us": harness.median(times),
        }
        for (setting, sampler, call), times in taken.items()
    ]  # fmt: skip


# --- several processes ---------------------------------------------------------------------------


def member(port: int, number: int, rounds: int) -> None:
    """Be one of the processes; the first prints what it has measured."""
    jax.config.update("jax_num_cpu_devices", EACH)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", PROCESSES, number)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    runs = programs(BETWEEN, mesh, mesh.size)
    with jax.default_device(jax.local_devices()[0]):
        runs |= plain()
    found = records_of(runs, rounds, BETWEEN)
    if number == 0:
        print(json.dumps(found), flush=True)


def in_processes(rounds: int, seconds: float) -> list[Record]:
    """Start the processes, and return what the first has measured.

    Raises:
        RuntimeError: If one fails, with the last line of it.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = "from benchmarks import sharded; sharded.member({}, {}, {})"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", command.format(port, number, rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError((errors.strip().splitlines() or ["no message"])[-1])
    return json.loads(outputs[0][0].splitlines()[-1])


# --- what is read off compiled programs ----------------------------------------------------------

COLLECTIVE = re.compile(
    r"= (?P<type>\([^=]*?\)|\S+) (?P<kind>all-gather|all-reduce|all-to-all)(?:-start)?\("
)
ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


def received(text: str, devices: int) -> dict[str, int]:
    """The bytes that a device receives of others, by the kind of the collective."""
    found: dict[str, int] = {}
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if match := COLLECTIVE.search(line):
            kind = match["kind"]
            size = sum(
                math.prod(int(d) for d in dims.split(",") if d) * int(bits) // 8
                for bits, dims in ARRAY.findall(match["type"])
            )
            turns = 2 if kind == "all-reduce" else 1
            found[kind] = found.get(kind, 0) + size * turns * (devices - 1) // devices
    return found


def by_the_rule(devices: int) -> dict[str, int]:
    """The same, by the rules of `docs/know/scale_costs.md`: prioritised, one shard a device."""
    words = exchange_rounds.words(ITEM, fbuf.Prioritized())
    others = devices - 1
    # The plan, the least weight, and the largest priority for new rows.
    sums = 4 * words["plan"] * devices, 4, 4
    return {
        "all-to-all": 4
        * words["message"]
        * bucket_size(BATCH / devices, BATCH, devices**2)
        * others,
        "all-reduce": sum(size * 2 * others // devices for size in sums),
        "all-gather": 4 * words["update"] * BATCH * others,
    }


def compiled(setting: str, devices: int, shards: int) -> Record:
    """Compile a whole prioritised step, and read the program."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("data",))
    state = sharded.init(
        ITEM, ROWS * devices, mesh=mesh, shards=shards, num_envs=ADDED * devices,
        sampler=fbuf.Prioritized(),
    )  # fmt: skip
    rows = jax.tree.map(lambda leaf: np.ones((ADDED * devices, *leaf.shape), leaf.dtype), ITEM)
    rows = placed(rows, jax.NamedSharding(mesh, jax.P("data")))

    def step(state: Any, rows: Any, key: Any) -> Any:
        state = sharded.add(state, rows)
        drawn = sharded.sample(state, key, BATCH * devices)
        return sharded.update_priority(state, drawn.ids, drawn.weight), drawn

    lowered = jax.jit(step, donate_argnums=0).lower(state, rows, jax.random.key(0))
    program: Any = lowered.compile()
    text: str = program.as_text()
    shapes: list[str] = re.findall(r"= (\w+\[[\d,]+\])\S* copy\(", text)
    stored = {leaf.size // devices for leaf in jax.tree.leaves(state) if leaf.size > 64 * shards}

    def size(shape: str) -> int:
        return math.prod(int(n) for n in shape.split("[")[1][:-1].split(","))

    return {
        "setting": setting,
        "devices": devices,
        "shards": shards,
        "received": received(text, devices),
        "rule": by_the_rule(devices) if shards == devices else None,
        "temp": program.memory_analysis().temp_size_in_bytes,
        "copies": [shape for shape in shapes if size(shape) in stored],
    }


# --- the report ----------------------------------------------------------------------------------


def measure(task: Task) -> Measured:
    """Do one task."""
    if "processes" in task:
        return Measured(in_processes(task["rounds"], task["seconds"] - 10))
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    if "compiled" in task:
        return Measured([compiled(name, *setting) for name, setting in SETTINGS.items()])
    runs = plain()
    for name, (devices, shards) in SETTINGS.items():
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("data",))
        runs |= programs(name, mesh, shards)
    return Measured(records_of(runs, task["rounds"], "one process"))


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    rounds = 3 if quick else 25
    on_cpu = {"environment": {"JAX_PLATFORMS": "cpu"}}
    return [
        {"label": "compiled", "compiled": True, **on_cpu},
        {"label": "one process", "rounds": rounds, **on_cpu},
        {"label": BETWEEN, "processes": True, "rounds": rounds, "seconds": 1500, **on_cpu},
    ]


Table = tuple[list[str], list[list[str]]]
CALLS = {
    ADD: (PRIORITIZED, ADD),
    "sample, uniform": (UNIFORM, SAMPLE),
    "sample, prioritised": (PRIORITIZED, SAMPLE),
    UPDATE: (PRIORITIZED, UPDATE),
}
"""The columns of a table, each a sampler and a call."""


def line(records: list[Record], setting: str, among: str = "one process") -> list[str]:
    """The calls of a setting."""
    found = report.Find(records)
    return [
        report.number(found(among=among, setting=setting, sampler=sampler, call=call))
        for sampler, call in CALLS.values()
    ]


def scaling_table(records: list[Record]) -> Table:
    """Microseconds of each call, with one shard a device."""
    rows = [[PLAIN, *line(records, PLAIN)]]
    rows += [[name, *line(records, name)] for name in map(setting_text, DEVICES, DEVICES)]
    rows.append([f"{PLAIN}, in each of {PROCESSES} processes", *line(records, PLAIN, BETWEEN)])
    rows.append([BETWEEN, *line(records, BETWEEN, BETWEEN)])
    return ["us", *CALLS], rows


def shards_table(records: list[Record]) -> Table:
    """The same, with several shards on a device, beside one."""
    rows = []
    for devices in FEW:
        for shards in (devices, MANY):
            name = setting_text(devices, shards)
            per = shards // devices
            text = f"{name}: {per} shard{'s' if per > 1 else ''} a device"
            rows.append([text, *line(records, name)])
    return ["us", *CALLS], rows


def alone_table(records: list[Record]) -> Table:
    """Return the table of collectives alone, and of their part in a draw and in an update."""
    found = report.Find(records)
    rows = []
    for name in (*map(setting_text, DEVICES, DEVICES), BETWEEN):
        among = BETWEEN if name == BETWEEN else "one process"
        taken = {
            call: found(among=among, setting=name, sampler="alone", call=call)
            for call in (NOTHING, PLAN, ROUND, LEAST, TOLD)
        }
        cells = [name, *(report.number(us) for us in taken.values())]
        nothing = taken[NOTHING] or 0
        for call, parts in ((SAMPLE, (PLAN, ROUND, LEAST)), (UPDATE, (TOLD,))):
            whole = found(among=among, setting=name, sampler=PRIORITIZED, call=call)
            own = sum(max((taken[part] or 0) - nothing, 0) for part in parts)
            cells.append(f"{100 * own / whole:.0f} %" if whole else "-")
        rows.append(cells)
    head = ["us", NOTHING, PLAN, ROUND, LEAST, TOLD]
    return [*head, "of a prioritised sample", "of update_priority"], rows


def bytes_table(records: list[Record]) -> Table:
    """Bytes that a device receives: of the compiled programs, and by the rule of the docs."""
    kinds = {"a round": "all-to-all", "plan and 8 B": "all-reduce", UPDATE: "all-gather"}
    rows = []
    for record in records:
        if record.get("rule"):
            cells = [record["setting"]]
            for kind in kinds.values():
                cells += [f"{record[part].get(kind, 0):,}" for part in ("received", "rule")]
            rows.append(cells)
    head = ["bytes received by a device"]
    for name in kinds:
        head += [name, "by the rule"]
    return head, rows


def memory_table(records: list[Record]) -> Table:
    """Return the table of the copies of a whole prioritised step."""
    rows = [
        [r["setting"], f"{r['temp']:,}", ", ".join(r["copies"]) or "none"]
        for r in records
        if "copies" in r
    ]
    return ["a prioritised step", "temporary bytes a device", "copies of what is stored"], rows


TABLES: dict[str, Callable[[list[Record]], Table]] = {
    "Weak scaling": scaling_table,
    "Collectives alone": alone_table,
    "Several shards on a device": shards_table,
    "Bytes": bytes_table,
    "Copies": memory_table,
}


def tables(records: list[Record]) -> list[str]:
    """All of them."""
    return [
        line for title, table in TABLES.items() for line in report.section(title, *table(records))
    ]


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    found = [r for r in records if r.get("rule")]
    alike = all(
        r["received"].get(kind, 0) == count for r in found for kind, count in r["rule"].items()
    )
    in_place = not any(r.get("copies") for r in records)
    return [
        report.bar("Devices receive the bytes that docs/know/scale_costs.md states", alike),
        report.bar("A step copies nothing that is stored", in_place),
    ]


if __name__ == "__main__":
    report.script(
        title="One buffer over many devices: calls, on simulated devices",
        packages=("fbuf", "jax", "numpy"),
        keys=("among", "setting", "sampler", "call"),
    )
