"""What each trick that orders things for XLA is worth: fbuf with it and without it.

    python benchmarks/ablations/order.py [--python PATH ...]    hours, on 2 cores
    python benchmarks/ablations/order.py --quick                four variants, two cases, no times

It writes `results/order.json` and `order.md`. With `--python` other interpreters are measured too,
for example one with an older jax; each needs jax and chex, and fbuf is taken from this tree. Where
the CUDA plugin that `gpu_build.py` names is installed, the programs for a GPU are compiled as well;
`--gpu PATH` names an interpreter that has it.

A variant is a copy of the package in which some lines are replaced by what one would write without
the trick: `VARIANTS`. Of each variant three things are asked:

- Programs: each of `cases()` is compiled as a `lax.scan` whose carry, the buffer, is donated. It is
  in place if all of the state is aliased and the temporary memory is small; `copy` operations of
  large arrays are counted in the compiled text. Lines are those of StableHLO. A case whose
  StableHLO is the same as with the trick is not compiled again.
- Times: microseconds a step, in `lax.scan` and called from Python. Every process runs one variant;
  the processes take turns. A figure is the median over processes of the fastest round of each; a
  round is short, so that on a busy machine some have a core for themselves.
- GPU: kernels, temporary bytes and large copies of the same cases, compiled for an H200.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
PACKAGE = HERE.parents[1] / "fbuf"

from benchmarks.harness import about  # noqa: E402
from benchmarks.report import save as write_report  # noqa: E402
from benchmarks.report import table as render  # noqa: E402

# --- the variants --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Edit:
    """A replacement in a file of the package: a regular expression, which must be found."""

    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is replaced, in words and in text."""

    what: str
    edits: tuple[Edit, ...]
    timed: bool = False


def text(file: str, old: str, new: str) -> Edit:
    """A replacement of this very text."""
    return Edit(file, re.escape(old), new.replace("\\", "\\\\"))


LOOPS = ("_rows.py", "trees/_levels.py", "trees/sum_tree.py", "trees/bit_tree.py", "_loop.py")
COUNTERS = tuple(
    Edit(
        file, r"lax\.fori_loop\((?:zero|(?:_loop\.)?zero_after\([^()]*\))(?=, )", "lax.fori_loop(0"
    )
    for file in LOOPS
)
BLANKS = (
    text(
        "_loop.py", "return jnp.full(shape, zero.astype(dtype))", "return jnp.zeros(shape, dtype)"
    ),
)
ZEROS = (Edit("_loop.py", r"return \(batch\.reshape\(-1\)\[0\] == .*", "return jnp.int32(0)"),)
KEYS = tuple(
    Edit(file, r"^ *key = _order\.key_after\(.*\n", "")
    for file in ("samplers/_runs.py", "samplers/_start_index.py", "samplers/prioritized.py")
)
FETCHED = (
    Edit(
        "_loop.py",
        r"    unrolled = min\(_UNROLLED",
        "    return batch\n    unrolled = min(_UNROLLED",
    ),
)
READ_ROW_TWICE = (Edit("_rows.py", r"slots\.shape\[0\] == 1:", "slots.shape[0] == -1:"),)
READ_LEAF_TWICE = (Edit("trees/_levels.py", r"slots\.shape\[0\] == 1:", "slots.shape[0] == -1:"),)
BARRIERS = {
    "_ring.append": text("_ring.py", "replaced = lax.optimization_barrier(", "replaced = ("),
    "_ring.end": text("_ring.py", "flags = lax.optimization_barrier(", "flags = ("),
    "bit_tree.read": text("trees/bit_tree.py", "lax.optimization_barrier(_bit", "(_bit"),
}
AFTER = {
    "sample: ids after the rows": ("_sample.py", "ids.slot, impossible"),
    "_nexts: owners": ("_nexts.py", "where, _order.never(before)"),
    "_ring.append: slots after what was removed": ("_ring.py", "slots, removed < 0"),
    "remove: slots after the faults": ("_update.py", "slots, state.fault == jnp.uint32(2**32 - 1)"),
    "end_episode: lanes after the faults": (
        "_end_episode.py",
        "lanes.reshape(-1), state.fault == jnp.uint32(2**32 - 1)",
    ),
    "add: slots after the faults": (
        "_add.py",
        "state.ring.removed, state.fault == jnp.uint32(2**32 - 1)",
    ),
    "_runs.remove: total": ("samplers/_runs.py", "starts.total, looked_at"),
    "Prioritized.add: slots after the values": (
        "samplers/prioritized.py",
        "span.slots, _order.never(before)",
    ),
    "Prioritized.remove: slots after the values": ("samplers/prioritized.py", "slots, total < 0"),
    "sum_tree: slots after the top": ("trees/sum_tree.py", "slots, tree.nodes[-1][0, 0, 0] < 0"),
    "_start_index.add: slots after the total": (
        "samplers/_start_index.py",
        "written, index.total < 0",
    ),
}


def plain(place: str) -> Edit:
    """A value that waits for nothing any more."""
    file, inside = AFTER[place]
    return text(file, f"_order.after({inside})", inside.split(", ")[0])


