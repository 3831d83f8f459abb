"""Loops over the entries of a batch that are fast where XLA runs them on a CPU.

There a `fori_loop` whose body touches little is one kernel, and runs in the thread that comes to
it. Three rules keep it there:

- XLA runs every instruction that is ready. Where more than eight are, it wakes other threads, which
  takes longer than all of the work. The counter and the results of a loop are ready from the first
  if they begin as constants. So they begin as values that are known only once the batch is.
- XLA also wakes other threads for every gather from a large array, however few rows are read. A
  gather that fills a part of an array stays in its thread: see `by_halves`.
- A core that copies each row it reads, or works on it, waits for the rows one by one. So the rows
  of a large array are read beforehand, one number of each cache line: many are then under way at
  once. See `fetched`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.xla.platform import by_platform
from fbuf.xla.tie import tie
from fbuf.xla.varying import varying

T = TypeVar("T")

_CACHED = 2**20
"""Bytes of an array that can be taken to lie in a core's own cache."""

Numbers = tuple[jax.Array, ...]
"""Arrays that a loop carries."""

LINE = 64
"""Bytes of a cache line."""

_FEW = 8
"""The most numbers of a row that are read as fast without reading them beforehand."""


@jax.custom_batching.custom_vmap
def zero_after(batch: jax.Array) -> jax.Array:
    """Return 0 as int32, known only once a batch is. The batch has at least one entry."""
    return 1 - tie(jnp.int32(1), batch)


@zero_after.def_vmap
def _(size: int, batched: list[bool], batch: jax.Array) -> tuple[jax.Array, bool]:
    # One zero for all: with a counter for each, a loop would have to end for each by itself.
    return zero_after(batch), False


