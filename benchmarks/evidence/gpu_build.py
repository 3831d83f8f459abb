"""Compile each public function of fbuf for an NVIDIA H200, and read the programs.

    pip install --no-deps jax-cuda12-plugin==X jax-cuda12-pjrt==X nvidia-cuda-nvcc-cu12
    python -m benchmarks.evidence.gpu_build [--kernels] [--also PYTHON]

It needs fbuf, jax==X (private interfaces are used; known to work with X = 0.10.1 and 0.11.2) and
the plugin. It takes seven minutes, and exits with 1 if a bar is missed. Where the plugin is not
installed it says so in one line, and exits with 0. PYTHON is the interpreter of another environment
with all that: CUDA graphs are read of its JAX, too.

No GPU is needed and nothing runs: the functions are compiled for a described device, and the
optimised program is read. So kernel counts, temporary bytes, bytes written in place and copies of
whole arrays are those of the GPU build. There are no times.

A kernel is a device operation of the scheduled program; those in a loop count once a turn. Kernels
are launches a call, and of the step in scan, launches a step. Large copies are those of N / 8 bytes
or more, and larger than a batch. Rows are 17 + 6 + 1 float32 and a bool. For NStep they have a next
observation, too, and for FrameStack an observation of 84 x 84 uint8. From `Prioritized(floor=1.0)`
on they have a version. Frames are rows with such an observation. A call from Python returns them as
they are, and the kernel that reads them loads words. Load bytes are the widest load in its PTX.

XLA captures the kernels of a scanned step as CUDA graphs. The longest chain is that of kernels of
which each waits for the one before it; `cuda_graphs` says more.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.util
import math
import os
import pathlib
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

NVCC = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cuda_nvcc"


def missing() -> str | None:
    """Return a message that says what to install first, or None."""
    try:
        plugin = importlib.util.find_spec("jax_plugins.xla_cuda12") is not None
    except ModuleNotFoundError:
        plugin = False
    if plugin and NVCC.is_dir():
        return None
    return (
        "gpu_build: skipped, nothing was checked; it needs: pip install --no-deps "
        "jax-cuda12-plugin==X jax-cuda12-pjrt==X nvidia-cuda-nvcc-cu12, where X is the version "
        "of jax"
    )


if __name__ == "__main__" and (message := missing()):
    print(message)
    sys.exit(0)

# XLA reads these once, when jax is imported. Autotuning would need the GPU.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={NVCC}"
).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PATH"] = f"{NVCC / 'bin'}{os.pathsep}{os.environ['PATH']}"

import jax  # noqa: E402 (after the early exit)
import jax.numpy as jnp  # noqa: E402 (after the early exit)
import numpy as np  # noqa: E402 (after the early exit)
from jax._src.lib import xla_client  # noqa: E402 (after the early exit)

import fbuf  # noqa: E402 (after the early exit)
from benchmarks import harness, report  # noqa: E402 (after the early exit)
from benchmarks.evidence import cuda_graphs  # noqa: E402 (after the early exit)
from benchmarks.peers import ROW as ITEM  # noqa: E402 (after the early exit)
from fbuf.xla.rows import returned  # noqa: E402 (after the early exit)

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 151397597184
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
  runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
"""The device. Without the versions, XLA would leave kinds of kernels out of its CUDA graphs."""

SMALL, LARGE = 2**20, 2**23
IN_SCAN = "step in scan"
BATCH, ADDED, STEPS = 256, 16, 100
FRAMES, CALLED = "sample, frames", "sample, frames, from Python"
KERNELS = {
    ("Prioritized", "sample"): 11,
    ("Prioritized", "update_priority"): 6,
    ("Uniform", CALLED): 7,
    ("Prioritized", CALLED): 11,
}
"""The bars on kernels, at N = SMALL."""
LOADS = {FRAMES: 4, CALLED: 16}
"""The bars on load bytes."""
WANTED = {
    ("Prioritized", "sample"): (
        8,
        "A kernel each: the sums of the top, the random bits, four choices, the values, the least "
        "of them, the results, and each field. None can begin before the one before it has ended. "
        "A top that is stored saves two here, and costs one in every update",
    ),
    ("Prioritized", "update_priority"): (
        4,
        "Duplicates and faults, the leaves, and three levels, each of which reads the one below",
    ),
    ("Uniform", "sample"): (
        4,
        "Three levels of the tree of bits, for rows that were removed, are three kernels; fields "
        "of rows are one each",
    ),
    ("Prioritized(window=4)", "add"): (
        12,
        "The newly complete windows are known only after the flags have been read. Then the new "
        "leaves and the activated ones climb three levels",
    ),
}
"""The kernels that we would like, at N = SMALL, and the reason why there are more."""
IN_PLACE = (
    "add", "update_priority", "remove", "clear", "write", "expire", "draw", IN_SCAN,
)  # fmt: skip
"""The functions that must write in place: all bytes aliased, nothing copied."""

WITH_NEXT = {**ITEM, "next_observation": ITEM["observation"]}
FRAME = {**ITEM, "observation": jax.ShapeDtypeStruct((84, 84), jnp.uint8)}
GOALS = {**ITEM, "goal": ITEM["observation"], "achieved_goal": ITEM["observation"]}


def reached(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    """The reward of a row that is given a goal."""
    return jnp.all(achieved == goal)


SAMPLERS: tuple[Any, ...] = (
    fbuf.Uniform(),
    fbuf.Prioritized(),
    fbuf.Uniform(window=4),
    fbuf.Prioritized(window=4),
    fbuf.Uniform(window=4, by="episode"),
)
"""The samplers of which the functions are compiled."""
OF_WINDOWS = ("add", "add, flags and mask", "sample", "update_priority", "remove", IN_SCAN)
"""The functions that are compiled for a sampler with a window; the rest are the same."""
VIEWS: tuple[tuple[Any, dict[str, jax.ShapeDtypeStruct]], ...] = (
    (fbuf.NStep(5, gamma=0.99), WITH_NEXT),
    (fbuf.Sequence(8, burn_in=2, bootstrap=1, boundary="pad"), ITEM),
    (fbuf.FrameStack(4), FRAME),
    (fbuf.Transition("observation"), FRAME),
    (fbuf.Hindsight(reached), GOALS),
    (fbuf.Hindsight(reached, strategy={"future": 0.5, "random": 0.5}, discount=0.99), GOALS),
    (fbuf.ReturnToGo(0.99), WITH_NEXT),
    (fbuf.Window({"observation": (-3, 0), "action": range(16)}), ITEM),
    (fbuf.NStep((1, 5), gamma=0.9), WITH_NEXT),
)
"""The views that are sampled with, each with the item it is for."""
UNDER_VIEWS: tuple[Any, ...] = (fbuf.Uniform(), fbuf.Prioritized())
"""The samplers that draw for them."""
LIVES = {**ITEM, "version": jax.ShapeDtypeStruct((), jnp.int32)}
CHOOSERS: tuple[Any, ...] = (
    fbuf.Prioritized(floor=1.0),
    fbuf.Grouped("done", 2),
    fbuf.FreshFirst(),
    fbuf.FreshFirst(fbuf.Prioritized()),
    fbuf.Limited(max_uses=4),
    fbuf.Limited(fbuf.Prioritized(), max_uses=4, max_age=2**19, version="version"),
)
"""The samplers that choose among the rows, each with functions of its own; see `choices`."""

# --- reading a compiled program ------------------------------------------------------------------

# Instructions that launch no kernel of their own.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all", "while",
    "conditional", "call", "copy-done", "async-start", "async-done", "partition-id", "replica-id",
    "opt-barrier", "all-gather-done", "all-reduce-done", "all-to-all-done",
}  # fmt: skip
# Instructions that say little about what a kernel does.
DULL = FREE | {"broadcast", "convert", "reshape", "copy"}
INSTRUCTION = re.compile(
    r"^(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\([^=]*?\)|\S+) (?P<op>[\w\-]+)\("
)
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)\b.*\{$")
ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One device operation: how often it is launched, what it yields, and what is inside.

    `in_loop` says that it is in a loop whose turns XLA does not know, or looks whether there is
    another turn.
    """

    times: int
    name: str
    result: str
    operations: str
    functions: str
    in_loop: bool


