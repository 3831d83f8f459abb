"""Calls from Python: of fbuf, of a user's own jit, and of the arrays of a state alone.

    python -m benchmarks.evidence.calls            about 2 minutes on 2 cores
    python -m benchmarks.evidence.calls --quick    half a minute

It needs fbuf and JAX.

A step updates the priorities of a batch, adds a row and draws 256 rows of 97 bytes; a uniform one
only adds and draws. The next step begins when the batch is there.

"fbuf" is the functions as they are. "user's jit" has each of them in a `jax.jit` that donates the
state. "tuple" is the same of the arrays of the state in a tuple: JAX has no state to take apart or
to make. "fewer arrays" has the three smallest of them side by side in one. "one call" is one
compiled function of the whole step. "in scan" is what the step takes within one program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import fbuf
from benchmarks import compare, harness, peers, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

BATCH, CALLS, TURNS = 256, 200, 2000
SIZES = (10_000, 1_000_000)
NAMES = FBUF, JITTED, TUPLE, FEWER, ONE, SCAN = (
    "fbuf", "user's jit", "tuple", "fewer arrays", "one call", "in scan",
)  # fmt: skip

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


class Packed:
    """A state as a tuple of arrays, of which `small` lie in one."""

    def __init__(self, state: fbuf.State[Any], small: tuple[int, ...]) -> None:
        leaves, self.tree = jax.tree.flatten(state)
        self.small, self.specs = small, [(leaf.shape, leaf.dtype) for leaf in leaves]

    def pack(self, state: fbuf.State[Any]) -> tuple[jax.Array, ...]:
        """Return the arrays."""
        leaves = jax.tree.leaves(state)
        words = [lax.bitcast_convert_type(leaves[at], jnp.int32).reshape(-1) for at in self.small]
        rest = [leaf for at, leaf in enumerate(leaves) if at not in self.small]
        return (*([jnp.concatenate(words)] if words else []), *rest)

    def unpack(self, arrays: tuple[jax.Array, ...]) -> fbuf.State[Any]:
        """Return the state."""
        rest, leaves, begin = iter(arrays), [], 0
        words = next(rest) if self.small else None
        for at, (shape, dtype) in enumerate(self.specs):
            if at not in self.small:
                leaves.append(next(rest))
                continue
            size = functools.reduce(lambda a, b: a * b, shape, 1)
            part = words[begin : begin + size].reshape(shape)
            leaves.append(lax.bitcast_convert_type(part, dtype))
            begin += size
        return self.tree.unflatten(leaves)


def step_of(row: Any, target: Any, prioritized: bool, wrap: Any, read: Any) -> Step:
    """Return a step of three functions, each wrapped."""
    update = wrap(lambda state, ids: fbuf.update_priority(state, ids, target))
    add = wrap(lambda state: fbuf.add(state, row))
    draw = read(lambda state, key: fbuf.sample(state, key, BATCH))

    def step(state: Any, key: Any, ids: Any) -> tuple[Any, Any]:
        state = add(update(state, ids) if prioritized else state)
        return state, draw(state, key)

    return step


def steps(state: fbuf.State[Any], row: Any, target: Any, prioritized: bool) -> dict[str, Any]:
    """Return each step, and what it takes for a state."""
    leaves = jax.tree.leaves(state)
    small = tuple(sorted(range(len(leaves)), key=lambda at: leaves[at].size)[:3])
    of = functools.partial(step_of, row, target, prioritized)
    donating = functools.partial(jax.jit, donate_argnums=0)

    def of_arrays(small: tuple[int, ...]) -> tuple[Step, Any]:
        packed = Packed(state, small)
        pack, unpack = packed.pack, packed.unpack
        wrap = lambda f: donating(lambda arrays, *more: pack(f(unpack(arrays), *more)))
        read = lambda f: jax.jit(lambda arrays, *more: f(unpack(arrays), *more))
        return of(wrap, read), jax.jit(pack)

    plain = of(lambda f: f, lambda f: f)
    itself = lambda state: state
    return {
        FBUF: (plain, itself),
        JITTED: (of(donating, jax.jit), itself),
        TUPLE: of_arrays(()),
        FEWER: of_arrays(small),
        ONE: (donating(plain), itself),
    }


def measure(task: Task) -> Measured:
    """Time all of one kind and size."""
    prioritized = task["prioritized"]
    row = jax.tree.map(jnp.asarray, peers.random_rows(peers.ROW, 1, seed=4))
    target = jax.random.uniform(jax.random.key(3), (BATCH,))
    make = lambda: peers.filled(peers.Fbuf(peers.ROW, task["n"], BATCH, prioritized), task["n"])
    keys = list(jax.random.split(jax.random.key(1), CALLS))
    figures = {}
    for name, (step, form) in steps(make(), row, target, prioritized).items():
        state = make()
        box = [form(state), fbuf.sample(state, keys[0], BATCH).ids]

        def run(step: Step = step, box: list[Any] = box) -> int:
            for key in keys:
                box[0], batch = step(box[0], key, box[1])
                box[1] = jax.block_until_ready(batch).ids
            return CALLS

        figures[name] = harness.timed(run)
    plain = step_of(row, target, prioritized, lambda f: f, lambda f: f)

    def scanned(carry: Any, key: Any) -> tuple[Any, Any]:
        state, batch = plain(carry[0], key, carry[1])
        return (state, batch.ids), batch.data

    turns = jax.jit(lambda carry, key: lax.scan(scanned, carry, jax.random.split(key, TURNS))[0],
                    donate_argnums=0)  # fmt: skip
    state = make()
    carry = [(state, fbuf.sample(state, keys[0], BATCH).ids)]

    def run_scan() -> int:
        carry[0] = jax.block_until_ready(turns(carry[0], keys[0]))
        return TURNS

    figures[SCAN] = harness.timed(run_scan)
    taken = harness.by_turns(figures, 3 if task["quick"] else 15)
    return Measured(
        [
            {
                "n": task["n"], "prioritized": prioritized, "what": name,
                "us": harness.median(rounds), "rounds": rounds,
            }
            for name, rounds in taken.items()
        ]
    )  # fmt: skip


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    return [
        {"label": f"{kind}, N = {n:,}", "n": n, "prioritized": prioritized, "quick": quick}
        for prioritized, kind in compare.KINDS.items()
        for n in SIZES
    ]


def tables(records: list[Record]) -> list[str]:
    """The table, as lines of Markdown."""
    us, rows = Find(records), []
    for prioritized, kind in compare.KINDS.items():
        for n in SIZES:
            times = [us(n=n, prioritized=prioritized, what=name) for name in NAMES]
            rows.append([kind, f"{n:,}", *map(report.number, times)])
    return report.section("A step: microseconds", ["buffer", "N", *NAMES], rows)


if __name__ == "__main__":
    report.script(
        title="Calls from Python",
        packages=("fbuf", "jax", "jaxlib", "numpy"),
        keys=("n", "prioritized", "what"),
    )
