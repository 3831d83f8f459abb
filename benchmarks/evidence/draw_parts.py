"""Measure the parts of a draw, in this tree and, if you name a commit, in that one.

    python -m benchmarks.evidence.draw_parts [COMMIT]            about 14 minutes on 2 cores
    python -m benchmarks.evidence.draw_parts [COMMIT] --quick    about a minute: short rounds

It needs fbuf, git, and JAX (`.venv` has them), and 10 GB of memory for each tree.

A draw is cut off after each of its parts, and what it has by then is added up in the carry of a
`lax.scan`. A part costs what its program takes more than the one before. So the parts add up to the
whole draw, and a part that runs beside another one counts for less than it would alone. Both trees
run in the same process and take turns. Figures are medians over processes of medians over rounds.

The buffer is full: rows of 97 bytes, of random priorities if it is prioritised. In a uniform draw
"levels" is the look at the index. "Ids and flags" are also the masks. "From Python" is the time of
a call beyond the draw itself: JAX's own call, and the threads that it wakes. Python works for 50 us
between two calls, as a training loop does, for a thread that has just worked wakes faster. On one
core there is no thread to wake.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks import harness, report
from benchmarks.evidence.versus import load
from benchmarks.harness import NEW, OLD, Measured, Record, Task

BATCH, STEPS, BETWEEN = 256, 500, 50e-6
SIZES = (10_000, 1_000_000, 10_000_000)
NOTHING, BITS, TOP, LEVELS, WEIGHTS, GATHER, IDS, WHOLE, CALL = (
    "nothing",
    "random bits",
    "top",
    "levels",
    "weights",
    "gather of the rows",
    "ids and flags",
    "the whole draw",
    "from Python",
)
PARTS = (BITS, TOP, LEVELS, WEIGHTS, GATHER, IDS)

Stage = Callable[[Any, Any], Any]
"""Returns the numbers of a draw cut off after some part, from a state and a key."""


def stages(fbuf: Any, prioritized: bool) -> dict[str, Stage]:
    """The draw, cut off after each part."""
    import jax

    from fbuf.samplers.chance import random_bits
    from fbuf.samplers.index import start_index
    from fbuf.trees import sum_tree
    from fbuf.xla.tie import tie

    by_rows = getattr(random_bits, "uniforms_of_rows", None)
    is_new = by_rows or "after" in inspect.signature(random_bits.uniforms).parameters

    def bits(state: Any, key: Any) -> Any:
        tree = state.index.tree
        shape, total = (sum_tree.picks(tree), BATCH), sum_tree.total(tree)
        if by_rows is not None:
            return by_rows(key, *shape, total)
        if is_new:
            return random_bits.uniforms(key, shape, total)
        return random_bits.uniforms(tie(key, total), shape)

    def top(state: Any, key: Any) -> Any:
        nodes = state.index.tree.nodes[-1][..., 0]
        first = nodes if is_new else sum_tree.running_sums(nodes)
        target = bits(state, key)[0] * sum_tree.total(state.index.tree)
        return sum_tree.first_above(first, target)

    def levels(state: Any, key: Any) -> Any:
        return sum_tree.draw(state.index.tree, bits(state, key))

    def ranks(state: Any, key: Any) -> Any:
        if not is_new:
            return random_bits.ranks(key, BATCH, state.ring.count())
        return random_bits.below(random_bits.bits(key, (2, BATCH)), state.ring.count())

    def looked_up(state: Any, key: Any) -> Any:
        starts, ring = state.index.starts, state.ring
        if not is_new:
            return start_index.draw(starts, ring, key, BATCH)
        counts = start_index.total(starts, ring)[None]
        plan = start_index.plan(starts, ring, counts, key, BATCH)
        return start_index.pick(starts, ring, plan.picks)

    def weights(state: Any, key: Any) -> Any:
        draw = state.sampler.draw(state.index, state.ring, key, BATCH, None, None)
        return draw.slots, draw.probability, draw.weight, draw.mask

    def gather(state: Any, key: Any) -> Any:
        found = weights(state, key)
        return found, state.storage.read(found[0])

    def whole(state: Any, key: Any) -> Any:
        return fbuf.sample(state, key, BATCH)

    first: dict[str, Stage] = {NOTHING: lambda state, key: jax.numpy.int32(1)}
    walk = {BITS: bits, TOP: top, LEVELS: levels} if prioritized else {}
    walk = walk or {BITS: ranks, LEVELS: looked_up}
    return first | walk | {WEIGHTS: weights, GATHER: gather, IDS: whole}


def in_scan(stage: Stage, state: Any) -> harness.Run:
    """A cut-off draw, many times in a scan."""
    import jax

    keys = jax.random.split(jax.random.key(2), STEPS)
    return harness.draws_in_scan(stage, harness.Box(state), keys)


def called(fbuf: Any, state: Any, calls: int) -> Callable[[], float]:
    """A draw from Python: seconds a call, without the work in between."""
    import jax

    draw = jax.jit(lambda state, key: fbuf.sample(state, key, BATCH))
    keys = itertools.cycle(list(jax.random.split(jax.random.key(3), 64)))

    def run() -> float:
        taken = []
        for _ in range(calls):
            work_until = time.perf_counter() + BETWEEN
            while time.perf_counter() < work_until:
                pass
            start = time.perf_counter()
            jax.block_until_ready(draw(state, next(keys)))
            taken.append(time.perf_counter() - start)
        return harness.median(taken)

    return run


def buffer(fbuf: Any, prioritized: bool, capacity: int) -> Any:
    """A full buffer."""
    import jax

    from benchmarks import peers

    peer = peers.Fbuf(peers.ROW, capacity, BATCH, prioritized, fbuf)
    return jax.block_until_ready(peers.filled(peer, min(capacity // 10, 100_000)))


def measure(task: Task) -> Measured:
    """All parts of one draw, in each tree."""
    found = Measured()
    programs: dict[Any, harness.Run] = {}
    calls: dict[str, Callable[[], float]] = {}
    for side, tree in task["trees"].items():
        fbuf = load(tree)
        for name, stage in stages(fbuf, task["prioritized"]).items():
            state = buffer(fbuf, task["prioritized"], task["capacity"])
            programs[side, name] = in_scan(stage, state)
        state = buffer(fbuf, task["prioritized"], task["capacity"])
        calls[side] = called(fbuf, state, 50 if task["quick"] else 400)
    taken = harness.alternate(programs, 5 if task["quick"] else 21, 5.0)
    for call in calls.values():
        call()
    rounds = 3 if task["quick"] else 9
    from_python = {side: [1e6 * calls[side]() for _ in range(rounds)] for side in calls}
    what = {name: task[name] for name in ("prioritized", "capacity", "mode")}
    for side in task["trees"]:
        us = {name: harness.median(taken[side, name]) for at, name in programs if at == side}
        names = list(us)
        for before, part in itertools.pairwise(names):
            found.records.append({**what, "side": side, "part": part, "us": us[part] - us[before]})
        whole = us[IDS] - us[NOTHING]
        found.records.append({**what, "side": side, "part": WHOLE, "us": whole})
        call = harness.median(from_python[side]) - whole
        found.records.append({**what, "side": side, "part": CALL, "us": call})
    return found


def tables(records: list[Record]) -> list[str]:
    """For each kind of draw the parts, by size and number of cores."""
    commit = any(r["side"] == OLD for r in records)
    lines: list[str] = []
    for prioritized, name in ((True, "Prioritised"), (False, "Uniform")):
        mine = [r for r in records if r["prioritized"] == prioritized]
        columns = list(dict.fromkeys((r["capacity"], r["mode"]) for r in mine))
        find = report.Find(mine)
        rows = []
        for part in (*PARTS, WHOLE, CALL):
            cells = []
            for capacity, mode in columns:
                wanted = {"part": part, "capacity": capacity, "mode": mode}
                now, before = find(side=NEW, **wanted), find(side=OLD, **wanted)
                text = report.number(now) if now is None or now > 0 else f"{now:.2f}"
                cells.append(f"{text} ({report.number(before)})" if commit else text)
            if any(cell.strip("-( )") for cell in cells):
                rows.append([part, *cells])
        head = ["part", *(f"{report.rows_text(n)}, {mode}" for n, mode in columns)]
        lines += report.section(f"{name}: microseconds", head, rows)
    if commit:
        lines += ["", "In brackets: the older commit."]
    return lines


def tasks(quick: bool, trees: dict[str, str]) -> list[Task]:
    """A process for each kind, size, and number of cores; several of a full run."""
    found: list[Task] = []
    for process in range(1 if quick else 2):
        for prioritized, capacity in itertools.product(
            (True, False), SIZES[1:2] if quick else SIZES
        ):
            for mode in ("two cores", "one core"):
                task: Task = {
                    "label": f"{report.rows_text(capacity)} rows, {mode}, process {process + 1}",
                    "trees": dict(sorted(trees.items(), reverse=bool(process % 2))),
                    "prioritized": prioritized,
                    "capacity": capacity,
                    "mode": mode,
                    "quick": quick,
                }
                if mode == "one core":
                    task["cores"] = 1
                found.append(task)
    return found


if __name__ == "__main__":
    report.script(
        title="Where each microsecond of a draw goes",
        packages=("fbuf", "jax", "jaxlib", "numpy"),
        keys=("prioritized", "capacity", "mode", "side", "part"),
        commit="an older commit, to measure beside this tree",
    )