@dataclasses.dataclass
class Program:
    """A function, compiled for the GPU."""

    kernels: int  # launched a call; loop bodies count once for every turn
    unknown_loops: int  # loops whose turns XLA does not know, counted as one
    temp_bytes: int
    alias_bytes: int
    large_copies: list[str]
    launches: list[Kernel]


def bytes_of(type_text: str) -> int:
    """The size of the largest array in an HLO type."""
    sizes = [0]
    for dtype, dims in ARRAY.findall(type_text):
        bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
        sizes.append(math.prod(int(d) for d in dims.split(",") if d) * bits // 8)
    return max(sizes)


def functions_of_frames(text: str) -> dict[str, str]:
    """For each stack frame of a program's tables, the innermost function of fbuf in it."""
    return {frame: calls[0] for frame, calls in calls_of_frames(text).items()}


def calls_of_frames(text: str) -> dict[str, list[str]]:
    """For each stack frame of a program's tables, the functions of fbuf in it, from the inside."""

    def table(title: str) -> list[re.Match[str]]:
        body = re.search(rf"^{title}\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
        entry = re.compile(r'(\d+) (?:"([^"]*)"|\{(.*)\})')
        return [m for m in map(entry.match, body[1].splitlines() if body else []) if m]

    files = {m[1]: pathlib.Path(m[2]) for m in table("FileNames")}
    names = {m[1]: m[2].split(".<locals>")[0] for m in table("FunctionNames")}
    fields = re.compile(r"(\w+)=(\d+)")
    places = {m[1]: dict(fields.findall(m[3])) for m in table("FileLocations")}
    frames = {m[1]: dict(fields.findall(m[3])) for m in table("StackFrames")}
    package = pathlib.Path(fbuf.__file__).parent
    found: dict[str, list[str]] = {}
    for start in frames:
        frame, seen = start, set[str]()
        while frame in frames and frame not in seen:
            seen.add(frame)
            place = places[frames[frame]["file_location_id"]]
            file = files[place["file_name_id"]]
            if file.is_relative_to(package):
                name = f"{file.stem}.{names[place['function_name_id']]}"
                found.setdefault(start, []).append(name)
            # Parents are numbered from 1 with 1 for none, one more than the frames themselves.
            frame = str(int(frames[frame].get("parent_frame_id", "1")) - 1)
    return found


def read(
    text: str, large: int, functions: dict[str, str] | None = None, conditions: bool = False
) -> tuple[int, int, list[str], list[Kernel]]:
    """Kernels, loops of unknown length, copies of at least `large` bytes, and the list.

    Args:
        text: The program.
        large: From how many bytes on a copy is a large one.
        functions: The names of the stack frames; None is those of `functions_of_frames`.
        conditions: Count the kernels that look whether a loop has another turn, too.
    """
    computations: dict[str, list[str]] = {}
    current = None
    # Long tuples hold comments, /*index=5*/: with the = in them, loops would not be recognised.
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        header = COMPUTATION.match(line)
        if header and not line.startswith(" "):
            current = "ENTRY" if header[1] else header[2]
            computations[current] = []
        elif line.strip() == "}":
            current = None
        elif current:
            computations[current].append(line.strip())

    found: list[Kernel] = []
    unknown = 0
    functions = functions_of_frames(text) if functions is None else functions

    def called(line: str, attribute: str) -> str:
        return re.search(rf"\b{attribute}=%?([\w.\-]+)", line)[1]  # type: ignore[index] (HLO has it)

    def walk(name: str, times: int, in_loop: bool = False) -> int:
        nonlocal unknown
        total = 0
        for line in computations.get(name, []):
            match = INSTRUCTION.match(line)
            if not match:
                continue
            op = match["op"]
            if op == "while":
                turns = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                unknown += turns is None
                count = int(turns[1]) if turns else 1
                inside = in_loop or turns is None
                total += count * walk(called(line, "body"), times * count, inside)
                if conditions and turns is None:
                    total += walk(called(line, "condition"), times, True)
            elif op == "call":
                total += walk(called(line, "to_apply"), times, in_loop)
            elif op == "conditional":
                names = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", line)
                for group in re.findall(r"branch_computations=\{([^}]*)\}", line):
                    names += [n.strip().lstrip("%") for n in group.split(",")]
                total += max((walk(n, times, in_loop) for n in names), default=0)
            elif op not in FREE:
                total += 1
                found.append(kernel(match, line, times, in_loop))
        return total

    def kernel(match: re.Match[str], line: str, times: int, in_loop: bool) -> Kernel:
        lines = computations[called(line, "calls")] if match["op"] == "fusion" else [line]
        inside = [(x["op"], y) for y in lines if (x := INSTRUCTION.match(y))]
        telling = [pair for pair in inside if pair[0] not in DULL] or inside
        counted = collections.Counter(op for op, _ in telling)
        frames = (re.search(r"stack_frame_id=(\d+)", y) for _, y in telling)
        sources = collections.Counter(functions.get(f[1], "") for f in frames if f)
        return Kernel(
            times,
            match["name"],
            re.sub(r"\{[^}]*\}", "", match["type"]),
            ", ".join(op if n == 1 else f"{n} {op}" for op, n in counted.most_common()),
            ", ".join(name for name, _ in sources.most_common() if name),
            in_loop,
        )

    total = walk("ENTRY", 1)
    copies = []
    for body in computations.values():
        for line in body:
            match = INSTRUCTION.match(line)
            if match and match["op"] in ("copy", "copy-start") and bytes_of(match["type"]) >= large:
                copies.append(re.sub(r"\{[^}]*\}", "", match["type"]))
    return total, unknown, copies, found


def compile_for_gpu(
    function: Callable[..., Any], arguments: tuple[Any, ...], donate: tuple[int, ...], large: int
) -> Program:
    """Compile for one H200 and read the program."""
    compiled = compiled_for_gpu(function, arguments, donate)
    memory = compiled.memory_analysis()
    kernels, unknown, copies, found = read(compiled.as_text(), large)
    return Program(
        kernels, unknown, memory.temp_size_in_bytes, memory.alias_size_in_bytes, copies, found
    )


def compiled_for_gpu(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    donate: tuple[int, ...],
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile for one H200; `options` are those of the compiler."""
    mesh = jax.sharding.Mesh(np.array(devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments
    )
    # jit leaves out an argument that is overwritten without being read (the top of a tree, say).
    # It then has no memory to write in, which would say nothing about the program.
    jitted = jax.jit(function, donate_argnums=donate, keep_unused=True)
    lowered = jitted.trace(*placed).lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options=dict(options or {}))


def load_bytes(
    function: Callable[..., Any], arguments: tuple[Any, ...], launches: list[Kernel]
) -> int:
    """Read from the PTX the widest load of the kernel with the largest result."""
    largest = max(launches, key=lambda kernel: bytes_of(kernel.result)).name.replace(".", "_")
    dumped = {"xla_dump_emitter_re": ".*"} if jax.__version_info__ >= (0, 11) else {}
    with tempfile.TemporaryDirectory() as folder:
        compiled_for_gpu(function, arguments, (), {"xla_dump_to": folder, **dumped})
        texts = [path.read_text() for path in pathlib.Path(folder).glob("*.ptx")]
    (text,) = (text for text in texts if re.search(rf"\.entry {largest}\(", text))
    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.[a-z](\d+)\s", text)
    return max(int(numbers or 1) * int(bits) // 8 for numbers, bits in loads)


_devices: dict[int, list[Any]] = {}


def devices(count: int = 1) -> list[Any]:
    """Described H200s of one host, to compile for."""
    if count not in _devices:
        jax.devices()
        # jax itself may have initialised it, which is no harm and cannot be asked beforehand.
        try:
            xla_client.initialize_pjrt_plugin("cuda")
        except Exception as error:
            if "already" not in str(error).lower():
                raise
        topology = xla_client._xla.get_default_c_api_topology(
            "cuda", "", {"target_config": H200, "topology": f"1x1x{count}"}
        )
        _devices[count] = topology._make_compile_only_devices()
    return _devices[count]


# --- what is compiled ----------------------------------------------------------------------------

Cases = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]
"""Functions by name, each with the arguments it is compiled for; the state comes first."""


def views(capacity: int, sampler: Any) -> Cases:
    """Sampling with each view, and adding rows of which next observations are kept."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    found: Cases = {}
    for view, item in VIEWS:
        next_of = getattr(view, "next_of", None)
        state = jax.eval_shape(
            lambda item=item, next_of=next_of: fbuf.init(
                item, capacity, sampler=sampler, next_of=next_of
            )
        )
        sample = lambda s, k, view=view: fbuf.sample(s, k, BATCH, view=view)
        found[f"sample, {brief(view)}"] = sample, (state, key)
    kept = {"sampler": sampler, "next_of": "observation"}
    frames = jax.eval_shape(lambda: fbuf.init(FRAME, capacity, **kept))
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((ADDED, *x.shape), x.dtype), FRAME)
    add = lambda state, rows: fbuf.add(state, rows, next_observation=rows["observation"])
    found["add, frames and the next ones"] = add, (frames, rows)
    frames = jax.eval_shape(lambda: fbuf.init(FRAME, capacity, sampler=sampler))
    sample = lambda s, k: fbuf.sample(s, k, BATCH)
    found[FRAMES], found[CALLED] = (sample, (frames, key)), (returned()(sample), (frames, key))
    return found


def _named(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return brief(value)
    return getattr(value, "__name__", repr(value))


def _default(field: dataclasses.Field[Any]) -> Any:
    has_maker = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if has_maker else field.default


def brief(value: Any) -> str:
    """A sampler or view as one would write it, without what is left at its default."""
    given = [
        f"{field.name}={_named(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != _default(field)
    ]
    return type(value).__name__ + (f"({', '.join(given)})" if given else "")


def cases(capacity: int, sampler: Any) -> Cases:
    """The public functions."""
    spec = jax.ShapeDtypeStruct
    state = jax.eval_shape(lambda: fbuf.init(ITEM, capacity, sampler=sampler))
    rows = jax.tree.map(lambda x: spec((ADDED, *x.shape), x.dtype), ITEM)
    flags = spec((ADDED,), jnp.bool_)
    key = jax.eval_shape(lambda: jax.random.key(0))
    ids = fbuf.Ids(spec((BATCH,), jnp.int32), spec((BATCH,), jnp.int32))
    reals = spec((BATCH,), jnp.float32)
    prioritized = isinstance(sampler, fbuf.Prioritized)

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        add_key, key = jax.random.split(key)
        new = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), rows)
        new["reward"] = jax.random.uniform(add_key, (ADDED,))
        state = fbuf.add(state, new)
        batch = fbuf.sample(state, key, BATCH)
        if prioritized:
            state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"]))
        return state, sum(leaf.sum() for leaf in jax.tree.leaves((batch.data, batch.weight)))

    def steps(state: Any, keys: Any) -> tuple[Any, Any]:
        return jax.lax.scan(step, state, keys)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), STEPS))
    found: Cases = {
        "init": (lambda: fbuf.init(ITEM, capacity, sampler=sampler), ()),
        "add": (lambda s, x: fbuf.add(s, x), (state, rows)),
        "add, flags and mask": (
            lambda s, x, f: fbuf.add(s, x, terminated=f, truncated=f, mask=f),
            (state, rows, flags),
        ),
        "sample": (lambda s, k: fbuf.sample(s, k, BATCH), (state, key)),
        "update_priority": (lambda s, i, p: fbuf.update_priority(s, i, p), (state, ids, reals)),
        "remove": (lambda s, i: fbuf.remove(s, i), (state, ids)),
        "clear": (lambda s: fbuf.clear(s), (state,)),
        "size": (fbuf.size, (state,)),
        "can_sample": (fbuf.can_sample, (state,)),
        "stats": (fbuf.stats, (state,)),
        IN_SCAN: (steps, (state, keys)),
    }
    if not prioritized:
        del found["update_priority"]
    if getattr(sampler, "window", 1) > 1:
        found = {name: found[name] for name in OF_WINDOWS if name in found}
    return found


