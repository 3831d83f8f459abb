"""Running sums of nodes, and the first of these sums above a target.

Each addition is explicit, so that a node of value 0 changes no bit of a sum.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.trees.levels import FANOUT, children_of, read_row
from fbuf.xla.loop import blank, by_halves, entry, with_entry, zero_after
from fbuf.xla.platform import by_platform


@functools.partial(jax.jit, inline=True)  # traced once a draw
def row_ends(nodes: jax.Array) -> jax.Array:
    """Return 0, and the running sums of the rows of `[rows, FANOUT]` nodes: `[1 + rows]`.

    On CPU a loop computes them. Otherwise XLA would repeat all additions in every kernel that reads
    one.
    """
    count = nodes.shape[0]

    def written_out(nodes: jax.Array) -> jax.Array:
        sums = sums_of_row([nodes[:, child] for child in range(FANOUT)])[-1]
        ends = itertools.accumulate(sums[row] for row in range(count))
        return jnp.stack([jnp.zeros_like(sums[0]), *ends])

    def loop(nodes: jax.Array) -> jax.Array:
        def body(row: jax.Array, ends: jax.Array) -> jax.Array:
            node = read_row(nodes, row)
            whole = sums_of_row([node[child] for child in range(FANOUT)])[-1]
            return with_entry(ends, row + 1, entry(ends, row) + whole)

        zero = zero_after(nodes)
        return lax.fori_loop(zero, count, body, blank(zero, (1 + count,), nodes.dtype))

    return by_platform(nodes, cpu=loop, default=written_out)


def first_above(nodes: jax.Array, targets: jax.Array) -> jax.Array:
    """Find the first of the running sums of `[rows, FANOUT]` nodes above each target.

    The running sums of the rows give the row, and those of its nodes the child.

    Args:
        nodes: float32; their running sums are those of `running_sums`.
        targets: float32 `[B]`, from 0 to below the sum of all nodes.

    Returns:
        int32 `[B]`; the number of a node. Its own value is above 0.
    """

    def choose(source: tuple[jax.Array, jax.Array], targets: jax.Array) -> jax.Array:
        nodes, ends = source
        row, before = jnp.zeros(targets.shape, jnp.int32), jnp.zeros_like(targets)
        for at in range(1, nodes.shape[0]):
            end = lax.index_in_dim(ends, at, keepdims=False)
            passed = end <= targets
            row += passed.astype(jnp.int32)
            before = jnp.where(passed, end, before)
        inside = [before + sum_ for sum_ in sums_of_row(children_of(nodes, row))]
        return row * FANOUT + first_in_row(inside, targets)

    return by_halves(choose, (nodes, row_ends(nodes)), targets)


def running_sums(nodes: jax.Array) -> jax.Array:
    """Return the running sums of `[rows, FANOUT]` nodes in row-major order, `[rows * FANOUT]`.

    The sum of a row is the last of its own running sums. The sums of the next row begin with it.
    """
    inside = sums_of_row([nodes[:, child] for child in range(FANOUT)])
    return (row_ends(nodes)[:-1, None] + jnp.stack(inside, axis=1)).reshape(-1)


def sums_of_row(children: list[jax.Array]) -> list[jax.Array]:
    """Return the running sums of a row, in groups of four: a chain of 8 additions instead of 15."""
    sums = functools.partial(itertools.accumulate, func=lax.add)  # + takes twice the time to trace
    fours = [list(sums(children[at : at + 4])) for at in range(0, FANOUT, 4)]
    ends = sums(four[-1] for four in fours)
    rest = [lax.add(end, sum_) for end, four in zip(ends, fours[1:], strict=False) for sum_ in four]
    return [*fours[0], *rest]


def first_in_row(running: list[jax.Array], target: jax.Array) -> jax.Array:
    """Find the first running sum of a row above the target, or else the last one."""
    found = jnp.zeros(target.shape, jnp.int32)
    for passed in running[:-1]:
        found = lax.add(found, lax.convert_element_type(lax.le(passed, target), jnp.int32))
    return found


def choose_child(child: jax.Array, choices: list[jax.Array]) -> jax.Array:
    """Return `choices[child]` for each child; 0 for child -1."""
    chosen = jnp.zeros_like(choices[0])
    for at, choice in enumerate(choices):
        chosen = jnp.where(child == at, choice, chosen)
    return chosen