NO_AFTER = tuple(plain(place) for place in AFTER)
NO_CUSTOM_VMAP = (
    Edit(
        "_loop.py",
        r"@jax\.custom_batching.*\n(def zero_after.*\n(?:.*\n)*?)\n\n@zero_after(?:.*\n)*?\n\n",
        r"\1\n\n",
    ),
)
ENDS = (Edit("_ring.py", r"    ends \|= before\.position < 0\n", ""),)
FOUND = (
    text("trees/bit_tree.py", "found = jnp.minimum(ranks, 0)", "found = jnp.zeros_like(ranks)"),
)
CLEARED = (
    text("trees/sum_tree.py", "jnp.minimum(tree.nodes[-1], 0)", "jnp.zeros_like(tree.nodes[-1])"),
    text("samplers/prioritized.py", "jnp.minimum(index.largest_ever, 0)", "jnp.float32(0)"),
    text("_nexts.py", "jnp.minimum(nexts.owner, -1)", "jnp.full_like(nexts.owner, -1)"),
)

ASU, SUA = "add, sample, update; prioritised", "sample, update, add; prioritised"
START, EPISODE, PRIORITISED = "windows by start", "windows by episode", "windows, prioritised"
ONE_EPISODE, ONE_WINDOWS = "one row; by episode", "one row; windows, prioritised"
REMOVES, ENDS_FIRST = (
    "sample, update, remove, add; prioritised",
    "sample, update, end, add; prioritised",
)
APART, NEXT = "envs apart, by episode", "next_of; uniform"
ONE_NEXT, ONE_ENDS = "one row, next_of; uniform", "one row; sample, update, end, add; prioritised"
COMMON = (ASU, SUA, START, EPISODE, PRIORITISED)
LOOKS: dict[str, tuple[str, ...]] = {
    "c keys": (ASU, EPISODE),
    "e1": (ONE_EPISODE, ONE_WINDOWS, ONE_ENDS, ONE_NEXT),
    "e2": (ONE_WINDOWS,),
    "e both": (ONE_WINDOWS,),
    "f1": (ASU, START, PRIORITISED),
    "f2": (ENDS_FIRST, APART, ONE_ENDS),
    "f3": (START, EPISODE, ONE_EPISODE),
    "f all": (START, EPISODE, PRIORITISED, APART, ONE_EPISODE),
    "g1 ": (SUA, REMOVES, "sample, remove, add; uniform"),
    "g2 ": (NEXT, ONE_NEXT),
    "g3 ": (ASU, START, ONE_EPISODE),
    "g4 ": (REMOVES, "sample, update, remove others; prioritised"),
    "g5 ": (ENDS_FIRST, ONE_ENDS),
    "g6 ": (SUA,),
    "g7 ": ("sample, remove, add; by episode", ONE_EPISODE),
    "g8 ": (PRIORITISED, ONE_WINDOWS),
    "g9 ": (PRIORITISED, ONE_WINDOWS),
    "g10": (ASU, SUA, "update twice; prioritised"),
    "g11": (
        "sample, remove, add; by episode",
        "sample, remove, add; by start",
        START,
        ONE_EPISODE,
    ),
    "g all": (ASU, SUA, START, EPISODE, PRIORITISED, APART, NEXT),
    "h": (START,),
    "i": (EPISODE, PRIORITISED),
    "j": (EPISODE, START),
    "k": ("clear; prioritised",),
    "tie": (ASU, SUA, REMOVES, START, EPISODE, PRIORITISED, "sample, remove, add; uniform"),
    "all plain": (ASU, SUA, START, EPISODE, PRIORITISED),
}
"""The cases in which a variant, by the beginning of its name, can make a difference."""


def looks_of(name: str) -> tuple[str, ...]:
    """The cases to look at for a variant."""
    if name == "as it is":
        return tuple(dict.fromkeys(case for looks in LOOKS.values() for case in looks))
    return next((looks for start, looks in LOOKS.items() if name.startswith(start)), COMMON)


