"""Whether an operation takes longer, or more memory, in a larger buffer.

    python -m benchmarks.evidence.flat_in_capacity            about 10 minutes on 2 cores
    python -m benchmarks.evidence.flat_in_capacity --quick    smaller buffers, short rounds

It needs fbuf and JAX, and 2 GB of memory.

Each operation is compiled for a full buffer of 10,000 rows, and for one of 10 million. Both
programs run in the same process and take turns. A program is a `lax.scan` of many steps whose
carry, the buffer, is donated. All leaves of a batch are added to accumulators in the carry. A scan
draws 256,000 rows: those of the larger buffer are in no cache when the next round begins. Figures
are medians over processes of medians over rounds.

A step adds 64 rows, or draws 256, or names 256 rows and does something with them. Rows are of 28 to
36 bytes, in episodes of 50 steps. A buffer that remembers its draws has drawn its rows twice on
average, so with `max_uses=4` some are used up. `max_age` and versions retire half of the rows.

"Read of given rows" draws nothing: it takes what 256 rows take to come from memory, or from a
cache. No operation can do with less.

Temporary bytes, and whether the state is written where it is, are those of the compiled programs.
Temporaries grow with N if the larger program has over a bit more for 16 rows more. A level more of
a tree takes a little for each drawn row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fbuf
from benchmarks import harness, report
from benchmarks.evidence.exchange_rounds import Table
from benchmarks.harness import Box, Measured, Record, Task

SMALL, LARGE, QUICK = 10_000, 10_000_000, 100_000
ADDED, BATCH, STEPS = 64, 256, 1000
EPISODE, GROUPS, USES = 50, 8, 2
ADDS = 200
"""The steps of a scan that only adds: few rows are left that the next draws have to serve first."""
TIMES = 4
"""The most times as long that an operation may take in the larger buffer."""


class Given(NamedTuple):
    """The inputs of a step.

    Attributes:
        key: A key.
        slots: int32 `[BATCH]`; any slots.
        priority: float32 `[BATCH]`; any priorities.
    """

    key: Any
    slots: Any
    priority: Any


Operation = Callable[[Any, Any, Given], tuple[Any, Any]]
"""Returns the buffer and a result; given the buffer, and how many rows were added to it."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A kind of buffer, and all that is done with it.

    Attributes:
        sampler: Its sampler.
        fields: The fields of its rows.
        operations: By name; those that add rows begin with "add".
        stale: Whether half of the rows are retired by their version.
    """

    sampler: Any
    fields: tuple[str, ...]
    operations: dict[str, Operation]
    stale: bool = False


def rows(fields: tuple[str, ...], first: Any, count: int) -> tuple[Any, Any]:
    """Return the rows after the first ones, and which of them end an episode."""
    number = first + jnp.arange(count, dtype=jnp.int32)
    real = (number & 255).astype(jnp.float32)
    wide = lambda width: jnp.broadcast_to(real[:, None], (count, width))
    every = {
        "observation": wide(4), "action": wide(2), "reward": real,
        "goal": wide(2), "achieved_goal": wide(2) + 1,
        "task": number * 5 // 7 % GROUPS, "version": number // ADDED,
    }  # fmt: skip
    return {name: every[name] for name in fields}, number % EPISODE == EPISODE - 1


# --- what is done in a step -----------------------------------------------------------------------


def reached(achieved: Any, goal: Any) -> Any:
    """Return the reward of a row that is given a goal."""
    return jnp.all(achieved == goal).astype(jnp.float32)


def added(fields: tuple[str, ...]) -> Operation:
    """Return the operation that adds rows."""

    def add(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
        new, ends = rows(fields, first, ADDED)
        return fbuf.add(state, new, truncated=ends), ()

    return add


def then(*operations: Operation) -> Operation:
    """Return the operation of several, one after the other, with the results of all."""

    def all_of(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
        results: list[Any] = []
        for operation in operations:
            state, result = operation(state, first, given)
            results.append(result)
        return state, results

    return all_of


def sampled(view: Any = fbuf.Item()) -> Operation:
    return lambda state, first, given: (state, fbuf.sample(state, given.key, BATCH, view=view))


def drawn(view: Any = fbuf.Item()) -> Operation:
    return lambda state, first, given: fbuf.draw(state, given.key, BATCH, view=view)


def named(read: Callable[[Any, fbuf.Ids, Given], Any]) -> Operation:
    """Return an operation that reads something of any rows."""
    return lambda state, first, given: (state, read(state, fbuf.ids_at(state, given.slots), given))


def changed(change: Callable[[Any, fbuf.Ids, Given], Any]) -> Operation:
    """Return an operation that changes something of any rows."""
    return lambda state, first, given: (change(state, fbuf.ids_at(state, given.slots), given), ())


def thinned(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
    keys = jax.random.split(given.key)
    large = fbuf.sample(state, keys[0], 4 * BATCH)
    return state, fbuf.thin(large, keys[1], BATCH, large.data["reward"])


def with_targets(view: Any) -> Operation:
    """Return the operation that draws sequences and computes each kind of target."""

    def targets(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
        batch = fbuf.sample(state, given.key, BATCH, view=view)
        reward, value = batch.data.item["reward"], batch.data.item["observation"].mean(-1)
        policies = {"log_prob": -value, "behavior_log_prob": -reward}
        lambdas = {"gamma": 0.99, "lambda_": 0.95}
        return state, (
            fbuf.targets.lambda_returns(batch, reward, value, **lambdas),
            fbuf.targets.gae(batch, reward, value, **lambdas),
            fbuf.targets.vtrace(batch, reward, value, **policies, **lambdas),
            fbuf.targets.retrace(batch, reward, value, q=value, **policies, **lambdas),
        )

    return targets


def group_named(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
    group = given.slots[0] % GROUPS
    place = given.slots[1] % jnp.maximum(fbuf.group_sizes(state)[group], 1)
    return state, fbuf.group_ids(state, group, BATCH, first=place)


def expired(state: Any, first: Any, given: Given) -> tuple[Any, Any]:
    return fbuf.expire(state, oldest_version(state, first + ADDED)), ()


def oldest_version(state: Any, first: Any) -> Any:
    """Return the version of the row in the middle of the stored ones."""
    return jnp.maximum(first - state.capacity // 2, 0) // ADDED


WALK = ("observation", "action", "reward")
TASKS, VERSIONS = (*WALK, "task"), (*WALK, "version")
GOALS = ("observation", "reward", "goal", "achieved_goal")
SEQUENCE = fbuf.Sequence(16, boundary="cross")
SHARES = {"current": 0.2, "future": 0.5, "random": 0.3}


def buffers(capacity: int) -> dict[str, Buffer]:
    """Return each kind of buffer, by the name of its sampler."""
    fresh = fbuf.FreshFirst()
    by_priority = fbuf.FreshFirst(fbuf.Prioritized())
    queue = fbuf.FreshFirst(fbuf.Uniform(window=16))
    by_version = fbuf.Limited(version="version")
    all_limits = fbuf.Limited(
        fbuf.Prioritized(), max_uses=4, max_age=capacity // 2, version="version"
    )
    put = changed(lambda s, ids, given: fbuf.update_priority(s, ids, given.priority))
    move = changed(lambda s, ids, given: fbuf.write(s, ids, {"task": given.slots % GROUPS}))
    given_rows = named(lambda s, ids, given: fbuf.read(s, ids))
    around = named(lambda s, ids, given: fbuf.neighbours(s, ids, range(-4, 1)))
    counted = named(lambda s, ids, given: fbuf.uses(s, ids))
    window = fbuf.Window({"observation": (-3, 0), "action": range(16)})
    steps = fbuf.NStep((1, 5), gamma=0.99, next_observation="observation")
    add = added(WALK)
    return {
        "Uniform": Buffer(
            fbuf.Uniform(),
            WALK,
            {
                "add": add,
                "read of given rows": given_rows,
                "sample": sampled(),
                "sample, Window": sampled(window),
                "sample, NStep((1, 5))": sampled(steps),
                "sample 1,024, thin": thinned,
                "sample, Sequence(16)": sampled(SEQUENCE),
                "the same, four targets": with_targets(SEQUENCE),
            },
        ),
        "Uniform, goals": Buffer(
            fbuf.Uniform(),
            GOALS,
            {
                "sample, Hindsight": sampled(fbuf.Hindsight(reached)),
                "sample, shares": sampled(fbuf.Hindsight(reached, strategy=SHARES, discount=0.99)),
                "sample, 4 copies": sampled(
                    fbuf.Hindsight(reached, strategy=SHARES, discount=0.99, copies=4)
                ),
                "sample, random": sampled(fbuf.Hindsight(reached, strategy="random")),
            },
        ),
        "Prioritized(floor=1)": Buffer(
            fbuf.Prioritized(floor=1.0),
            WALK,
            {
                "add": add,
                "sample": sampled(),
                "update_priority": put,
                "neighbours, 5 each": around,
            },
        ),
        "Grouped": Buffer(
            fbuf.Grouped("task", GROUPS),
            TASKS,
            {
                "add": added(TASKS),
                "sample": sampled(),
                "write of groups": move,
                "group_ids": group_named,
            },
        ),
        "FreshFirst": Buffer(fresh, WALK, {"add": add, "add, draw": then(add, drawn())}),
        "FreshFirst, by priority": Buffer(
            by_priority, WALK, {"add": add, "add, draw, update": then(add, drawn(), put)}
        ),
        "FreshFirst, windows": Buffer(
            queue,
            WALK,
            {"add": add, "add, draw, Sequence(16)": then(add, drawn(fbuf.Sequence(16)))},
        ),
        "Limited(max_uses)": Buffer(
            fbuf.Limited(max_uses=4),
            WALK,
            {"add": add, "add, draw": then(add, drawn()), "uses": counted},
        ),
        "Limited(max_age)": Buffer(
            fbuf.Limited(max_age=capacity // 2), WALK, {"add": add, "sample": sampled()}
        ),
        "Limited(version)": Buffer(
            by_version,
            VERSIONS,
            {"add, expire": then(added(VERSIONS), expired), "sample": sampled()},
            stale=True,
        ),
        "Limited, all limits": Buffer(
            all_limits,
            VERSIONS,
            {"add, expire, draw": then(added(VERSIONS), expired, drawn())},
            stale=True,
        ),
        "Reservoir": Buffer(fbuf.Reservoir(), WALK, {"add": add, "sample": sampled()}),
        "EvictLowest": Buffer(
            fbuf.EvictLowest(), WALK, {"add": add, "sample": sampled(), "update_priority": put}
        ),
    }


# --- measuring -----------------------------------------------------------------------------------


def filled(buffer: Buffer, capacity: int) -> tuple[Any, Any]:
    """Return a full buffer that was used as its steps use it, and how many rows it was given."""
    part = capacity // 100

    def turn(carry: Any, key: Any) -> Any:
        state, first = carry
        new, ends = rows(buffer.fields, first, part)
        priority = jax.random.uniform(key, (part,)) if state.sampler.keeps_priorities else None
        state = fbuf.add(state, new, truncated=ends, priority=priority)
        if buffer.stale:
            state = fbuf.expire(state, oldest_version(state, first + part))
        if state.sampler.notes_draws:
            state, _ = fbuf.draw(state, key, USES * part)
        return state, first + part

    item = jax.tree.map(lambda leaf: leaf[0], rows(buffer.fields, 0, 1)[0])
    state = fbuf.init(item, capacity, sampler=buffer.sampler)
    keys = jax.random.split(jax.random.key(1), 100)
    fill = jax.jit(lambda carry: lax.scan(lambda c, k: (turn(c, k), None), carry, keys)[0],
                   donate_argnums=0)  # fmt: skip
    return jax.block_until_ready(fill((state, jnp.int32(0))))


def step_of(name: str, operation: Operation) -> Callable[[Any, Any], Any]:
    """Return the step of a scan."""

    def step(carry: Any, given: Given) -> Any:
        (state, first), used = carry
        state, result = operation(state, first, given)
        return (state, first + ADDED * name.startswith("add")), harness.use(used, result)

    return step


def inputs(capacity: int, steps: int) -> Given:
    """Return the inputs of all steps."""
    rng = np.random.default_rng(2)
    slots = rng.integers(0, capacity, (steps, BATCH), np.int32)
    priority = rng.random((steps, BATCH), np.float32)
    return Given(jax.random.split(jax.random.key(3), steps), jnp.array(slots), jnp.array(priority))


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def measure(task: Task) -> Measured:
    """Compile all operations of one kind of buffer at both sizes, and time them in turn."""
    programs: dict[tuple[str, int], harness.Run] = {}
    facts: dict[tuple[str, int], Record] = {}
    for n in task["sizes"]:
        buffer = buffers(n)[task["buffer"]]
        box = Box(filled(buffer, n))
        for name, operation in buffer.operations.items():
            given = inputs(n, ADDS if name == "add" else STEPS)
            of_one = jax.tree.map(lambda leaf: leaf[0], given)
            result = jax.eval_shape(operation, *box.state, of_one)[1]
            used = harness.zeros_like(result)
            carry = (box.state, used)
            compiled = harness.compiled_scan(step_of(name, operation), carry, given)
            memory = compiled.memory_analysis()
            facts[name, n] = {
                "buffer": task["buffer"], "what": name, "n": n,
                "temporary": memory.temp_size_in_bytes, "state": bytes_of(box.state),
                "not_in_place": bytes_of(carry) - memory.alias_size_in_bytes,
            }  # fmt: skip
            programs[name, n] = harness.run_of_scan(compiled, box, [used], given)
    taken = harness.alternate(programs, 3 if task["quick"] else 11, 1.0)
    return Measured(
        [
            {**facts[key], "us": harness.median(rounds), "rounds": rounds}
            for key, rounds in taken.items()
        ]
    )


def tasks(quick: bool) -> list[Task]:
    """Return a process for each kind of buffer; two of a full run."""
    return [
        {
            "label": f"{name}, process {process + 1}", "buffer": name, "quick": quick,
            "sizes": (SMALL, QUICK if quick else LARGE),
        }
        for process in range(1 if quick else 2)
        for name in buffers(SMALL)
    ]  # fmt: skip


# --- reporting -----------------------------------------------------------------------------------


def pairs(records: list[Record]) -> list[tuple[Record, Record]]:
    """Return the records of each operation, in the smaller and in the larger buffer."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record["buffer"], record["what"]), []).append(record)
    return [(pair[0], pair[1]) for pair in found.values() if len(pair) == 2]