def blank(zero: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Return an array for the results of a loop, known only once `zero` is."""
    return jnp.full(shape, zero.astype(dtype))


def entry(array: jax.Array, i: jax.Array) -> jax.Array:
    """Return `array[i]`, in range; for use inside a loop. Brackets take longer to trace."""
    found = lax.dynamic_slice_in_dim(array, i, 1, allow_negative_indices=False)
    return lax.squeeze(found, (0,))


def entry_at(array: jax.Array, place: tuple[jax.Array, ...]) -> jax.Array:
    """Return the number at a place, in range; for use inside a loop, as `entry`."""
    found = lax.dynamic_slice(array, place, (1,) * array.ndim, allow_negative_indices=False)
    return lax.reshape(found, ())


def with_entry_at(array: jax.Array, place: tuple[jax.Array, ...], new: jax.Array) -> jax.Array:
    """Return an array with another number at a place, in range; as `entry_at`."""
    new = lax.reshape(new, (1,) * array.ndim)
    return lax.dynamic_update_slice(array, new, place, allow_negative_indices=False)


def with_entry(array: jax.Array, i: jax.Array, new: jax.Array) -> jax.Array:
    """Return an array with another entry `i`, in range; for use inside a loop, as `entry`."""
    new = lax.expand_dims(new, (0,))
    return lax.dynamic_update_slice_in_dim(array, new, i, 0, allow_negative_indices=False)


def by_halves(make: Callable[..., jax.Array], source: Any, *batch: jax.Array) -> jax.Array:
    """Return `make(source, *batch)`; on CPU made for one half of the batch, then for the other.

    Args:
        make: Gathers something for each entry of a batch, or for some of its entries.
        source: The array that `make` reads, or a tree of arrays.
        batch: `[B]` each, of at least one entry.

    Returns:
        `[B, ...]`, known only once the batch is.
    """
    count = batch[0].shape[0]
    half = -(-count // 2)
    make_half = jax.jit(make, inline=True)  # traced once for its shape, and then used

    def halves(source: Any, *batch: jax.Array) -> jax.Array:
        def some(start: jax.Array | int) -> list[jax.Array]:
            return [
                lax.dynamic_slice_in_dim(array, start, half, allow_negative_indices=False)
                for array in batch
            ]

        def body(turn: jax.Array, made: jax.Array) -> jax.Array:
            start = turn * (count - half)  # an entry in the middle is made twice
            return lax.dynamic_update_slice_in_dim(
                made, make_half(source, *some(start)), start, 0, allow_negative_indices=False
            )

        made = jax.eval_shape(lambda: make_half(source, *some(0)))
        zero = zero_after(batch[0])
        return lax.fori_loop(zero, 2, body, blank(zero, (count, *made.shape[1:]), made.dtype))

    return by_platform(source, *batch, cpu=halves, default=make)


def in_one_turn(
    change: Callable[..., tuple[T, Any]], state: T, *others: Any, known: jax.Array
) -> tuple[T, Any]:
    """Return `change(state, *others)`; on CPU made in a loop of one turn.

    There XLA copies each array that a branch of `lax.cond` changes, for the branch may have to give
    back the old array. A loop may have no turn, so a loop that it runs in place in a branch, too.

    Args:
        change: Returns the changed state, and anything else. It must hold no traced array but its
            arguments.
        state: A tree of arrays.
        others: More arguments, trees that may hold Python numbers.
        known: An array of the program. XLA must not find out that the loop has one turn.
    """

    def loop(state: T, known: jax.Array, *others: Any) -> tuple[T, Any]:
        # `eval_shape` traces it for its shapes, and the loop uses the same trace.
        turn = jax.jit(lambda state: change(state, *others), inline=True)
        shapes, rest = jax.eval_shape(turn, state)
        if jax.tree.structure(shapes) != jax.tree.structure(state):
            return turn(state)
        zero = zero_after(known.reshape(1))
        blanks = jax.tree.map(lambda leaf: varying(blank(zero, leaf.shape, leaf.dtype), leaf), rest)
        carry = jax.tree.map(varying, state, shapes), blanks
        return lax.fori_loop(zero, 1, lambda _, carry: turn(carry[0]), carry)

    def at_once(state: T, known: jax.Array, *others: Any) -> tuple[T, Any]:
        return change(state, *others)

    return by_platform(state, known, *others, cpu=loop, default=at_once)


def with_room(
    make: Callable[[jax.Array, jax.Array], jax.Array], source: jax.Array, batch: jax.Array
) -> jax.Array:
    """Act as `by_halves`, for a few entries; on CPU put into an array with room for one more.

    It is faster than a loop of two turns, but only for a small source. XLA gathers from a large
    array in several threads all the same, and anew for every use.
    """
    part = lambda source, batch: in_room(make(source, batch), batch)[:-1]
    return by_platform(source, batch, cpu=part, default=make)


def in_room(made: jax.Array, known: jax.Array, axis: int = 0) -> jax.Array:
    """Return results with one more entry of 0 on an axis; for use in a form for CPU.

    There XLA computes what it puts into a larger array in the thread that comes to it.

    Args:
        made: The results.
        known: An array of the program that is known before.
        axis: The axis that gets one more entry.
    """
    zero = zero_after(known)
    sizes = [size + (at == axis) for at, size in enumerate(made.shape)]
    return lax.dynamic_update_slice_in_dim(blank(zero, tuple(sizes), made.dtype), made, zero, axis)


def is_large(size: int, dtype: jnp.dtype) -> bool:
    """Tell whether this many numbers exceed the cache of a core."""
    return size * dtype.itemsize > _CACHED


def fetched(
    array: jax.Array,
    rows: jax.Array,
    batch: jax.Array,
    columns: tuple[int, int] | None = None,
) -> jax.Array:
    """Return `batch`, on CPU known only once rows of an array are in the cache.

    It does nothing for a small array, or for a few numbers of each row: reading them takes no
    longer than fetching them.

    Args:
        array: `[n, ...]`.
        rows: int32 `[B]`, each in range.
        batch: `[B]`; the batch that needs them.
        columns: The wanted numbers of each row: the first, and the one behind the last. None is
            all.
    """
    size = array.size // array.shape[0]
    first, last = columns or (0, size)
    if not is_large(array.size, array.dtype) or last - first <= _FEW:
        return batch
    looked_at = {*range(first, last, max(LINE // array.dtype.itemsize, 1))}
    width = size * array.dtype.itemsize
    # The numbers may begin anywhere in a line, and then end in one more line.
    if LINE % width and (width % LINE or first * array.dtype.itemsize % LINE):
        looked_at.add(last - 1)
    places = [tuple(map(int, np.unravel_index(at, array.shape[1:]))) for at in sorted(looked_at)]

    def look(array: jax.Array, rows: jax.Array) -> jax.Array:
        # The comparison needs the numbers.
        seen = [gathered(array, rows, at) == 1 for at in places]
        return functools.reduce(operator.or_, seen).astype(jnp.int32)

    return by_platform(
        array,
        rows,
        batch,
        cpu=lambda array, rows, batch: tie(batch, by_halves(look, array, rows)),
        default=lambda array, rows, batch: batch,
    )


def gathered(
    array: jax.Array,
    rows: jax.Array,
    at: tuple[int, ...] = (),
    columns: tuple[int, int] | None = None,
) -> jax.Array:
    """Gather rows at `[B]` places, each in range.

    Args:
        array: `[n, ...]`.
        rows: int32 `[B]`.
        at: The place of the only number to gather of each row; empty for more of them.
        columns: The first column of `[n, columns]` to gather, and the one behind the last. None is
            all.
    """

    @jax.custom_batching.custom_vmap
    def gather(array: jax.Array, rows: jax.Array) -> jax.Array:
        # Not `array.at[...]`, which takes several times as long to trace.
        buffers = rows.ndim - 1
        first = [lax.broadcasted_iota(jnp.int32, rows.shape, axis) for axis in range(buffers)]
        begin = columns[:1] if columns else ()
        fixed = [lax.full(rows.shape, index, jnp.int32) for index in (*at, *begin)]
        places = [lax.expand_dims(index, (rows.ndim,)) for index in (*first, rows, *fixed)]
        indices = lax.concatenate(places, rows.ndim) if len(places) > 1 else places[0]
        fewer = len(places) - len(begin)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(rows.ndim, rows.ndim + array.ndim - fewer)),
            collapsed_slice_dims=tuple(range(fewer)),
            start_index_map=tuple(range(len(places))),
        )
        row = (columns[1] - columns[0],) if columns else array.shape[fewer:]
        taken = (*(1,) * fewer, *row)
        return lax.gather(array, indices, numbers, taken, mode="promise_in_bounds")

    # JAX's own rule would have a gather for several buffers that XLA runs slowly on CPU.
    gather.def_vmap(lambda size, batched, *given: (gather(*_each(size, batched, given)), True))
    return gather(array, rows)


def by_entries(
    turn: Callable[..., Numbers],
    carry: Numbers,
    sources: Numbers,
    batch: Numbers,
    shared: Numbers = (),
    count: jax.Array | None = None,
) -> Numbers:
    """Take a turn for each entry of a batch, in order; for use in a form for CPU.

    Under `vmap` it is one loop over the entries of all buffers. In JAX's own form each turn would
    gather and scatter an entry of every buffer, and XLA makes no kernel of such a loop.

    Args:
        turn: Returns the carried arrays, from these, the sources, the place of the entry, its
            numbers, and what is shared. The place is the number of the entry; behind the number of
            the buffer, if there are several.
        carry: The arrays that the turns write.
        sources: Other arrays of the buffer, which the turns read.
        batch: `[B]` each, of at least one entry.
        shared: Numbers that are the same for all buffers.
        count: The number of entries that the loop takes. With several buffers, and by default, it
            takes all.
    """

    @jax.custom_batching.custom_vmap
    def loop(carry: Numbers, sources: Numbers, batch: Numbers, given: Numbers) -> Numbers:
        sizes = batch[0].shape
        some = count is not None and len(sizes) == 1

        def body(i: jax.Array, carry: Numbers) -> Numbers:
            place = (i,)
            for size in reversed(sizes[1:]):
                whole = lax.div(place[0], jnp.int32(size))
                place = (whole, place[0] - whole * size, *place[1:])
            numbers = [entry_at(leaf, place) for leaf in batch]
            return turn(carry, sources, place, *numbers, *given[: len(shared)])

        end = given[-1] if some else math.prod(sizes)
        return lax.fori_loop(zero_after(batch[0]), end, body, carry)

    @loop.def_vmap
    def _(size: int, batched: list[Any], *args: Any) -> tuple[Numbers, Any]:
        return loop(*_each(size, batched[:3], args[:3]), args[3]), (True,) * len(carry)

    return loop(carry, sources, batch, shared if count is None else (*shared, count))


def _each(size: int, batched: Any, given: Any) -> Any:
    """Return arrays with an entry for each buffer of a batch."""
    every = lambda is_batched, leaf: (
        leaf if is_batched else jnp.broadcast_to(leaf[None], (size, *leaf.shape))
    )
    return jax.tree.map(every, tuple(batched), tuple(given))