# One primitive for all of order, in several forms. Of a read that is a scalar condition already, as
# most are, only the last line differs.
SAMPLE_ORDER = Edit(
    "_sample.py",
    r"    impossible = \(reading(?:.*\n)*?    mask = ",
    "    reads = [reading.flags, *jax.tree.leaves(reading.data)]\n"
    "    if reading.others is not None:\n"
    "        reads.append(reading.others)\n"
    "    impossible = _order.never_of(reads)\n"
    "    mask = ",
)
TIE_SCALAR = (
    SAMPLE_ORDER,
    Edit(
        "_order.py",
        r"\Z",
        """

def never_of(reads):
    found = jnp.zeros((), bool)
    for read in reads:
        found |= never(read)
    return found


def never(read):
    if read.size == 0 or jnp.issubdtype(read.dtype, jnp.complexfloating):
        return jnp.zeros((), bool)
    number = read.reshape(-1)[0].astype(jnp.float32)
    return (number < 1) & (number > 2)
""",
    ),
)
TIE_ANY = (
    SAMPLE_ORDER,
    Edit(
        "_order.py",
        r"\Z",
        """

def never_of(reads):
    found = jnp.zeros((), bool)
    for read in reads:
        found |= never(read)
    return found


def never(read):
    if read.size == 0 or jnp.issubdtype(read.dtype, jnp.complexfloating):
        return jnp.zeros((), bool)
    number = read.reshape(read.shape[0], -1)[:, 0].astype(jnp.float32)
    return ((number < 1) & (number > 2)).any()
""",
    ),
)
BARRIER = """

def never_of(reads):
    return list(reads)


def never(read):
    return read


def after(value, never):
    return lax.optimization_barrier((value, never))[0]
"""
TIE_BARRIER = (
    SAMPLE_ORDER,
    Edit("_order.py", r"\Z", BARRIER),
    text(
        "_order.py", "import jax.numpy as jnp\n", "import jax.numpy as jnp\nfrom jax import lax\n"
    ),
)
TIE_BARRIER_THROUGH = (
    *TIE_BARRIER[1:],
    Edit(
        "_sample.py",
        r"    impossible = \(reading(?:.*\n)*?    mask = ",
        "    slot, reading = jax.lax.optimization_barrier((ids.slot, reading))\n"
        "    ids = dataclasses.replace(ids, slot=slot)\n    impossible = ()\n    mask = ",
    ),
    Edit(
        "views/_protocol.py",
        r"^@dataclasses\.dataclass\(frozen=True\)\nclass Reading",
        "@jax.tree_util.register_dataclass\n@dataclasses.dataclass(frozen=True)\nclass Reading",
    ),
)

VARIANTS: dict[str, Variant] = {
    "as it is": Variant("nothing", (), timed=True),
    "a counters": Variant("loops count from 0", COUNTERS, timed=True),
    "b results": Variant("results of loops begin as zeros", BLANKS, timed=True),
    "ab counters and results": Variant(
        "`zero_after` is 0: counters, results, and the lanes of `_runs`", ZEROS, timed=True
    ),
    "ab+ loops as one would write them": Variant(
        "counters from 0, results zeros, `zero_after` 0", COUNTERS + BLANKS + ZEROS, timed=True
    ),
    "c keys": Variant("random bits wait for nothing", KEYS, timed=True),
    "d fetched": Variant("rows are not looked at beforehand", FETCHED, timed=True),
    "e1 row read twice": Variant("a single row is read once", READ_ROW_TWICE),
    "e2 leaf read twice": Variant("a single leaf is read once", READ_LEAF_TWICE),
    "e both": Variant("a single row or leaf is read once", READ_ROW_TWICE + READ_LEAF_TWICE),
    **{
        f"f{n} barrier in {place}": Variant("no barrier", (edit,))
        for n, (place, edit) in enumerate(BARRIERS.items(), start=1)
    },
    "f all": Variant("no barrier at all", tuple(BARRIERS.values()), timed=True),
    **{
        f"g{n} {place}": Variant("waits for nothing", (plain(place),))
        for n, place in enumerate(AFTER, start=1)
    },
    "g all": Variant("nothing waits", NO_AFTER, timed=True),
    "h custom_vmap": Variant("`zero_after` is batched as it comes", NO_CUSTOM_VMAP),
    "i ends": Variant("flags left out are constants", ENDS, timed=True),
    "j found": Variant("the row of the top is a constant", FOUND, timed=True),
    "k cleared": Variant("what is cleared is a constant", CLEARED),
    "tie: one element": Variant(
        "`never` is a scalar, of one element a read", TIE_SCALAR, timed=True
    ),
    "tie: any row": Variant("`never` is a scalar, of all rows of a read", TIE_ANY, timed=True),
    "tie: barrier": Variant("`optimization_barrier((value, *reads))[0]`", TIE_BARRIER, timed=True),
    "tie: barrier, reads through it": Variant(
        "the same, and a sample is made of what comes out of it", TIE_BARRIER_THROUGH, timed=True
    ),
    "all plain": Variant(
        "all of the above",
        COUNTERS + BLANKS + ZEROS + KEYS + FETCHED + READ_ROW_TWICE + READ_LEAF_TWICE
        + tuple(BARRIERS.values()) + NO_AFTER + ENDS + FOUND + CLEARED,
        timed=True,
    ),
}  # fmt: skip


def package_of(variant: Variant, folder: pathlib.Path) -> pathlib.Path:
    """A copy of the package with the replacements made, to be put on the path.

    Raises:
        ValueError: If what is to be replaced is not there any more.
    """
    shutil.copytree(PACKAGE, folder / "fbuf", ignore=shutil.ignore_patterns("__pycache__"))
    found: set[tuple[str, str]] = set()
    for edit in variant.edits:
        path = folder / "fbuf" / edit.file
        source, count = re.subn(edit.old, edit.new, path.read_text(), flags=re.MULTILINE)
        path.write_text(source)
        if count:
            found.add((edit.old, ""))
        elif (edit.old, "") not in found and not any(
            re.search(e.old, (PACKAGE / e.file).read_text(), re.MULTILINE)
            for e in variant.edits
            if e.old == edit.old
        ):
            raise ValueError(f"order: {edit.file} has nothing like {edit.old!r} any more")
    return folder


