"""Measure each trick that orders things for XLA: fbuf with it and without it.

    python -m benchmarks.evidence.order [--do programs] [--trick NAME]    hours, on 2 cores
    python -m benchmarks.evidence.order --quick                           a few tricks, no times

It needs fbuf's dependencies alone. Run it with the oldest and with the newest JAX, too. `--do gpu`
compiles for a GPU; it needs the plugin that `gpu_build` names.

To take a trick out, some lines of a temporary copy of the package are replaced by what one would
write without it: `TRICKS`. Every process imports one such copy.

- Programs: each case is compiled as a `lax.scan` whose carry, the buffer, is donated; one that ends
  in "called" by itself. It is in place if all of the state is aliased, no array of it is copied,
  and the temporary memory is small. "same" are cases whose StableHLO is that of the package as it
  is: these are not compiled again. Under vmap there are 8 buffers.
- Times: microseconds a step of add, sample and update, in `lax.scan` and as one program called from
  Python, and of `fbuf.sample` called from Python. The processes take turns; a figure is the median
  over processes of the median over rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks import harness, report
from benchmarks.harness import ROOT, Measured, Record, Task

MODULE = "benchmarks.evidence.order"

# --- the tricks ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Edit:
    """A replacement in a file of the package: a regular expression, which must be found."""

    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Trick:
    """The code without it, and the cases in which it can make a difference."""

    edits: tuple[Edit, ...]
    cases: tuple[str, ...]
    timed: bool = False


def text(file: str, old: str, new: str) -> Edit:
    """A replacement of this very text."""
    return Edit(file, re.escape(old), new.replace("\\", "\\\\"))


def untied(file: str, value: str, reads: str) -> Edit:
    """A value that waits for nothing any more."""
    return text(file, f"tie({value}, {reads})", value)


LOOPS = ("xla/loop.py", "trees/bit_tree.py", "samplers/chance/random_bits.py")
COUNTERS = tuple(
    Edit(file, r"lax\.fori_loop\((?:zero|zero_after\([^()]*(?:\[0\])?\))(?=, )", "lax.fori_loop(0")
    for file in LOOPS
)
RESULTS = (
    text(
        "xla/loop.py",
        "return jnp.full(shape, zero.astype(dtype))",
        "return jnp.zeros(shape, dtype)",
    ),
)
ZERO = (text("xla/loop.py", "return 1 - tie(jnp.int32(1), batch)", "return jnp.int32(0)"),)
NO_CUSTOM_VMAP = (
    Edit("xla/loop.py", r"^@jax\.custom_batching\.custom_vmap\n", ""),
    Edit("xla/loop.py", r"@zero_after\.def_vmap\n(?:.+\n)+", ""),
)
FETCHED = (
    text(
        "xla/loop.py",
        "    if not is_large(array.size, array.dtype) or last - first <= _FEW:",
        "    if True:",
    ),
)
HALVES = (
    text(
        "xla/loop.py",
        "return by_platform(source, *batch, cpu=halves, default=make)",
        "return make(source, *batch)",
    ),
)
OWN_BITS = (text("samplers/chance/random_bits.py", '_THREEFRY = "threefry2x32"', '_THREEFRY = ""'),)
ROW_TWICE = (text("xla/rows.py", "slots.shape[0] == 1:", "slots.shape[0] == -1:"),)
APPEND_BARRIER = (
    text("storage/append.py", "replaced = lax.optimization_barrier(", "replaced = ("),
)
CLEAR_BARRIER = (text("ops/clear.py", "= lax.optimization_barrier(", "= ("),)
OWNERS = (
    text("storage/next_obs.py", "jnp.minimum(self.owner, -1)", "jnp.full_like(self.owner, -1)"),
)
NO_TIE = (text("xla/tie.py", "    arrays = [array", "    return value\n    arrays = [array"),)
TIE_ONE = (text("xla/tie.py", "if read.ndim and read.shape[:1] == rows:", "if False:"),)
TIE_ANY = (
    text("xla/tie.py", "read.shape[:1] == rows:", "read.ndim:"),
    text(
        "xla/tie.py",
        "return lax.bitwise_and(below, above)",
        "return lax.bitwise_and(below, above).any()",
    ),
)
TIE_BARRIER = (
    text(
        "xla/tie.py",
        "    never = functools",
        "    return jax.lax.optimization_barrier((value, *arrays))[0]\n    never = functools",
    ),
)
PLAIN_LOOPS = (*COUNTERS, *RESULTS, *ZERO)
EVERYTHING = (
    *PLAIN_LOOPS, *FETCHED, *HALVES, *OWN_BITS, *ROW_TWICE, *APPEND_BARRIER,
    *CLEAR_BARRIER, *OWNERS, *NO_TIE,
)  # fmt: skip

ASU, SUA = "add, sample, update; prioritised", "sample, update, add; prioritised"
ASR_EPISODE, ASR_START = "add, sample, remove; by episode", "add, sample, remove; by start"
ASUR_WINDOWS = "add, sample, update, remove; windows, prioritised"
SRA, SRA_START, SRA_EPISODE = (
    f"sample, remove, add; {kind}" for kind in ("uniform", "by start", "by episode")
)
SURA, SUEA = (
    "sample, update, remove, add; prioritised",
    "sample, update, end, add; envs, prioritised",
)
OTHERS = "sample, update, remove others; prioritised"
AFTER_ADD, AFTER_END = "sample, after, add; uniform", "sample, after, end; envs, prioritised"
AFTER_OTHERS = "sample, after, remove others; uniform"
AFTER_UPDATE, AFTER_WRITE = (
    "sample, after, update others; prioritised",
    "sample, after, write others; uniform",
)
NEXT = "add, sample, remove, end; next_of"
APART, APART_WINDOWS = (
    "masked add, sample, remove, end; apart, by episode",
    "masked add, sample, remove, end; apart, windows",
)
ADD_WINDOWS = "add, add; windows, prioritised"
ONE_EPISODE, ONE_WINDOWS, ONE_NEXT, ONE_ENDS = (
    "add, sample, remove; by episode; one row",
    "add, sample, update, remove; windows, prioritised; one row",
    "sample, remove, end, add; next_of; one row",
    "sample, update, end, add; prioritised; one row",
)
ACA = tuple(f"add, clear, add; {kind}" for kind in ("uniform", "prioritised", "by episode"))
ACA_NEXT, CLEAR = "add, clear, add; next_of", "clear; prioritised; called"
COMMON = (ASU, SUA, ASR_START, ASR_EPISODE, ASUR_WINDOWS)

AS_IT_IS = "none"
TRICKS: dict[str, Trick] = {
    "tie in read": Trick(
        (untied("views/gather.py", "batch.ids.slot", "*reads, *flags, *source.reads"),),
        (SRA, SUA, AFTER_ADD),
    ),
    "tie in after": Trick(
        (untied("dispatch/read_before_write.py", "state.fault", "reads"),),
        (AFTER_ADD, AFTER_END, AFTER_OTHERS, AFTER_UPDATE, AFTER_WRITE),
    ),
    "order in remove, update_priority and write": Trick(
        (text("ops/named.py", "in_order(flat.slot, state.fault)", "flat.slot, state.fault"),),
        (OTHERS, SURA, ASUR_WINDOWS, AFTER_OTHERS, AFTER_UPDATE, AFTER_WRITE, ASU),
    ),
    "tie in end_episode": Trick(
        (untied("ops/end_episode.py", "lanes", "state.fault"),), (AFTER_END, SUEA, ONE_ENDS)
    ),
    "tie in Ring.append, replaced": Trick(
        (text("storage/append.py", "reads = replaced, before", "reads = (before,)"),),
        (SRA, ASR_EPISODE, ONE_EPISODE),
    ),
    "tie in Ring.append, before": Trick(
        (text("storage/append.py", "reads = replaced, before", "reads = (replaced,)"),),
        (SUA, AFTER_ADD, SRA),
    ),
    "tie in NextObs": Trick((untied("storage/next_obs.py", "where", "before"),), (NEXT, ONE_NEXT)),
    "tie in start_index.add": Trick(
        (untied("samplers/index/start_index.py", "written", "index.total"),),
        (SRA_START, SRA_EPISODE, ASR_START),
    ),
    "tie in segments.add": Trick(
        (untied("samplers/index/segments.py", "starts.total", "count"),),
        (ASR_EPISODE, SRA_EPISODE, "add, add; by episode", ONE_EPISODE),
    ),
    "tie in segments.remove": Trick(
        (untied("samplers/index/segments.py", "starts.total", "looked_at"),),
        (SRA_EPISODE, ONE_EPISODE),
    ),
    "tie in Prioritized.add": Trick(
        (untied("samplers/index/priority_index.py", "span.slots", "before"),),
        (ADD_WINDOWS, ASUR_WINDOWS, APART_WINDOWS, ONE_WINDOWS),
    ),
    "tie in random_bits.bits": Trick(
        (untied("samplers/chance/random_bits.py", "words", "after"),),
        (ASU, ASR_EPISODE),
        timed=True,
    ),
    "tie in sum_tree, top": Trick(
        (untied("trees/sum_tree.py", "slots", "first_of(tree.nodes[-1])[0, 0]"),),
        (SUA, ASU, ADD_WINDOWS, "add, update twice; prioritised"),
    ),
    "all ties": Trick(NO_TIE, (*COMMON, APART, NEXT), timed=True),
    "tie: one element": Trick(TIE_ONE, COMMON, timed=True),
    "tie: any row": Trick(TIE_ANY, COMMON, timed=True),
    "tie: barrier": Trick(TIE_BARRIER, (SRA, *COMMON), timed=True),
    "row read twice": Trick(ROW_TWICE, (ONE_EPISODE, ONE_WINDOWS, ONE_ENDS, ONE_NEXT)),
    "barrier in Ring.append": Trick(APPEND_BARRIER, (ASU, SRA, ASR_START, ONE_EPISODE)),
    "barrier in clear": Trick(CLEAR_BARRIER, (CLEAR, *ACA)),
    "owners not constant": Trick(OWNERS, ("clear; next_of; called", ACA_NEXT)),
    "counters": Trick(COUNTERS, COMMON, timed=True),
    "results": Trick(RESULTS, COMMON, timed=True),
    "zero_after": Trick(ZERO, COMMON, timed=True),
    "counters, results and zero_after": Trick(PLAIN_LOOPS, COMMON, timed=True),
    "zero_after, one for all": Trick(NO_CUSTOM_VMAP, (ASR_START,)),
    "fetched": Trick(FETCHED, COMMON, timed=True),
    "by halves": Trick(HALVES, COMMON, timed=True),
    "bits of our own": Trick(OWN_BITS, COMMON, timed=True),
    "everything": Trick(EVERYTHING, COMMON, timed=True),
}
TRICKS = {
    AS_IT_IS: Trick(
        (),
        (
            *dict.fromkeys(case for trick in TRICKS.values() for case in trick.cases),
            "add, sample; uniform",
            "add, sample; shuffled",
            "sample, update, add; windows, prioritised",
            "masked add, sample, masked update; prioritised",
            "add, sample, update, remove; mixture",
            "sample, remove others; uniform",
            "sample, after, add; prioritised",
            "sample, after, add; by episode",
            "sample, after, end; next_of",
            "sample, write, add; uniform",
            "add, clear, add; windows, prioritised",
        ),
        timed=True,
    ),
    **TRICKS,
}
QUICK = {AS_IT_IS: (SRA, ACA[0]), "tie in read": (SRA,), "barrier in clear": (ACA[0],)}


def package_without(trick: str, folder: pathlib.Path) -> None:
    """Write a copy of the package without a trick into a folder, to be put on the path.

    Raises:
        ValueError: If what is to be replaced is not there any more.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fbuf", folder / "fbuf", ignore=ignored)
    for edit in TRICKS[trick].edits:
        path = folder / "fbuf" / edit.file
        source, count = re.subn(edit.old, edit.new, path.read_text(), flags=re.MULTILINE)
        if not count:
            raise ValueError(f"order: {edit.file} has nothing like {edit.old!r} any more")
        path.write_text(source)