def sizes(records: list[Record]) -> list[str]:
    """Return the names of the sizes, the smaller one first."""
    return [f"{report.rows_text(n)} rows" for n in sorted({record["n"] for record in records})]


def grows(small: Record, large: Record) -> bool:
    """Whether temporaries grow with N: by more than a bit for 16 rows."""
    return large["temporary"] - small["temporary"] > (large["n"] - small["n"]) // 128


def missed(small: Record, large: Record) -> list[str]:
    """Return the bars that an operation misses."""
    found: list[str] = []
    if large["us"] > TIMES * small["us"]:
        found.append(f"takes {large['us'] / small['us']:.1f} times as long")
    if grows(small, large):
        found.append("has temporaries that grow")
    if large["not_in_place"] or small["not_in_place"]:
        found.append("is not in place")
    return found


def time_table(records: list[Record]) -> Table:
    """The time of each operation in both buffers."""
    head = ["buffer", "operation", *sizes(records), "times"]
    lines: list[list[str]] = []
    for small, large in pairs(records):
        times = [report.number(us) for us in (small["us"], large["us"], large["us"] / small["us"])]
        lines.append([small["buffer"], small["what"], *times])
    return head, lines


def program_table(records: list[Record]) -> Table:
    """The memory of each program, and the bars that it misses."""
    head = ["buffer", "operation", *sizes(records), "of the larger state", "not in place", "bars"]
    lines: list[list[str]] = []
    for small, large in pairs(records):
        temporary = [f"{r['temporary']:,}" for r in (small, large)]
        state = [f"{large['state']:,}", f"{small['not_in_place'] + large['not_in_place']:,}"]
        bars = ", ".join(missed(small, large)) or "held"
        lines.append([small["buffer"], small["what"], *temporary, *state, bars])
    return head, lines


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    return [
        *report.section("Small and large buffers: microseconds", *time_table(records)),
        *report.section("Their programs: temporary bytes", *program_table(records)),
    ]


def bars(records: list[Record]) -> list[str]:
    """Whether all operations are flat in N, without temporaries that grow, and in place."""
    both = pairs(records)
    named = lambda those: ", ".join(f"{small['buffer']}: {small['what']}" for small, _ in those)
    slow = [pair for pair in both if pair[1]["us"] > TIMES * pair[0]["us"]]
    growing = [pair for pair in both if grows(*pair)]
    copied = [pair for pair in both if pair[0]["not_in_place"] or pair[1]["not_in_place"]]
    return [
        report.bar(f"All take at most {TIMES} times as long", not slow, named(slow)),
        report.bar("No temporaries grow with N", not growing, named(growing)),
        report.bar("All bytes of the state are written in place", not copied, named(copied)),
    ]


if __name__ == "__main__":
    report.script(
        title="Flat in the capacity",
        packages=("fbuf", "jax", "jaxlib", "numpy"),
        keys=("buffer", "what", "n"),
    )