# --- what is compiled ----------------------------------------------------------------------------

Case = tuple[Callable[..., Any], Any, dict[str, Any]]
"""A step `(state, key) -> (state, numbers)`, a sampler, and options of `init`."""
CAPACITY = 2**21
LARGE = 200_000
"""Bytes; every array of a state is larger, and no batch is."""
BATCH, ADDED = 64, 16
SEEDS = 8


def cases() -> dict[str, Case]:
    """The programs to look at."""
    import jax
    import jax.numpy as jnp

    import fbuf

    item = make_item()

    def rows(count: int) -> Any:
        return jax.tree.map(lambda x: jnp.ones((count, *x.shape), x.dtype), item)

    def used(batch: Any) -> Any:
        return sum(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(batch))

    def ends(key: Any, count: int) -> Any:
        return jax.random.bernoulli(key, 0.1, (count,))

    def of(*verbs: str, batch: int = BATCH, added: int = ADDED, view: Any = fbuf.Item()) -> Any:
        """A step that does these one after the other."""

        def step(state: Any, key: Any) -> Any:
            sample, out = None, jnp.float32(0)
            for number, verb in enumerate(verbs):
                key, k = jax.random.split(key)
                mine = {"truncated": ends(k, added)} if number % 2 else {}
                if state.next_obs is not None:
                    mine["next_observation"] = rows(added)["observation"]
                items = rows(added)
                if state.ring.num_envs is not None:
                    shape = (state.ring.num_envs, added // state.ring.num_envs)
                    items, mine = jax.tree.map(
                        lambda x, shape=shape: x.reshape(*shape, *x.shape[1:]), (items, mine)
                    )
                if verb == "add":
                    state = fbuf.add(state, items, **mine)
                elif verb == "masked add":
                    mask = jax.random.bernoulli(k, 0.5, jax.tree.leaves(items)[0].shape[:2])
                    if state.ring.num_envs is None:
                        mask = mask[:, 0] if mask.ndim > 1 else mask
                    state = fbuf.add(state, items, mask=mask, **mine)
                elif verb == "sample":
                    given = {"step": jax.random.bits(k) >> 1} if in_order(state) else {}
                    sample = fbuf.sample(state, k, batch, view=view, **given)
                    out += used(sample)
                elif verb == "update":
                    state = fbuf.update_priority(state, sample.ids, sample.weight)
                elif verb == "masked update":
                    mask = jax.random.bernoulli(k, 0.5, (batch,))
                    state = fbuf.update_priority(state, sample.ids, sample.weight, mask=mask)
                elif verb == "remove":
                    state = fbuf.remove(state, sample.ids)
                elif verb == "remove others":  # not in this order has anyone read them yet
                    ids = jax.tree.map(lambda x: x[::-1], sample.ids)
                    state = fbuf.remove(state, ids)
                elif verb == "end":
                    state = fbuf.end_episode(state)
                elif verb == "clear":
                    state = fbuf.clear(state)
            return state, out

        return step

    def in_order(state: Any) -> bool:
        return isinstance(state.sampler, fbuf.Shuffled)

    uniform, prioritized = fbuf.Uniform(), fbuf.Prioritized()
    by_start, by_episode = fbuf.Uniform(window=3), fbuf.Uniform(window=3, by="episode")
    windowed = fbuf.Prioritized(window=3)
    mixture = fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, priorities=windowed)
    shared = {"next_of": "observation"}
    envs, apart = {"num_envs": 16}, {"num_envs": 16, "lockstep": False}
    view = fbuf.Sequence(3, boundary="stop")
    turn = ("add", "sample", "update", "remove")
    no_update = ("add", "sample", "remove")
    return {
        "add; prioritised": (of("add"), prioritized, {}),
        "add, sample; uniform": (of("add", "sample"), uniform, {}),
        "add, sample; shuffled": (of("add", "sample"), fbuf.Shuffled(), {}),
        "add, sample, update; prioritised": (of("add", "sample", "update"), prioritized, {}),
        "sample, update, add; prioritised": (of("sample", "update", "add"), prioritized, {}),
        "sample, update, add; windows, prioritised": (
            of("sample", "update", "add", view=view), windowed, {}),
        "sample, update, remove, add; prioritised": (
            of("sample", "update", "remove", "add"), prioritized, {}),
        "sample, update, end, add; prioritised": (
            of("sample", "update", "end", "add"), prioritized, envs),
        "sample, remove, add; uniform": (of("sample", "remove", "add"), uniform, {}),
        "masks; prioritised": (of("masked add", "sample", "masked update"), prioritized, {}),
        "update twice; prioritised": (
            of("add", "add", "sample", "update", "update"), prioritized, {}),
        "clear; prioritised": (of("add", "clear", "add", "sample"), prioritized, {}),
        "clear; uniform": (of("add", "clear", "add", "sample"), uniform, {}),
        "windows by start": (of(*no_update, view=view), by_start, {}),
        "windows by episode": (of(*no_update, view=view), by_episode, {}),
        "windows, prioritised": (of(*turn, view=view), windowed, {}),
        "windows, mixture": (of(*turn, view=view), mixture, {}),
        "returns; uniform": (of(*no_update, view=fbuf.ReturnToGo(0.9)), uniform, {}),
        "frames; uniform": (
            of(*no_update, view=fbuf.FrameStack(3, field="observation")),
            uniform,
            {},
        ),
        "envs apart, by episode": (of("masked add", "sample", "remove", "end"), by_episode, apart),
        "envs apart, prioritised": (of("masked add", "sample", "remove", "end"), windowed, apart),
        "next_of; uniform": (of("add", "sample", "remove", "end"), uniform, shared),
        "sample, update, remove others; prioritised": (
            of("sample", "update", "remove others"), prioritized, {}),
        "sample, remove, add; by start": (
            of("sample", "remove", "add", view=view), by_start, {}),
        "sample, remove, add; by episode": (
            of("sample", "remove", "add", view=view), by_episode, {}),
        "one row; by episode": (of(*no_update, batch=1, added=1, view=view), by_episode, {}),
        "one row; windows, prioritised": (
            of(*turn, batch=1, added=1, view=view), windowed, {}),
        "one row; prioritised": (of(*turn, batch=1, added=1), prioritized, {}),
        "one row; sample, update, end, add; prioritised": (
            of("sample", "update", "end", "add", batch=1, added=1), prioritized, {}),
        "one row, next_of; uniform": (
            of("sample", "remove", "end", "add", batch=1, added=1), uniform, shared),
    }  # fmt: skip