def choices(capacity: int, sampler: Any) -> Cases:
    """The functions for samplers that choose: draws that count, groups, lives, and neighbours."""
    spec = jax.ShapeDtypeStruct
    state = jax.eval_shape(lambda: fbuf.init(LIVES, capacity, sampler=sampler))
    rows = jax.tree.map(lambda x: spec((ADDED, *x.shape), x.dtype), LIVES)
    key = jax.eval_shape(lambda: jax.random.key(0))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), STEPS))
    ids = fbuf.Ids(spec((BATCH,), jnp.int32), spec((BATCH,), jnp.int32))
    number, flags = spec((), jnp.int32), spec((BATCH,), jnp.bool_)
    counts, expires = sampler.notes_draws, getattr(sampler, "version", None) is not None

    sample = lambda state, key: fbuf.sample(state, key, BATCH)

    def taken(state: Any, key: Any) -> tuple[Any, Any]:
        return fbuf.draw(state, key, BATCH) if counts else (state, sample(state, key))

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        new = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), rows)
        state, batch = taken(fbuf.add(state, new), key)
        if sampler.keeps_priorities:
            state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"]))
        state = fbuf.expire(state, batch.data["version"].max()) if expires else state
        return state, sum(leaf.sum() for leaf in jax.tree.leaves((batch.data, batch.weight)))

    def thinned(state: Any, key: Any) -> Any:
        large = fbuf.sample(state, key, 4 * BATCH)
        return fbuf.thin(large, jax.random.fold_in(key, 1), BATCH, jnp.abs(large.data["reward"]))

    found: Cases = {"add": (lambda s, x: fbuf.add(s, x), (state, rows))}
    found["draw" if counts else "sample"] = taken if counts else sample, (state, key)
    if isinstance(sampler, fbuf.Prioritized):
        found["sample, thin"] = thinned, (state, key)
        found["neighbours"] = lambda s, i: fbuf.neighbours(s, i, range(-4, 1)), (state, ids)
    if isinstance(sampler, fbuf.Grouped):
        found["write"] = lambda s, i, f: fbuf.write(s, i, {"done": f}), (state, ids, flags)
        found["group_ids"] = lambda s, g: fbuf.group_ids(s, g, BATCH), (state, number)
    if isinstance(sampler, fbuf.Limited):
        found["uses"] = fbuf.uses, (state, ids)
    if expires:
        found["expire"] = lambda s, v: fbuf.expire(s, v), (state, number)
    found[IN_SCAN] = lambda s, k: jax.lax.scan(step, s, k), (state, keys)
    return found


