"""Why the sum tree has the shape it has: ways to lay it out and to walk it, side by side.

    python -m benchmarks.evidence.tree_shapes            about 8 minutes on 2 cores
    python -m benchmarks.evidence.tree_shapes --quick    about a minute: one process, N = 1e6

It needs JAX alone.

Every variant is compiled inside `lax.scan` with the tree in the donated carry, as in a training
loop. It only writes (sets B leaves, then brings every node above them up to date) or draws (walks
down, B times). Random numbers are made beforehand. Beside microseconds the report has
the temporary bytes of the compiled program: where they reach megabytes, XLA copies whole levels.

- form: "vectorised" gathers the rows of a level, works on all at once and scatters the results. "a
  loop a level" is one `fori_loop` over the batch for each level, which carries that level alone.
  "one loop" is a single `fori_loop` over the batch that goes through all levels. "fetched first" is
  a loop a level, before which a shorter loop touches the rows if a level has a megabyte or more.
  Many rows are then on their way from memory at once. "by halves" gathers the children of a level,
  and chooses among them, for one half of the batch and then for the other. It touches the rows
  likewise.
- layout: a node keeps the sum and the largest value of its row. "last": levels are [rows, fan-out,
  2], and a node's two figures lie side by side; "first": [rows, 2, fan-out].
- top: "row": levels are added until one row is left. "flat": until at most 512 nodes are left,
  which a draw searches by bisection in their running sums.
- sums: how a draw adds up the running sums of a row. "by fours": inside each four, and then the
  fours; "in a chain": one after the other. A write has none.

On CPU fbuf writes with a loop a level and draws by halves, at a fan-out of 16, last, flat, by
fours. It finds a node of the flat top by its row. Figures are medians over processes of medians
over rounds; none of the code is fbuf's own.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task

BATCH = 256
FORMS = ("vectorised", "a loop a level", "one loop")
WAYS = {"write": FORMS, "draw": (*FORMS, "fetched first", "by halves")}
FLAT = 512
FETCHED = 2**20
"""The least bytes of a level that is fetched first."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A way to lay a tree out. The leaves are `[rows, fanout]`."""

    fanout: int = 16
    layout: str = "last"
    top: str = "flat"
    sums: str = "by fours"


Levels = tuple[jax.Array, ...]