def make_item() -> Any:
    """A row of 97 bytes."""
    import jax.numpy as jnp

    return {
        "observation": jnp.zeros(17),
        "action": jnp.zeros(6),
        "reward": jnp.zeros(()),
        "done": jnp.zeros((), bool),
    }


def scan_of(case: Case, seeds: int) -> tuple[Any, tuple[Any, Any]]:
    """A case as a scan over keys, and the shapes of its arguments."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    import fbuf

    step, sampler, options = case
    shape = (seeds,) if seeds else ()

    def init() -> Any:
        def make(_: Any) -> Any:
            return fbuf.init(make_item(), CAPACITY, sampler=sampler, **options)

        return jax.vmap(make)(jnp.arange(seeds)) if seeds else make(0)

    state = jax.eval_shape(init)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (3, *shape)))
    body = jax.vmap(step) if seeds else step
    return (lambda s, k: lax.scan(body, s, k)), (state, keys)


def size_of(tree: Any) -> int:
    """The bytes in a tree of arrays."""
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


_ARRAY = re.compile(r"\b(pred|[a-z]+)(\d*)\[([\d,]*)\]")
_COPY = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (\(.*?\)|\S+) copy(?:-start)?\(")


def large_copies(hlo: str, large: int) -> list[str]:
    """The types of what is copied, of at least so many bytes."""
    found = []
    for line in hlo.splitlines():
        match = _COPY.match(line)
        for kind, bits, dims in _ARRAY.findall(match[1]) if match else ():
            size = int(bits or 8) // 8
            for d in dims.split(","):
                size *= int(d or 1)
            if size >= large:
                found.append(f"{kind}{bits}[{dims}]")
    return found


def look(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile the cases, for the CPU or for a GPU, and read the programs."""
    on_gpu = task["target"] == "gpu"
    if on_gpu:
        import gpu_build  # before jax, which it prepares
    import jax

    records = []
    for name, case in cases().items():
        if task["only"] and name not in task["only"]:
            continue
        for seeds in task["seeds"]:
            record: dict[str, Any] = {"case": name, "seeds": seeds}
            large = LARGE * max(seeds, 1)
            try:
                run, arguments = scan_of(case, seeds)
                size = size_of(arguments[0])
                start = time.perf_counter()
                lowered = jax.jit(run, donate_argnums=0).lower(*arguments)
                record["lower_s"] = time.perf_counter() - start
                stable = lowered.as_text()
                record["lines"] = stable.count("\n")
                record["hash"] = hashlib.sha256(stable.encode()).hexdigest()
                if task["known"].get(f"{name}/{seeds}") == record["hash"]:
                    record["same"] = True
                    records.append(record)
                    continue
                start = time.perf_counter()
                if on_gpu:
                    program = gpu_build.compile_for_gpu(run, arguments, (0,), large)
                    record |= {
                        "kernels": program.kernels,
                        "temp": program.temp_bytes,
                        "aliased": program.alias_bytes == size,
                        "copies": program.large_copies,
                    }
                else:
                    compiled = lowered.compile()
                    memory = compiled.memory_analysis()
                    record |= {
                        "temp": memory.temp_size_in_bytes,
                        "aliased": memory.alias_size_in_bytes == size,
                        "copies": large_copies(compiled.as_text(), large),
                    }
                record["compile_s"] = time.perf_counter() - start
                record["in_place"] = bool(
                    record["aliased"] and record["temp"] < large and not record["copies"]
                )
            except Exception as error:
                record["error"] = f"{type(error).__name__}: {error}"[:300]
            records.append(record)
            pathlib.Path(task["out"]).write_text(json.dumps(records))
    return records