# --- what is compiled ----------------------------------------------------------------------------

CAPACITY = 2**21
LARGE = 200_000
"""Bytes; every array of a state that a copy would matter of is larger, and no batch is."""
BATCH, ADDED, ENVS, SEEDS = 64, 16, 16, 8


def make_item() -> Any:
    """A row of 97 bytes."""
    import jax.numpy as jnp

    return {
        "observation": jnp.zeros(17),
        "action": jnp.zeros(6),
        "reward": jnp.zeros(()),
        "done": jnp.zeros((), bool),
    }


def kinds() -> dict[str, dict[str, Any]]:
    """The kinds of buffers: the arguments of `init`."""
    import fbuf

    by_episode, windowed = fbuf.Uniform(window=3, by="episode"), fbuf.Prioritized(window=3)
    prioritized, apart = fbuf.Prioritized(), {"num_envs": ENVS, "lockstep": False}
    return {
        "uniform": {"sampler": fbuf.Uniform()},
        "shuffled": {"sampler": fbuf.Shuffled()},
        "prioritised": {"sampler": prioritized},
        "by start": {"sampler": fbuf.Uniform(window=3)},
        "by episode": {"sampler": by_episode},
        "windows, prioritised": {"sampler": windowed},
        "mixture": {"sampler": fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, priorities=windowed)},
        "envs, prioritised": {"sampler": prioritized, "num_envs": ENVS},
        "apart, by episode": {"sampler": by_episode, **apart},
        "apart, windows": {"sampler": windowed, **apart},
        "next_of": {"sampler": fbuf.Uniform(), "next_of": "observation"},
    }