def build(shape: Shape, capacity: int) -> Levels:
    """A tree of random values, the leaves first."""
    rng = np.random.default_rng(0)
    rows = -(-capacity // shape.fanout)
    leaves = np.zeros(rows * shape.fanout, np.float32)
    leaves[:capacity] = rng.random(capacity, np.float32)
    levels = [leaves.reshape(rows, shape.fanout)]
    sums, largest = levels[0].sum(1), levels[0].max(1)
    while len(levels) == 1 or rows > (FLAT // shape.fanout if shape.top == "flat" else 1):
        rows = -(-len(sums) // shape.fanout)
        level = np.zeros((2, rows * shape.fanout), np.float32)
        level[:, : len(sums)] = sums, largest
        pairs = level.reshape(2, rows, shape.fanout)
        levels.append(np.moveaxis(pairs, 0, 2 if shape.layout == "last" else 1))
        sums, largest = pairs[0].sum(1), pairs[1].max(1)
    return tuple(jnp.asarray(level.copy()) for level in levels)


# --- one row and one node, whatever the layout ----------------------------------------------------


def sums_of(shape: Shape, row: jax.Array, leaf: bool) -> jax.Array:
    """The sums of the children of rows: `[..., fanout]`."""
    if leaf:
        return row
    return row[..., 0] if shape.layout == "last" else row[..., 0, :]


def node_of(shape: Shape, row: jax.Array, leaf: bool) -> jax.Array:
    """The sum and the largest of rows, `[..., 2]`, in an order of additions that is written out."""
    if leaf:
        parts = [row, row]
    elif shape.layout == "last":
        parts = [row[..., 0], row[..., 1]]
    else:
        parts = [row[..., 0, :], row[..., 1, :]]
    kept = []
    for part, combine in zip(
        parts, (operator.add, lambda a, b: jnp.where(a > b, a, b)), strict=True
    ):
        while part.shape[-1] > 1:
            half = part.shape[-1] // 2
            part = combine(part[..., :half], part[..., half:])
        kept.append(part[..., 0])
    return jnp.stack(kept, axis=-1)


def read_row(level: jax.Array, row: jax.Array) -> jax.Array:
    zeros = (0,) * (level.ndim - 1)
    sizes = (1, *level.shape[1:])
    return lax.dynamic_slice(level, (row, *zeros), sizes, allow_negative_indices=False)[0]


def write_node(shape: Shape, level: jax.Array, node: jax.Array, pair: jax.Array) -> jax.Array:
    row, child = node // shape.fanout, node % shape.fanout
    if shape.layout == "last":
        at, new = (row, child, 0), pair.reshape(1, 1, 2)
    else:
        at, new = (row, 0, child), pair.reshape(1, 2, 1)
    return lax.dynamic_update_slice(level, new, at, allow_negative_indices=False)


def write_leaf(shape: Shape, leaves: jax.Array, slot: jax.Array, value: jax.Array) -> jax.Array:
    at = (slot // shape.fanout, slot % shape.fanout)
    new = value.reshape(1, 1)
    return lax.dynamic_update_slice(leaves, new, at, allow_negative_indices=False)


# --- writing --------------------------------------------------------------------------------------


def write(shape: Shape, form: str, levels: Levels, slots: jax.Array, values: jax.Array) -> Levels:
    """Set leaves and every node above them; of duplicates, if vectorised, any may win."""
    if form == "one loop":

        def all_levels(i: jax.Array, levels: Levels) -> Levels:
            found = [write_leaf(shape, levels[0], slots[i], values[i])]
            node = slots[i]
            for depth, parent in enumerate(levels[1:]):
                node = node // shape.fanout
                pair = node_of(shape, read_row(found[-1], node), depth == 0)
                found.append(write_node(shape, parent, node, pair))
            return tuple(found)

        return lax.fori_loop(0, len(slots), all_levels, levels)

    if form == "vectorised":
        found = [levels[0].at[slots // shape.fanout, slots % shape.fanout].set(values)]
    else:
        found = [
            lax.fori_loop(
                0,
                len(slots),
                lambda i, leaves: write_leaf(shape, leaves, slots[i], values[i]),
                levels[0],
            )
        ]
    nodes = slots
    for depth, parent in enumerate(levels[1:]):
        nodes = nodes // shape.fanout
        found.append(refreshed(shape, form, parent, found[-1], nodes, depth == 0))
    return tuple(found)


def refreshed(
    shape: Shape, form: str, parent: jax.Array, children: jax.Array, nodes: jax.Array, leaf: bool
) -> jax.Array:
    """A level, brought up to date with some rows of the one below."""
    count = children.shape[0]
    if count <= len(nodes):  # no more rows than entries: take them all, in order
        pairs = node_of(shape, children, leaf)
        pairs = jnp.pad(pairs, ((0, parent.size // 2 - count), (0, 0)))
        pairs = pairs.reshape(-1, shape.fanout, 2)
        return pairs if shape.layout == "last" else pairs.swapaxes(1, 2)
    if form == "vectorised":
        pairs = node_of(shape, children.at[nodes].get(mode="promise_in_bounds"), leaf)
        row, child = nodes // shape.fanout, nodes % shape.fanout
        if shape.layout == "last":
            return parent.at[row, child].set(pairs, mode="promise_in_bounds")
        return parent.at[row, :, child].set(pairs, mode="promise_in_bounds")

    def one(i: jax.Array, parent: jax.Array) -> jax.Array:
        pair = node_of(shape, read_row(children, nodes[i]), leaf)
        return write_node(shape, parent, nodes[i], pair)

    return lax.fori_loop(0, len(nodes), one, parent)


# --- drawing --------------------------------------------------------------------------------------


def pick(shape: Shape, sums: jax.Array, uniform: jax.Array) -> jax.Array:
    """The child whose running sum is the first above a fraction of the whole.

    Written out child by child, for `jnp.cumsum` of small rows is slow on CPU.

    Args:
        shape: How to add.
        sums: `[..., K]`.
        uniform: `[...]`.
    """
    children = [sums[..., k] for k in range(sums.shape[-1])]
    if shape.sums == "by fours":
        starts = range(0, len(children), 4)
        fours = [list(itertools.accumulate(children[k : k + 4])) for k in starts]
        ends = itertools.accumulate(four[-1] for four in fours)
        rest = [end + sum_ for end, four in zip(ends, fours[1:], strict=False) for sum_ in four]
        running = [*fours[0], *rest]
    else:
        running = list(itertools.accumulate(children))
    target = uniform * running[-1]
    found = jnp.zeros(target.shape, jnp.int32)
    for passed in running[:-1]:
        found += passed <= target
    return found


def draw(shape: Shape, form: str, levels: Levels, uniforms: jax.Array) -> jax.Array:
    """Slots in proportion to their values, int32 `[B]`, from `[levels, B]` uniform numbers."""
    top, *below = reversed(levels)
    sums = sums_of(shape, top, False).reshape(-1)
    if shape.top == "flat":
        found = bisected(jnp.cumsum(sums), uniforms[0])
    else:
        found = pick(shape, jnp.broadcast_to(sums, (uniforms.shape[1], len(sums))), uniforms[0])

    if form == "one loop":

        def descend(i: jax.Array, slots: jax.Array) -> jax.Array:
            node = found[i]
            for depth, level in enumerate(below, start=1):
                row = sums_of(shape, read_row(level, node), level.ndim == 2)
                node = node * shape.fanout + pick(shape, row, uniforms[depth, i])
            return slots.at[i].set(node)

        return lax.fori_loop(0, len(found), descend, jnp.zeros_like(found))

    for depth, level in enumerate(below, start=1):
        if form == "vectorised":
            rows = sums_of(shape, level.at[found].get(mode="promise_in_bounds"), level.ndim == 2)
            found = found * shape.fanout + pick(shape, rows, uniforms[depth])
        elif form == "by halves":
            found = one_level_by_halves(shape, level, found, uniforms[depth])
        else:
            if form == "fetched first":
                found = fetched(level, found)
            found = one_level(shape, level, found, uniforms[depth])
    return found


def one_level(shape: Shape, level: jax.Array, nodes: jax.Array, uniforms: jax.Array) -> jax.Array:
    def one(i: jax.Array, found: jax.Array) -> jax.Array:
        row = sums_of(shape, read_row(level, nodes[i]), level.ndim == 2)
        return found.at[i].set(nodes[i] * shape.fanout + pick(shape, row, uniforms[i]))

    return lax.fori_loop(0, len(nodes), one, jnp.zeros_like(nodes))


def one_level_by_halves(
    shape: Shape, level: jax.Array, nodes: jax.Array, uniforms: jax.Array
) -> jax.Array:
    def sum_of(nodes: jax.Array, child: int) -> jax.Array:
        places = {2: (child,), 3: (child, 0) if shape.layout == "last" else (0, child)}
        return level.at[(nodes, *places[level.ndim])].get(mode="promise_in_bounds")

    def touch(nodes: jax.Array, uniforms: jax.Array) -> jax.Array:
        return jnp.where(sum_of(nodes, 0) < 0, 0, nodes)  # it never is, which XLA does not know

    def choose(nodes: jax.Array, uniforms: jax.Array) -> jax.Array:
        sums = jnp.stack([sum_of(nodes, child) for child in range(shape.fanout)], axis=1)
        return nodes * shape.fanout + pick(shape, sums, uniforms)

    if level.size * level.dtype.itemsize >= FETCHED:
        nodes = by_halves(touch, nodes, uniforms)
    return by_halves(choose, nodes, uniforms)


def by_halves(make: Callable[..., jax.Array], nodes: jax.Array, uniforms: jax.Array) -> jax.Array:
    half = len(nodes) // 2

    def one(turn: jax.Array, made: jax.Array) -> jax.Array:
        some = [lax.dynamic_slice_in_dim(array, turn * half, half) for array in (nodes, uniforms)]
        return lax.dynamic_update_slice_in_dim(made, make(*some), turn * half, 0)

    first = (nodes[0] < 0).astype(jnp.int32)  # 0, which XLA does not know
    return lax.fori_loop(first, 2, one, jnp.zeros_like(nodes))


def fetched(level: jax.Array, nodes: jax.Array) -> jax.Array:
    """The nodes, known only once a number of each one's row has been read."""
    if level.size * level.dtype.itemsize < FETCHED:
        return nodes
    zeros = (0,) * (level.ndim - 1)

    def touch(i: jax.Array, largest: jax.Array) -> jax.Array:
        sizes = (1,) * level.ndim
        one = lax.dynamic_slice(level, (nodes[i], *zeros), sizes, allow_negative_indices=False)
        return jnp.maximum(largest, one.reshape(()))

    largest = lax.fori_loop(0, len(nodes), touch, jnp.zeros((), level.dtype))
    return jnp.where(largest < 0, 0, nodes)  # it never is, which XLA does not know


def bisected(running: jax.Array, uniforms: jax.Array) -> jax.Array:
    last = len(running) - 1
    target = uniforms * running[-1]
    found = jnp.zeros(target.shape, jnp.int32)
    for bit in reversed(range(last.bit_length())):
        ahead = jnp.minimum(found + (1 << bit), last)
        found = jnp.where(running[ahead - 1] <= target, ahead, found)
    return found


# --- measuring ------------------------------------------------------------------------------------


def variants(what: str) -> list[tuple[Shape, str]]:
    """All fan-outs in all forms; what else may differ, at a fan-out of 16 alone."""
    shapes = [Shape(fanout) for fanout in (8, 16, 32, 64)]
    shapes += [Shape(layout="first"), Shape(top="row")]
    if what == "draw":
        shapes.append(Shape(sums="in a chain"))
    return [(shape, form) for shape in shapes for form in WAYS[what]]


def program(shape: Shape, form: str, what: str, capacity: int) -> tuple[harness.Run, int]:
    """A scan of one variant, and its temporary bytes."""
    copies = what == "write" and form == "one loop"  # slow, as it will turn out
    steps = 2 if copies else 500
    rng = np.random.default_rng(1)
    levels = build(shape, capacity)
    step: Callable[[Any, Any], Any]
    if what == "write":
        slots = rng.integers(0, capacity, (steps, BATCH)).astype(np.int32)
        inputs: Any = (jnp.asarray(slots), jnp.asarray(rng.random((steps, BATCH), np.float32)))

        def step(carry: Any, given: Any) -> Any:
            return write(shape, form, carry[0], *given), carry[1]
    else:
        inputs = jnp.asarray(rng.random((steps, len(levels), BATCH), np.float32))

        def step(carry: Any, given: Any) -> Any:
            return carry[0], carry[1] + draw(shape, form, carry[0], given)

    return harness.in_scan(step, harness.Box(levels), [jnp.zeros(BATCH, jnp.int32)], inputs)


def check() -> None:
    """All forms have to agree, or their times mean nothing."""
    capacity = 300_000  # so many that the leaves are fetched
    rng = np.random.default_rng(2)
    slots = rng.choice(capacity, BATCH, replace=False).astype(np.int32)
    values = rng.random(BATCH, np.float32)
    for shape in dict.fromkeys(shape for shape, _ in variants("draw")):
        levels = build(shape, capacity)
        uniforms = jnp.asarray(rng.random((len(levels), BATCH), np.float32))
        trees = [
            write(shape, form, levels, jnp.asarray(slots), jnp.asarray(values)) for form in FORMS
        ]
        for tree in trees[1:]:
            for ours, theirs in zip(trees[0], tree, strict=True):  # nodes not written: rounding
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        drawn = [draw(shape, form, trees[0], uniforms) for form in WAYS["draw"]]
        for found in drawn[1:]:
            np.testing.assert_array_equal(drawn[0], found)
        changed = np.asarray(trees[0][0]).reshape(-1)[slots]
        np.testing.assert_array_equal(changed, values)
        total = np.asarray(trees[0][0], np.float64).sum()
        np.testing.assert_allclose(sums_of(shape, trees[0][-1], False).sum(), total, rtol=1e-4)


def measure(task: Task) -> Measured:
    """All variants at one size."""
    check()
    found = Measured()
    for what in ("write", "draw"):
        made = {v: program(*v, what, task["n"]) for v in variants(what)}
        runs = {variant: run for variant, (run, _) in made.items()}
        taken = harness.alternate(runs, 3 if task["quick"] else 7, 0.5)
        for (shape, form), rounds in taken.items():
            found.records.append(
                {
                    "n": task["n"],
                    "what": what,
                    "form": form,
                    **dataclasses.asdict(shape),
                    "us": harness.median(rounds),
                    "temp_bytes": made[shape, form][1],
                }
            )
    return found


def tasks(quick: bool) -> list[Task]:
    """Each size in a process of its own, several times."""
    sizes = (10**6,) if quick else (10**6, 10**7) * 3
    return [{"label": f"N = {n:,}", "n": n, "quick": quick} for n in sizes]


def tables(records: list[Record]) -> list[str]:
    """All variants, the fastest first."""
    rows = [
        [
            f"{r['n']:,}",
            r["what"],
            r["form"],
            str(r["fanout"]),
            r["layout"],
            r["top"],
            r["sums"] if r["what"] == "draw" else "-",
            report.number(r["us"]),
            f"{r['temp_bytes']:,}",
        ]
        for r in sorted(records, key=lambda r: (r["n"], r["what"], r["us"]))
    ]
    head = ["N", "what", "form", "fan-out", "layout", "top", "sums", "us a step", "temp bytes"]
    return [f"Batch {BATCH}.", "", *report.table(head, rows)]


if __name__ == "__main__":
    report.script(
        title="The shape of the sum tree",
        packages=("jax", "jaxlib"),
        keys=("n", "what", "form", "fanout", "layout", "top", "sums"),
    )