# --- what is timed -------------------------------------------------------------------------------

STEPS, ROUNDS = 50, 80
MODES = ("in scan", "one call", "from Python")
ROWS = 10**6


def clock(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Microseconds a step of each program."""
    import jax

    jax.config.update("jax_compilation_cache_dir", task["cache"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    import jax.numpy as jnp

    import fbuf

    item = make_item()
    byte = jnp.zeros((), jnp.uint8)
    view = fbuf.Sequence(4, boundary="stop")
    of_windows = {
        f"windows {name}, {rows // 10**6}e6 rows": (byte, rows, sampler, view)
        for rows in (ROWS, 5 * ROWS)
        for name, sampler in (
            ("by start", fbuf.Uniform(window=4)),
            ("by episode", fbuf.Uniform(window=4, by="episode")),
        )
    }
    programs = {
        "prioritised": (item, ROWS, fbuf.Prioritized(), fbuf.Item()),
        "uniform": (item, ROWS, fbuf.Uniform(), fbuf.Item()),
        **of_windows,
        "windows prioritised": (byte, ROWS, fbuf.Prioritized(window=4), view),
    }
    records = []
    for name, program in programs.items():
        if not task["only"] or name in task["only"]:
            for mode, us in clock_one(*program, task["modes"], task["rounds"]):
                records.append({"program": name, "mode": mode, **us})
    return records


def clock_one(
    one: Any, rows: int, sampler: Any, view: Any, modes: list[str], rounds: int
) -> list[tuple[str, dict[str, float]]]:
    """Microseconds a step of one program, in some ways of calling it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    import fbuf

    state = fbuf.init(one, rows, sampler=sampler)
    for at in range(0, rows, ROWS):
        number = np.arange(at, at + ROWS)
        new = jax.tree.map(lambda x: jnp.ones((ROWS, *x.shape), x.dtype), one)
        state = fbuf.add(state, new, truncated=jnp.asarray(number % 500 == 499))
    new = jax.tree.map(lambda x: jnp.ones((ADDED, *x.shape), x.dtype), one)

    def step(carry: Any, key: Any) -> Any:
        state, total = carry
        ends = jax.random.bits(key, (ADDED,), jnp.uint8) == 0
        state = fbuf.add(state, new, truncated=ends)
        batch = fbuf.sample(state, key, BATCH, view=view)
        if isinstance(sampler, fbuf.Prioritized):
            state = fbuf.update_priority(state, batch.ids, batch.weight)
        for leaf in jax.tree.leaves((batch.data, batch.truncated)):
            total += leaf.sum(dtype=jnp.float32)
        return (state, total), None

    keys = jax.random.split(jax.random.key(1), STEPS)
    run = jax.jit(lambda s, k: lax.scan(step, (s, jnp.float32(0)), k)[0], donate_argnums=0)
    call = jax.jit(lambda s, k: step((s, jnp.float32(0)), k)[0], donate_argnums=0)
    several = list(keys[:16])

    def in_scan() -> None:
        nonlocal state
        state, total = run(state, keys)
        jax.block_until_ready((state, total))

    def one_call() -> None:
        nonlocal state
        for i in range(STEPS):
            state, total = call(state, several[i % 16])
            jax.block_until_ready(total)

    def calls() -> None:
        nonlocal state
        for i in range(STEPS):
            state = fbuf.add(state, new)
            batch = fbuf.sample(state, several[i % 16], BATCH, view=view)
            if isinstance(sampler, fbuf.Prioritized):
                state = fbuf.update_priority(state, batch.ids, batch.weight)
            jax.block_until_ready((state, batch))

    ways = {"in scan": in_scan, "one call": one_call, "from Python": calls}
    found = []
    for mode, take in ways.items():
        if mode not in modes:
            continue
        take()
        wall, used = [], []
        for _ in range(rounds):
            start, began = time.perf_counter(), time.process_time()
            take()
            wall.append((time.perf_counter() - start) / STEPS * 1e6)
            used.append((time.process_time() - began) / STEPS * 1e6)
        us = {
            "us": min(wall),
            "us_median": statistics.median(wall),
            "us_processor": min(used),
        }
        found.append((mode, us))
    return found


# --- the processes -------------------------------------------------------------------------------


def version_of(python: str) -> str:
    """The version of jax that an interpreter has."""
    code = "import jax; print(jax.__version__)"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def run_worker(
    python: str, folder: pathlib.Path, task: dict[str, Any], core: int | None = None
) -> list[dict[str, Any]]:
    """Do a task in a process of its own that imports the package from this folder.

    Raises:
        RuntimeError: If it failed, with the last line it printed.
    """
    with tempfile.TemporaryDirectory() as out:
        result = pathlib.Path(out) / "out.json"
        command = [python, __file__, "--worker", json.dumps(task), "--out", str(result)]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        path = f"{folder}{os.pathsep}{HERE.parent}"
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        if task.get("target") == "cpu":
            # LLVM comes after all that is looked at, and takes half of the time.
            flags = os.environ.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0 or not result.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"failed with exit status {done.returncode}: {last}")
        found: list[dict[str, Any]] = json.loads(result.read_text())
        return found