def step_of(operations: str, one_row: bool) -> Callable[[Any, Any], Any]:
    """A step `(state, key) -> (state, number)` that does these one after the other."""
    import jax
    import jax.numpy as jnp

    import fbuf

    batch_size, added = (1, 1) if one_row else (BATCH, ADDED)

    def add(state: Any, key: Any, operation: str) -> Any:
        def rows() -> Any:
            return jax.tree.map(lambda x: jnp.ones((*lead, *x.shape), x.dtype), make_item())

        envs = state.ring.num_envs
        lead = (added,) if envs is None else (envs, added // envs)
        more: dict[str, Any] = {}
        if operation != "plain add":
            more["truncated"] = jax.random.bernoulli(key, 0.1, lead)
        if operation == "masked add":
            more["mask"] = jax.random.bernoulli(key, 0.5, lead)
        if state.next_obs is not None:
            more["next_observation"] = rows()["observation"]
        return fbuf.add(state, rows(), **more)

    def sample(state: Any, key: Any) -> Any:
        view = fbuf.Sequence(3, boundary="stop") if state.sampler.window > 1 else fbuf.Item()
        in_order = isinstance(state.sampler, fbuf.Shuffled)
        more = {"step": jax.random.bits(key) >> 1} if in_order else {}
        return fbuf.sample(state, key, batch_size, view=view, **more)

    def change(state: Any, key: Any, operation: str, batch: Any) -> Any:
        if operation == "update":
            return fbuf.update_priority(state, batch.ids, batch.weight)
        if operation == "update twice":
            ids = fbuf.ids_at(state, jnp.arange(batch_size, dtype=jnp.int32))
            state = fbuf.update_priority(state, ids, jnp.ones(batch_size))
            return fbuf.update_priority(state, ids, jnp.ones(batch_size))
        if operation == "masked update":
            mask = jax.random.bernoulli(key, 0.5, (batch_size,))
            return fbuf.update_priority(state, batch.ids, batch.weight, mask=mask)
        if operation == "write":
            return fbuf.write(state, batch.ids, {"reward": batch.data["reward"] + 1})
        if operation == "remove":
            return fbuf.remove(state, batch.ids)
        if operation.endswith("others"):  # ids that nobody has read the rows of
            slots = jax.random.randint(key, (batch_size,), 0, CAPACITY, jnp.int32)
            ids = fbuf.ids_at(state, slots)
            if operation == "update others":
                return fbuf.update_priority(state, ids, jnp.ones(batch_size))
            if operation == "write others":
                return fbuf.write(state, ids, {"reward": jnp.ones(batch_size)})
            return fbuf.remove(state, ids)
        if operation == "after":
            return fbuf.after(state, batch)
        return {"end": fbuf.end_episode, "clear": fbuf.clear}[operation](state)

    def step(state: Any, key: Any) -> Any:
        batch, out = None, jnp.float32(0)
        for operation in operations.split(", "):
            key, own = jax.random.split(key)
            if operation.endswith("add"):
                state = add(state, own, operation)
            elif operation == "sample":
                batch = sample(state, own)
                out += sum(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(batch))
            else:
                state = change(state, own, operation, batch)
        return state, out

    return step


def program_of(case: str, seeds: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The program of a case, and the shapes of its arguments, the state and keys."""
    import jax
    import jax.numpy as jnp

    import fbuf

    operations, kind, *more = case.split("; ")
    step = step_of(operations, "one row" in more)

    def make(_: Any) -> Any:
        return fbuf.init(make_item(), CAPACITY, **kinds()[kind])

    def keys(*shape: int) -> Any:
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), shape))

    if "called" in more:
        return step, (jax.eval_shape(lambda: make(0)), jax.eval_shape(lambda: jax.random.key(0)))
    if not seeds:
        return lambda s, k: jax.lax.scan(step, s, k), (jax.eval_shape(lambda: make(0)), keys(3))
    state = jax.eval_shape(lambda: jax.vmap(make)(jnp.arange(seeds)))
    return lambda s, k: jax.lax.scan(jax.vmap(step), s, k), (state, keys(3, seeds))


def large_copies(hlo: str, large: int) -> list[str]:
    """The types of what is copied, of at least so many bytes."""
    found = []
    copy = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) copy(?:-start)?\(")
    for line in hlo.splitlines():
        match = copy.match(line)
        arrays = re.findall(r"\b(pred|[a-z]+)(\d*)\[([\d,]*)\]", match[1]) if match else ()
        for kind, bits, dims in arrays:
            size = int(bits or 8) // 8
            for dim in dims.split(","):
                size *= int(dim or 1)
            if size >= large:
                found.append(f"{kind}{bits}[{dims}]")
    return found


def look(case: str, do: str, known: dict[str, str]) -> Record:
    """Compile a case, for the CPU or for a GPU, and read the program."""
    if do == "gpu":
        from benchmarks.evidence import gpu_build  # before jax, which it prepares
    import jax

    seeds = SEEDS if do == "vmap" else 0
    large = LARGE * max(seeds, 1)
    run, arguments = program_of(case, seeds)
    lowered = jax.jit(run, donate_argnums=0).lower(*arguments)
    stable = lowered.as_text()
    found: Record = {
        "lines": stable.count("\n"),
        "hash": hashlib.sha256(stable.encode()).hexdigest(),
    }
    if known.get(case) == found["hash"]:
        return {**found, "same": True}
    if do == "gpu":
        program = gpu_build.compile_for_gpu(run, arguments, (0,), large)
        temp, alias, copies = program.temp_bytes, program.alias_bytes, program.large_copies
        found["kernels"] = program.kernels
    else:
        compiled = lowered.compile()
        memory = compiled.memory_analysis()
        temp, alias = memory.temp_size_in_bytes, memory.alias_size_in_bytes
        copies = large_copies(compiled.as_text(), large)
    leaves = jax.tree.leaves(arguments[0])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    in_place = alias == size and temp < large and not copies
    return {
        **found,
        "temp": temp,
        "not_aliased": size - alias,
        "copies": copies,
        "in_place": in_place,
    }


# --- what is timed -------------------------------------------------------------------------------

ROWS, STEPS, ROUNDS = 10**6, 50, 20
TIMED = ("prioritised", "uniform", "by start", "by episode", "windows, prioritised")


def clock(trick: str) -> list[Record]:
    """Microseconds a step of each program."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fbuf

    records = []
    for kind in TIMED:
        state = fbuf.init(make_item(), ROWS, **kinds()[kind])
        rows = jax.tree.map(lambda x: jnp.ones((ROWS, *x.shape), x.dtype), make_item())
        state = fbuf.add(state, rows, truncated=jnp.asarray(np.arange(ROWS) % 500 == 499))
        updates = isinstance(state.sampler, fbuf.Prioritized)
        step = step_of("add, sample, update" if updates else "add, sample", one_row=False)
        keys = jax.random.split(jax.random.key(1), STEPS)
        several = list(keys)
        run = jax.jit(lambda s, k, step=step: jax.lax.scan(step, s, k), donate_argnums=0)
        call = jax.jit(step, donate_argnums=0)
        held = [state]

        def in_scan(held: Any = held, run: Any = run, keys: Any = keys) -> int:
            held[0], out = run(held[0], keys)
            jax.block_until_ready((held[0], out))
            return STEPS

        def called(held: Any = held, call: Any = call, several: Any = several) -> int:
            for key in several:
                held[0], out = call(held[0], key)
                jax.block_until_ready(out)
            return STEPS

        def sampled(held: Any = held, several: Any = several) -> int:
            for key in several:
                jax.block_until_ready(fbuf.sample(held[0], key, BATCH).weight)
            return STEPS

        ways = {"in scan": in_scan, "called": called, "sample called": sampled}
        for way, taken in harness.alternate(ways, ROUNDS).items():
            us = harness.median(taken)
            records.append({"do": "times", "trick": trick, "case": kind, "way": way, "us": us})
    return records


# --- the report ----------------------------------------------------------------------------------


def measure(task: Task) -> Measured:
    """Look at the programs of the package without a trick, or time it."""
    found, trick, do = Measured(), task["trick"], task["do"]
    with tempfile.TemporaryDirectory() as folder:
        package_without(trick, pathlib.Path(folder))
        sys.path.insert(0, folder)
        if do == "times":
            return Measured(clock(trick))
        for case in task["cases"]:
            try:
                record = look(case, do, task["known"])
                found.records.append({"do": do, "trick": trick, "case": case, **record})
            except Exception as error:
                what = str(error).splitlines()[0][:200]
                found.notes.append(f"{do}, without {trick}, {case}: {type(error).__name__}: {what}")
    return found


def take(do: str, options: argparse.Namespace) -> Measured:
    """Run the tasks of one kind."""
    tricks = options.trick or list(QUICK if options.quick else TRICKS)
    if do == "times":
        tasks = [
            {"label": f"times, without {trick}", "do": do, "trick": trick}
            for _ in range(options.processes)
            for trick in tricks
            if TRICKS[trick].timed
        ]
        return harness.run_tasks(MODULE, tasks)

    def task(trick: str, cases: tuple[str, ...], known: dict[str, str]) -> Task:
        label = f"{do}, without {trick}"
        task = {"label": label, "do": do, "trick": trick, "cases": cases, "known": known}
        if do != "gpu":  # LLVM comes after all that is looked at, and takes half of the time.
            task["environment"] = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        return task

    cases = {
        trick: tuple(
            case
            for case in (QUICK[trick] if options.quick else TRICKS[trick].cases)
            if not options.case or case in options.case
        )
        for trick in tricks
    }
    found, known = Measured(), {}
    if AS_IT_IS in tricks:  # first, so that what is the same need not be compiled again
        found = harness.run_tasks(MODULE, [task(AS_IT_IS, cases.pop(AS_IT_IS), {})])
        known = {record["case"]: record["hash"] for record in found.records}
    others = harness.run_tasks(MODULE, [task(trick, cases[trick], known) for trick in cases])
    return Measured(found.records + others.records, found.notes + others.notes)


def bytes_text(count: int) -> str:
    """So many bytes, in the largest unit that fits."""
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def lost(record: Record) -> str:
    """Return the cost of a case that is not in place."""
    parts = [f"temporary {bytes_text(record['temp'])}"]
    if record["copies"]:
        parts.append(f"copies {' '.join(record['copies'])}")
    if record["not_aliased"]:
        parts.append(f"not aliased {bytes_text(record['not_aliased'])}")
    return f"{record['case']}: {', '.join(parts)}"


def tables(records: list[Record]) -> list[str]:
    """Return the programs without each trick, and the times."""
    lines: list[str] = []
    for do in ("programs", "vmap", "gpu"):
        rows = []
        for trick in TRICKS:
            its = [r for r in records if (r["do"], r["trick"]) == (do, trick)]
            same = [r["case"] for r in its if "same" in r]
            bad = [lost(r) for r in its if "same" not in r and not r["in_place"]]
            if its:
                fine = f"{len(its) - len(bad)} of {len(its)}"
                kernels = " ".join(str(r.get("kernels", "-")) for r in its)
                rows.append([trick, fine, str(len(same)), "; ".join(bad) or "-", kernels])
        if rows:
            head = ["without", "in place", "same", "not in place", "kernels"]
            if do != "gpu":
                head, rows = head[:-1], [row[:-1] for row in rows]
            lines += report.section(f"{do.capitalize()}", head, rows)
    timed = [r for r in records if r["do"] == "times"]
    columns = list(dict.fromkeys((r["case"], r["way"]) for r in timed))
    find = report.Find(timed)
    rows = [
        [trick, *(report.number(find(trick=trick, case=c, way=w)) for c, w in columns)]
        for trick in TRICKS
        if any(r["trick"] == trick for r in timed)
    ]
    if rows:
        head = ["without", *(f"{case}, {way}" for case, way in columns)]
        lines += report.section("Microseconds a step", head, rows)
    return lines


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few tricks: does it run?")
    parser.add_argument("--do", action="append", choices=("programs", "vmap", "gpu", "times"))
    parser.add_argument("--trick", action="append", choices=tuple(TRICKS), help="repeatable")
    parser.add_argument("--case", action="append", help="this case alone; repeatable")
    parser.add_argument("--processes", type=int, default=5, help="that take each time")
    report.add_options(parser)
    options = parser.parse_args()
    if options.worker:
        harness.work(measure, json.loads(options.worker), options.out)
        return
    found = Measured()
    for do in options.do or (["programs"] if options.quick else ["programs", "vmap", "times"]):
        its = take(do, options)
        found.records += its.records
        found.notes += its.notes
    records = harness.merged(found.records, ("do", "trick", "case", "way"))
    title = "The worth of each trick that orders things for XLA"
    about = harness.about("fbuf", "jax", "jaxlib")
    sections = tables(records) + report.missing(found.notes)
    report.write(MODULE, title, report.results_of(options), about, records, sections, __doc__)


if __name__ == "__main__":
    main()
