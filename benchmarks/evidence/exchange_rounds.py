"""Simulate the exchange of `fbuf.sharded`: the cost of a batch on many devices.

    python -m benchmarks.evidence.exchange_rounds            a minute
    python -m benchmarks.evidence.exchange_rounds --quick    fewer batches

It needs fbuf and JAX, one core, and no device or network beside it.

Nothing is sent here. Batches are drawn at random as `fbuf.sharded.sample` draws them: for each draw
a shard, in proportion to the totals of the shards. The rows from one shard to one device are a
bucket. Buckets are counted, and their size is that of `fbuf.mesh.exchange.bucket_size`. A round
sends one bucket from each shard to each device, full or not. So "rounds" are the fullest bucket
divided by that size, rounded up. "Received per row" is the number of bucket places that a device
gets for each row that it needs; all above 1 is padding. A device's bucket for itself counts as
received, but not in the bytes, for it crosses no link. "The busiest sends" is about the device that
has most of the batch. It is the number of rows that this device sends for each row that it needs:
no exchange takes less.

The totals of the shards differ: "equal"; "±20 %", evenly from 80 to 120 % of the mean; "one has
half", the rest alike; "half are empty". With "Zipf" the n-th largest has 1/n of the largest. The
totals are shuffled once.

"Two stages" is on paper only: fbuf has no such thing. The 8 devices of a host first send each other
what goes to a device of the same number on any host. Then devices of one number send between hosts.
Its buckets are those between two devices, and between a host and a device.

The words of a message, of the plan and of an update are read off the programs that JAX makes of
`fbuf.sharded.sample` and `fbuf.sharded.update_priority`. A message has the row, its id, its place
in the batch, and the numbers that its weight is made of. Bytes of memory are those of
`fbuf.nbytes`.

Times are no measurements. They say how long it would take if each message took 10 us, one after the
other, and bytes came at 50 GB/s. Networks send several messages at once, so this is pessimistic
where there are many. The plan is an `all_reduce` and an update an `all_gather`, both in a ring,
where messages do wait for each other. Both are those of a prioritised buffer here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from benchmarks import report
from benchmarks.harness import Measured, Record, Task
from fbuf.mesh.exchange import bucket_size

SETTINGS = (
    (8, 8, 32),
    (8, 8, 256),
    (8, 8, 4096),
    (8, 64, 256),
    (64, 64, 256),
    (1000, 1000, 256),
)
"""Devices, shards, and rows of the batch on each device."""
OF_HOST = 8
"""Devices of a host."""
SKEWS = ("equal", "±20 %", "one has half", "Zipf", "half are empty")
ITEMS = {
    "36 bytes": {
        "obs": jax.ShapeDtypeStruct((7,), jnp.float32),
        "action": jax.ShapeDtypeStruct((), jnp.int32),
        "reward": jax.ShapeDtypeStruct((), jnp.float32),
    },
    "a frame stack": {"obs": jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)},
}
"""Rows of 36 bytes, and of 28,224."""
SAMPLERS: dict[str, fbuf.samplers.Sampler] = {
    "Uniform": fbuf.Uniform(),
    "Prioritized": fbuf.Prioritized(),
}
LINK, MESSAGE = 50e9, 10e-6
"""Assumed, not measured: bytes a second that a device receives, and seconds a message."""
ONE, WITHIN, BETWEEN = "one stage", "in a host", "between hosts"


def by_deviations(count: int) -> Callable[[float, int, int], int]:
    """So many standard deviations more than the mean."""
    return lambda part, batch, _: min(math.ceil(part + count * math.sqrt(part)) + 1, batch)


RULES: dict[str, Callable[[float, int, int], int]] = {
    "mean + 2 deviations": by_deviations(2),
    "mean + 3 deviations": by_deviations(3),
    "mean + 4 deviations": by_deviations(4),
    "mean + 6 deviations": by_deviations(6),
    "fbuf: one round in 99 of 100": bucket_size,
}


# --- the simulation ------------------------------------------------------------------------------


def totals(skew: str, count: int, random: np.random.Generator) -> np.ndarray:
    """Return the part of all totals that each shard has."""
    found = np.ones(count)
    if skew == "±20 %":
        found = np.linspace(0.8, 1.2, count)
    elif skew == "one has half":
        found[0] = count - 1
    elif skew == "Zipf":
        found = 1 / np.arange(1, count + 1)
    elif skew == "half are empty":
        found[: count // 2] = 0
    return random.permutation(found / found.sum())


def batches(
    devices: int, part: np.ndarray, rows: int, number: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the rows from each shard to each device: int `[shards, devices]`, of each batch."""
    ends = np.cumsum(part)
    ends[-1] = 1
    to = np.arange(devices * rows) // rows
    for _ in range(number):
        shard = np.searchsorted(ends, random.random(devices * rows), side="right")
        counts = np.bincount(shard * devices + to, minlength=part.size * devices)
        yield counts.reshape(part.size, devices)