class Study:
    """Runs the tasks and keeps what came of them in a file, so that it can go on where it ended."""

    def __init__(self, folder: pathlib.Path, records: pathlib.Path, names: Iterable[str]) -> None:
        self.names = list(names)
        self.file = records
        self.folders = {}
        for number, name in enumerate(self.names):
            self.folders[name] = package_of(VARIANTS[name], folder / str(number))
        self.cache = folder / "cache"
        self.records: list[dict[str, Any]] = []
        if records.exists():
            self.records = [json.loads(line) for line in records.read_text().splitlines()]

    def keep(self, records: list[dict[str, Any]], **about: Any) -> None:
        """Note down what was found."""
        for record in records:
            record.update(about)
        self.records += records
        with self.file.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def programs(
        self, python: str, target: str, seeds: list[int], only: list[str], jobs: int
    ) -> None:
        """Look at the programs of each variant."""
        version = version_of(python)
        task = {"do": "look", "target": target, "known": {}}

        def only_of(name: str) -> list[str]:
            mine = list(looks_of(name))
            return [case for case in mine if case in only] if only else mine

        def of(name: str, seed: int, known: dict[str, str]) -> list[dict[str, Any]]:
            return run_worker(
                python,
                self.folders[name],
                {**task, "seeds": [seed], "known": known, "only": only_of(name)},
            )

        def done(name: str, seed: int) -> list[dict[str, Any]]:
            about = {"kind": "program", "jax": version, "target": target}
            about |= {"variant": name, "seeds": seed}
            return [r for r in self.records if about.items() <= r.items()]

        for seed in seeds:
            known = {f"{r['case']}/{seed}": r.get("hash", "") for r in done("as it is", seed)}
            rest = [name for name in self.names if not done(name, seed)]
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                futures = {pool.submit(of, name, seed, known): name for name in rest}
                for future in concurrent.futures.as_completed(futures):
                    about = {"kind": "program", "jax": version, "target": target}
                    self.keep(future.result(), **about, variant=futures[future])
                    print(f"{version} {target} x{seed}: {futures[future]}", flush=True)

    def times(
        self, python: str, processes: int, pinned: bool, only: list[str], modes: list[str]
    ) -> None:
        """Time each variant, in processes that take turns."""
        version = version_of(python)
        task = {"do": "clock", "only": only, "modes": modes, "rounds": ROUNDS}
        for turn in range(processes):
            for name in self.names:
                about = {"kind": "time", "jax": version, "variant": name, "pinned": pinned}
                about |= {"turn": turn}
                if not VARIANTS[name].timed or any(
                    about.items() <= r.items() for r in self.records
                ):
                    continue
                # Programs are kept compiled: what differs between processes is how they run.
                cache = str(self.cache / version / str(pinned) / str(self.names.index(name)))
                found = run_worker(
                    python, self.folders[name], {**task, "cache": cache}, 0 if pinned else None
                )
                self.keep(found, **about)
            print(f"{version} pinned={pinned}: turn {turn}", flush=True)


# --- the report ----------------------------------------------------------------------------------


def bytes_text(count: int) -> str:
    """So many bytes, in the largest unit that fits."""
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def lost(record: dict[str, Any]) -> str:
    """What a case that is not in place costs."""
    if "error" in record:
        return str(record["error"]).splitlines()[0][:60]
    parts = [f"temp {bytes_text(record['temp'])}"]
    if record["copies"]:
        parts.append(f"{len(record['copies'])} copies ({record['copies'][0]})")
    if not record["aliased"]:
        parts.append("not aliased")
    return ", ".join(parts)


def program_lines(records: list[dict[str, Any]], names: list[str]) -> list[str]:
    """What happens to the programs of each variant."""
    lines: list[str] = []
    where = sorted({(r["target"], r["jax"], r["seeds"]) for r in records if r["kind"] == "program"})
    for target, version, seeds in where:
        mine = [
            r
            for r in records
            if r["kind"] == "program"
            and (r["target"], r["jax"], r["seeds"]) == (target, version, seeds)
        ]
        base = {r["case"]: r for r in mine if r["variant"] == "as it is"}
        many = f", {seeds} buffers under `vmap`" if seeds else ""
        lines += ["", f"### {'GPU' if target == 'gpu' else 'CPU'}, jax {version}{many}", ""]
        rows = []
        for name in names:
            its = [r for r in mine if r["variant"] == name]
            if not its:
                continue
            fine = [r for r in its if r.get("same") or r.get("in_place")]
            pairs = [(base[r["case"]], r) for r in its if r["case"] in base]
            before, after = (sum(pair[at].get("lines", 0) for pair in pairs) for at in (0, 1))
            cells = [
                name,
                f"{len(fine)} of {len(its)}",
                "; ".join(f"{r['case']}: {lost(r)}" for r in its if r not in fine) or "-",
                f"{after - before:+d} of {before}" if pairs else "-",
            ]
            if target == "gpu":
                kernels = [
                    f"{b['kernels']} -> {r['kernels']}"
                    for b, r in pairs
                    if "kernels" in b and "kernels" in r and b["kernels"] != r["kernels"]
                ]
                cells.append(", ".join(kernels) or "-")
            rows.append(cells)
        head = ["variant", "in place", "not in place", "StableHLO lines"]
        lines += render([*head, "kernels of 3 steps"] if target == "gpu" else head, rows)
    return lines