def bytes_in(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@dataclasses.dataclass
class Row:
    """One line of the report."""

    sampler: str
    function: str
    in_place: bool  # whether it has to write in place
    kernels: int
    kernels_large: int
    unknown_loops: int
    temp_bytes: int
    temp_bytes_large: int
    alias_bytes: int
    state_bytes: int
    load_bytes: int | None  # None: not read
    large_copies: list[str]
    missed: list[str]
    launches: list[Kernel]


def measure(sampler: Any, what: Callable[[int, Any], Cases]) -> list[Row]:
    """Compile every function at both capacities and hold it against the bars."""
    rows = []
    name = brief(sampler)
    both = what(SMALL, sampler), what(LARGE, sampler)
    for function in both[0]:
        programs = []
        for capacity, found in zip((SMALL, LARGE), both, strict=True):
            call, arguments = found[function]
            writes = function.split(",")[0] in IN_PLACE
            # From this size on only the storage is meant: a batch of rows is at most some 100 kB,
            # one of frames megabytes.
            large = capacity // 8
            if function.startswith("sample"):
                large = max(large, bytes_in(jax.eval_shape(call, *arguments)) + 1)
            programs.append(compile_for_gpu(call, arguments, (0,) if writes else (), large))
        small, large_one = programs
        state_bytes = bytes_in(both[0][function][1][:1])
        missed = []
        if (bar := KERNELS.get((name, function), math.inf)) < small.kernels:
            missed.append(f"{small.kernels} kernels, at most {bar} wanted")
        if writes and small.alias_bytes < state_bytes:
            missed.append(f"{state_bytes - small.alias_bytes} bytes not written in place")
        copies = small.large_copies + large_one.large_copies
        if copies:
            missed.append(f"copies {', '.join(dict.fromkeys(copies))}")
        # A level more of the tree is a little more for each drawn row. A copy of a whole level that
        # grows with N is much more.
        if large_one.temp_bytes - small.temp_bytes > (LARGE - SMALL) // 128:
            missed.append(f"temporary memory grows to {large_one.temp_bytes} at {LARGE} rows")
        load = None
        if function in LOADS:
            load = load_bytes(*both[0][function], small.launches)
            if load < LOADS[function]:
                missed.append(f"loads of {load} bytes, {LOADS[function]} wanted")
        rows.append(
            Row(
                name,
                function,
                writes,
                small.kernels,
                large_one.kernels,
                small.unknown_loops,
                small.temp_bytes,
                large_one.temp_bytes,
                small.alias_bytes,
                state_bytes,
                load,
                copies,
                missed,
                small.launches,
            )
        )
    return rows


# --- reporting -----------------------------------------------------------------------------------


def table(rows: list[Row]) -> list[str]:
    """The report as lines of Markdown."""
    small, large = f"N = 2^{SMALL.bit_length() - 1}", f"N = 2^{LARGE.bit_length() - 1}"
    head = ["sampler", "function", f"kernels, {small}", large, f"temp bytes, {small}", large]
    head += ["bytes in place", "bytes of state", "load bytes", "large copies", "bars"]
    lines = []
    for r in rows:
        turns = STEPS if r.function == IN_SCAN else 1
        kernels = [f"{n / turns:g}" for n in (r.kernels, r.kernels_large)]
        if r.unknown_loops:
            kernels = [f"{k} and {r.unknown_loops} loops of unknown length" for k in kernels]
        sizes = [f"{n:,}" for n in (r.temp_bytes, r.temp_bytes_large)]
        place = [f"{n:,}" if r.in_place else "-" for n in (r.alias_bytes, r.state_bytes)]
        copies = ["-" if r.load_bytes is None else str(r.load_bytes), str(len(r.large_copies))]
        line = [r.sampler, r.function, *kernels, *sizes, *place, *copies]
        lines.append([*line, "; ".join(r.missed) or "held"])
    return report.table(head, lines)


def wishes(rows: list[Row]) -> list[str]:
    """Return the kernels beside those that we would like, as lines of Markdown."""
    lines = ["", "## Kernels wanted", ""]
    for row in rows:
        wanted, cause = WANTED.get((row.sampler, row.function), (math.inf, ""))
        if wanted < math.inf:
            text = f"{row.sampler}, {row.function}: {row.kernels} kernels, {wanted} wanted"
            lines.append(report.bar(text, row.kernels <= wanted, cause))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", action="store_true", help="also print what every kernel does")
    cuda_graphs.add_options(parser)
    report.add_options(parser)
    options = parser.parse_args()

    graphs = cuda_graphs.found_by_all(options.also)
    rows = [row for sampler in SAMPLERS for row in measure(sampler, cases)]
    rows += [row for sampler in UNDER_VIEWS for row in measure(sampler, views)]
    rows += [row for sampler in CHOOSERS for row in measure(sampler, choices)]
    about = {
        **harness.about("fbuf", "jax", "jax-cuda12-plugin"),
        "device": "NVIDIA H200, compiled for without one",
        "batch": str(BATCH),
        "added rows": str(ADDED),
    }
    if options.kernels:
        for row in rows:
            print(f"{row.sampler}.{row.function}:")
            for k in row.launches:
                print(f"  {k.times} x {k.name}: {k.result}")
                print(f"      {k.operations}\n      {k.functions}")
    records = [*map(dataclasses.asdict, rows), *(one.record() for one in graphs)]
    sections = [*table(rows), *wishes(rows)]
    sections += ["", "## CUDA graphs of the steps in scan", "", *cuda_graphs.table(graphs)]
    title = "The GPU build"
    report.write(
        "benchmarks.evidence.gpu_build",
        title,
        report.results_of(options),
        about,
        records,
        sections,
        __doc__,
    )
    missed = [f"{r.sampler}.{r.function}: {m}" for r in rows for m in r.missed]
    missed += cuda_graphs.missed(graphs)
    end(missed)


def end(missed: list[str]) -> None:
    """End the script: say which bars were missed, and fail if one was."""
    if missed:
        print("\nMissed:\n" + "\n".join(missed))
        sys.exit(1)
    print("\nAll bars held.")


if __name__ == "__main__":
    main()