def cost(fullest: np.ndarray, room: int, senders: int, own: int, rows: int) -> Record:
    """Return the cost of rounds to a device, on average over batches; see the report.

    Args:
        fullest: How full the fullest bucket is, of each batch.
        room: The size of a bucket.
        senders: How many buckets come to a device in a round.
        own: How many of them are its own.
        rows: How many rows it needs.
    """
    rounds = -(-fullest // room)
    return {
        "room": room,
        "fullest": float(fullest.mean()),
        "largest fullest": int(fullest.max()),
        "mean rounds": float(rounds.mean()),
        "most rounds": int(rounds.max()),
        "received per row": float(rounds.mean()) * senders * room / rows,
        "received": float(rounds.mean()) * (senders - own) * room,
    }


def exchanges(devices: int, shards: int, rows: int, skew: str, number: int) -> Iterator[Record]:
    """The rounds of one setting, in one stage and in two, and with other sizes of buckets."""
    random = np.random.default_rng(0)
    part = totals(skew, shards, random)
    hosts, own = devices // OF_HOST, shards // devices
    flat, within, between, sent = [], [], [], []
    for counts in batches(devices, part, rows, number, random):
        flat.append(counts.max())
        sent.append(counts.reshape(devices, -1).sum(axis=1).max() / rows)
        if hosts > 1:
            ways = counts.reshape(hosts, OF_HOST, own, hosts, OF_HOST).sum(axis=2)
            within.append(ways.sum(axis=2).max())
            between.append(ways.sum(axis=1).max())
    setting: Record = {"devices": devices, "shards": shards, "rows": rows, "skew": skew}
    setting["batches"] = number

    def found(stage: str, fullest: list[Any], room: int, senders: int, own: int) -> Record:
        whole = cost(np.asarray(fullest), room, senders, own, rows)
        whole["messages"] = whole["mean rounds"] * (senders // own - 1)
        return {"what": "exchange", "stage": stage, **setting, **whole}

    yield {"what": "busiest", **setting, "sends per row": float(np.mean(sent))}
    yield found(ONE, flat, bucket_size(rows / shards, rows, shards * devices), shards, own)
    if hosts > 1:
        yield found(
            WITHIN, within, bucket_size(rows / OF_HOST, rows * hosts, OF_HOST * devices), OF_HOST, 1
        )
        yield found(BETWEEN, between, bucket_size(rows / hosts, rows, hosts * devices), hosts, 1)
    for rule, size in RULES.items():
        room = size(rows / shards, rows, shards * devices)
        whole = cost(np.asarray(flat), room, shards, own, rows)
        yield {"what": "rule", "rule": rule, **setting, **whole}


# --- what is read off fbuf -----------------------------------------------------------------------


def arguments(jaxpr: Any, name: str) -> list[Any]:
    """The first argument of every operation of a name, in a program and what it is made of."""
    found = [step.invars[0].aval for step in jaxpr.eqns if step.primitive.name == name]
    for step in jaxpr.eqns:
        for inner in jax.tree.leaves(list(step.params.values()), is_leaf=lambda x: x is None):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += arguments(inner, name)
    return found


def words(item: Any, sampler: fbuf.samplers.Sampler) -> Record:
    """The uint32 words of a message, of what is said of a shard to plan, and of an update's id."""
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    state = fbuf.sharded.init(item, 64, mesh=mesh, shards=2, sampler=sampler)
    key = jax.random.key(0)
    program = jax.make_jaxpr(lambda state: fbuf.sharded.sample(state, key, 8))(state)
    (sent,), (told,) = (arguments(program.jaxpr, n) for n in ("all_to_all", "psum_invariant"))
    found = {"message": sent.shape[-1], "plan": told.shape[-1]}
    if sampler.keeps_priorities:
        ids = fbuf.sharded.ShardedIds(*(jnp.zeros(8, jnp.int32) for _ in range(3)))
        update = jax.make_jaxpr(lambda s: fbuf.sharded.update_priority(s, ids, jnp.ones(8)))(state)
        found["update"] = arguments(update.jaxpr, "all_gather")[0].shape[-1]
    return found


SHARD = 10**6
"""The rows of a shard whose memory is counted."""


def measure(task: Task) -> Measured:
    """Simulate one setting, or ask fbuf for sizes."""
    records: list[Record] = []
    if "draws" in task:
        for devices, shards, rows in SETTINGS:
            number = min(1000, max(10, task["draws"] // (devices * rows)))
            for skew in SKEWS:
                records += exchanges(devices, shards, rows, skew, number)
        return Measured(records)
    for row, item in ITEMS.items():
        for name, sampler in SAMPLERS.items():
            each = fbuf.nbytes(item, SHARD, sampler=sampler) / SHARD
            of = {"what": "sizes", "row": row, "sampler": name, "bytes": each}
            records.append({**of, **words(item, sampler)})
    return Measured(records)


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    alone: Task = {"cores": 1, "environment": {"JAX_PLATFORMS": "cpu"}}
    return [
        {"label": "sizes", **alone},
        {"label": "batches", "draws": 10**5 if quick else 25 * 10**6, **alone},
    ]


# --- the report ----------------------------------------------------------------------------------


def of(records: list[Record], **wanted: Any) -> Record | None:
    """The one record that is so."""
    for record in records:
        if all(record.get(key) == value for key, value in wanted.items()):
            return record
    return None


def setting_text(devices: int, shards: int, rows: int) -> str:
    """A setting, in short."""
    return f"{devices:,} devices, {shards:,} shards, {rows:,} rows"


def short(value: float) -> str:
    """A figure of two or three digits, and a whole number as it is."""
    return f"{value:g}" if value == int(value) and value < 100 else report.number(value)


def mean_text(value: float) -> str:
    """A mean of rounds or rows: whole if it is whole, as far as anyone cares."""
    return short(round(value, 2 if value < 10 else 1))


def times(value: float) -> str:
    """So many times."""
    return f"{value:,.1f}x" if value < 100 else f"{value:,.0f}x"


def bytes_text(count: float) -> str:
    """So many bytes, in the largest unit that fits."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{short(count / size)} {unit}"
    return f"{count:.0f} B"


def stages(records: list[Record], **wanted: Any) -> dict[str, list[Record]]:
    """The exchanges of a setting and a skew: in one stage, and in two where there are hosts."""
    one = of(records, what="exchange", stage=ONE, **wanted)
    two = [of(records, what="exchange", stage=stage, **wanted) for stage in (WITHIN, BETWEEN)]
    found = {"one stage": [one], "two stages": two}
    return {name: [s for s in parts if s] for name, parts in found.items() if all(parts)}


def message_bytes(records: list[Record], row: str) -> int:
    """The bytes of a message, of a prioritised buffer."""
    sizes = of(records, what="sizes", row=row, sampler="Prioritized")
    return 4 * sizes["message"] if sizes else 0


def seconds(messages: float, received: float) -> float:
    """Return the seconds that it takes if the assumptions hold."""
    return messages * MESSAGE + received / LINK


def ms_text(taken: float) -> str:
    """Seconds, as milliseconds."""
    return f"{short(float(f'{taken * 1e3:.2g}'))} ms"


Table = tuple[list[str], list[list[str]]]


def skew_table(records: list[Record]) -> Table:
    """Rounds, and places received for each row needed, of each setting and skew."""
    rows = []
    for devices, shards, each in SETTINGS:
        wanted = {"devices": devices, "shards": shards, "rows": each}
        for name in ("one stage", "two stages"):
            cells = []
            for skew in SKEWS:
                parts = stages(records, **wanted, skew=skew).get(name, [])
                rounds = " + ".join(mean_text(s["mean rounds"]) for s in parts)
                received = sum(s["received per row"] for s in parts)
                cells.append(f"{rounds}; {times(received)}")
            if parts:
                rows.append([setting_text(devices, shards, each), name, *cells])
        sent = [of(records, what="busiest", skew=skew, **wanted) for skew in SKEWS]
        cells = [times(s["sends per row"]) for s in sent if s]
        if cells:
            rows.append([setting_text(devices, shards, each), "the busiest sends", *cells])
    return ["rounds; received per row", "", *SKEWS], rows


def cost_table(records: list[Record]) -> Table:
    """Messages, bytes and time a batch takes at equal totals."""
    rows = []
    for devices, shards, each in SETTINGS:
        wanted = {"devices": devices, "shards": shards, "rows": each, "skew": SKEWS[0]}
        for name, parts in stages(records, **wanted).items():
            messages = sum(s["messages"] for s in parts)
            cells = [setting_text(devices, shards, each), name, short(round(messages))]
            for row in ITEMS:
                received = sum(s["received"] for s in parts) * message_bytes(records, row)
                cells += [bytes_text(received), ms_text(seconds(messages, received))]
            rows.append(cells)
    head = ["equal totals", "", "messages"]
    for row in ITEMS:
        head += [f"received, {row}", "time (estimate)"]
    return head, rows


def rule_table(records: list[Record]) -> Table:
    """Rounds and padding by other rules for the size of a bucket."""
    rows = []
    for devices, shards, each in SETTINGS:
        for rule in RULES:
            wanted = {"devices": devices, "shards": shards, "rows": each, "rule": rule}
            found = [of(records, what="rule", skew=skew, **wanted) for skew in SKEWS[:3]]
            if found[0]:
                cells = [
                    f"{mean_text(s['mean rounds'])}; {times(s['received per row'])}"
                    for s in found
                    if s
                ]
                room = str(found[0]["room"])
                rows.append([setting_text(devices, shards, each), rule, room, *cells])
    return ["rounds; received per row", "rule", "size", *SKEWS[:3]], rows


def bucket_table(records: list[Record]) -> Table:
    """Return the table of the fullest buckets."""
    rows = []
    for record in records:
        if record["what"] == "exchange":
            rows.append(
                [
                    setting_text(record["devices"], record["shards"], record["rows"]),
                    record["skew"],
                    record["stage"],
                    str(record["room"]),
                    mean_text(record["fullest"]),
                    str(record["largest fullest"]),
                    mean_text(record["mean rounds"]),
                    str(record["most rounds"]),
                    times(record["received per row"]),
                ]
            )
    head = ["", "skew", "stage", "size", "fullest bucket", "largest", "rounds", "most"]
    return [*head, "received per row"], rows


def told_table(records: list[Record]) -> Table:
    """Bytes received of what is not rows, and their time: the plan, and an update."""
    prioritized = of(records, what="sizes", sampler="Prioritized")
    rows = []
    for devices, shards, each in SETTINGS if prioritized else ():
        cells = [setting_text(devices, shards, each)]
        plan = 4 * prioritized["plan"] * shards // devices
        # A sum goes around twice: it is made, and then told.
        for turns, sent in ((2, plan), (1, 4 * prioritized["update"] * each)):
            messages = turns * (devices - 1)
            cells += [bytes_text(sent * messages), ms_text(seconds(messages, sent * messages))]
        rows.append(cells)
    return ["received", "plan", "time (estimate)", "update_priority", "time (estimate)"], rows


def memory_table(records: list[Record]) -> Table:
    """Bytes of a stored row, and of a row that is sent."""
    rows = [
        [
            r["row"],
            r["sampler"],
            f"{r['bytes']:,.1f}",
            f"{4 * r['message']:,}",
            short(80e9 / r["bytes"] / 1e6),
        ]
        for r in records
        if r["what"] == "sizes"
    ]
    return ["row", "sampler", "stored, bytes", "sent, bytes", "million rows in 80 GB"], rows


TABLES: dict[str, Callable[[list[Record]], Table]] = {
    "Rounds and padding": skew_table,
    "Messages, bytes and time a batch": cost_table,
    "Other sizes of a bucket": rule_table,
    "Plan and update": told_table,
    "Memory": memory_table,
    "Every bucket": bucket_table,
}


def tables(records: list[Record]) -> list[str]:
    """All of them."""
    return [
        line for title, table in TABLES.items() for line in report.section(title, *table(records))
    ]


if __name__ == "__main__":
    report.script(
        title="One buffer over many devices: the exchange, simulated",
        packages=("fbuf", "jax", "numpy"),
        keys=("what", "stage", "rule", "devices", "shards", "rows", "skew", "row", "sampler"),
        figures=(),
    )