def time_lines(records: list[dict[str, Any]], names: list[str]) -> list[str]:
    """What a step takes in each variant."""
    lines: list[str] = []
    taken = [r for r in records if r["kind"] == "time"]
    for version, pinned in sorted({(r["jax"], r["pinned"]) for r in taken}):
        mine = [r for r in taken if (r["jax"], r["pinned"]) == (version, pinned)]
        columns = list(dict.fromkeys((r["program"], r["mode"]) for r in mine))
        turns = 1 + max(r["turn"] for r in mine)
        where = "one core" if pinned else "all cores"
        lines += [
            "",
            f"### jax {version}, {where}, medians of {turns} processes, microseconds a step",
        ]
        rows = []
        for name in names:
            cells = [name]
            for column in columns:
                found = [
                    r for r in mine if r["variant"] == name and (r["program"], r["mode"]) == column
                ]
                cells.append(f"{statistics.median(r['us'] for r in found):.1f}" if found else "-")
            if any(cell != "-" for cell in cells[1:]):
                rows.append(cells)
        lines += ["", *render(["variant", *(f"{p}, {m}" for p, m in columns)], rows)]
    return lines


def report(records: list[dict[str, Any]], names: list[str]) -> list[str]:
    """All of it, as Markdown."""
    return [
        "# What each trick that orders things for XLA is worth",
        "",
        "Written by `benchmarks/ablations/order.py`, which says what is measured. A variant is the",
        "package with some lines replaced by what one would write without the trick.",
        "",
        *(f"- **{name}**: {VARIANTS[name].what}" for name in names),
        "",
        "## Programs",
        "",
        f"A case is in place if all of the state is aliased, no array of {LARGE:,} bytes or more",
        "is copied, and the temporary memory is smaller than that.",
        *program_lines(records, names),
        "",
        "## Times",
        "",
        "The fastest of the rounds of a process, and of that the median over processes.",
        *time_lines(records, names),
    ]


QUICK_VARIANTS = ("as it is", "ab+ loops as one would write them", "g all", "tie: one element")
QUICK_CASES = ["add, sample, update; prioritised", "sample, update, add; prioritised"]


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few variants and cases, no times")
    parser.add_argument("--python", action="append", default=[], help="an interpreter; repeatable")
    parser.add_argument("--gpu", help="an interpreter that can compile for a GPU")
    parser.add_argument(
        "--do", action="append", choices=("programs", "gpu", "vmap", "pinned", "times")
    )
    parser.add_argument("--variant", action="append", choices=tuple(VARIANTS))
    parser.add_argument("--only", action="append", default=[], help="a case or timed program")
    parser.add_argument(
        "--mode", action="append", default=[], help="in scan, one call, from Python"
    )
    parser.add_argument("--jobs", type=int, default=1, help="programs compiled at once")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--records", type=pathlib.Path, help="keep the figures here, and go on")
    parser.add_argument("--results", type=pathlib.Path, default=HERE.parent / "results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        task = json.loads(options.worker)
        task["out"] = options.out
        found = look(task) if task["do"] == "look" else clock(task)
        pathlib.Path(options.out).write_text(json.dumps(found))
        return
    names = options.variant or list(QUICK_VARIANTS if options.quick else VARIANTS)
    only = options.only or (QUICK_CASES if options.quick else [])
    do = options.do or (
        ["programs"] if options.quick else ["programs", "vmap", "gpu", "pinned", "times"]
    )
    with tempfile.TemporaryDirectory() as folder:
        file = options.records or pathlib.Path(folder) / "records.jsonl"
        study = Study(pathlib.Path(folder), file, names)
        for python in options.python or [sys.executable]:
            if "programs" in do:
                study.programs(python, "cpu", [0], only, options.jobs)
            if "vmap" in do:
                study.programs(python, "cpu", [SEEDS], only, options.jobs)
            for kind in ("pinned", "times"):
                if kind in do:
                    modes = options.mode or list(MODES)
                    study.times(python, options.processes, kind == "pinned", options.only, modes)
        if options.gpu and "gpu" in do:
            study.programs(options.gpu, "gpu", [0], only, options.jobs)
        write_report(
            "order",
            options.results,
            about("fbuf", "jax"),
            study.records,
            report(study.records, names),
        )


if __name__ == "__main__":
    main()
