"""The programs on the device: they compute the index, and the views of rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fbuf
from fbuf.dispatch import parse
from fbuf.dispatch.flat_state import Form, held, holding
from fbuf.host.checkpoint_rows import SavedRows
from fbuf.host.row_arrays import Rows as HostRows
from fbuf.ops.newest_ids import newest
from fbuf.ops.pop import popped
from fbuf.ops.read import find_ids
from fbuf.ops.rollout import ids_in_order
from fbuf.ops.sample import planned, weighted
from fbuf.ops.spec import BufferSpec
from fbuf.samplers.chance import random_bits
from fbuf.storage import deferred, store
from fbuf.storage.layout import Layout
from fbuf.views.episode import CHUNK
from fbuf.views.gather import Requested, build_batch, request_rows, reshaped
from fbuf.views.requests import Ahead, NextObservations, Wanted, WantedRows


def init(item: Any, spec: BufferSpec) -> Any:
    """Return an empty buffer without storage for its rows."""
    leaves, tree = jax.tree.flatten(parse.item_specs("init", item))
    return _init(tuple((leaf.shape, leaf.dtype) for leaf in leaves), tree, spec)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _init(leaves: Any, tree: Any, spec: BufferSpec) -> Any:
    item = tree.unflatten([jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return deferred.without_rows(spec.init(item))


@functools.partial(jax.jit, static_argnames=("rows", "following", "time_major"), donate_argnums=0)
def add(
    state: Any,
    given: dict[str, Any],
    looked_at: dict[int, Any],
    *,
    rows: Any,
    following: Any,
    time_major: bool,
) -> tuple[Any, Any, Any]:
    """Add rows by their shapes and dtypes alone, except the leaves of the sampler's fields."""
    if following is not None:
        given = {**given, "next_observation": _zeros(following)}
    state = fbuf.add(state, _zeros(rows, looked_at), time_major=time_major, **given)
    return deferred.drained(state)


def _zeros(specs: Any, known: Mapping[int, Any] = MappingProxyType({})) -> Any:
    leaves, tree = specs
    blank = {n: jnp.zeros(*leaf) for n, leaf in enumerate(leaves) if n not in known}
    return tree.unflatten([known[n] if n in known else blank[n] for n in range(len(leaves))])


class BatchPrograms:
    """The programs of one kind of batches: to draw, and to build a batch from fetched rows.

    They take and return arrays; see `fbuf.dispatch.flat_state`.
    """

    def __init__(self, form: Form, view: Any, batch_size: int) -> None:
        """Prepare the programs, without compiling them.

        Args:
            form: The structure of the index.
            view: The view.
            batch_size: As for `fbuf.sample`.
        """
        index = holding(form, tuple(range(form.structure.num_leaves)))
        layouts, in_order = layouts_of(index), index.sampler.without_replacement

        def draw(arrays: Any, key: Any, beta: Any, step: Any, count: Any) -> tuple[Any, ...]:
            state = holding(form, arrays)
            drawn, view_key = planned(state, key, beta, step, batch_size, view, count)
            requested = request_rows(state, drawn.slots, drawn.mask, view, view_key)[0]
            leaves, self._drawn[_x64()] = jax.tree.flatten((drawn, requested))
            return tuple(leaves)

        def draw_number(arrays: Any, key: Any, beta: Any, number: Any) -> tuple[Any, ...]:
            key = key if in_order else random_bits.fold_in(key, number)
            return draw(arrays, key, beta, number if in_order else None, None)

        def build(drawn: tuple[Any, ...], taken: Any) -> tuple[Any, ...]:
            plan, requested = self._drawn[_x64()].unflatten(drawn)
            batch = batch_of(plan, requested, taken, view=view, layouts=layouts)
            leaves, self._batch[_x64()] = jax.tree.flatten(batch)
            return tuple(leaves)

        # The structure of a program's result, recorded at its trace, by whether JAX has 64 bits.
        self._drawn: dict[bool, Any] = {}
        self._batch: dict[bool, Any] = {}
        self._draw, self._draw_number = jax.jit(draw), jax.jit(draw_number)
        self._build = jax.jit(build)

    def draw(
        self, index: Any, key: Any, beta: Any, step: Any, count: Any
    ) -> tuple[tuple[jax.Array, ...], Requested]:
        """Return the draws of a batch, and their requests for rows."""
        return self._with_request(self._draw(held(index)[0], key, beta, step, count))

    def draw_number(
        self, index: Any, key: Any, beta: Any, number: Any
    ) -> tuple[tuple[jax.Array, ...], Requested]:
        """Return the draws and requests of the batch of a number, see `HostStore.batches`."""
        return self._with_request(self._draw_number(held(index)[0], key, beta, number))

    def recorded(self, index: Any, drawn: tuple[jax.Array, ...]) -> Any:
        """Record a batch in the index, which is consumed, and return the new index."""
        plan, _ = self._drawn[_x64()].unflatten(drawn)
        return _recorded(index, plan)

    def build(self, drawn: tuple[jax.Array, ...], taken: Any) -> Any:
        """Return the batch, built from fetched rows."""
        leaves = self._build(drawn, taken)
        return self._batch[_x64()].unflatten(leaves)

    def _with_request(
        self, drawn: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, ...], Requested]:
        requested = self._drawn[_x64()].children()[1]
        return drawn, requested.unflatten(drawn[-requested.num_leaves :])


@functools.partial(jax.jit, donate_argnums=0)
def _recorded(state: Any, draw: Any) -> Any:
    index = state.sampler.note(state.index, state.ring, draw)
    return dataclasses.replace(state, index=index)


def _x64() -> bool:
    """Tell whether JAX has 64 bits now, in this thread."""
    config: Any = jax.config  # JAX makes the names of its options at run time
    return config.jax_enable_x64


def of_batches(index: Any, view: Any, batch_size: int) -> BatchPrograms:
    """Return the programs for batches of an index. Cached."""
    return _programs(held(index)[1], view, batch_size)


_programs = functools.lru_cache(maxsize=256)(BatchPrograms)


def layouts_of(index: Any) -> tuple[Layout, Layout | None]:
    """Return the leaves of the rows of an index, and of its next observations."""
    kept = index.next_obs
    return index.storage.layout, None if kept is None else kept.rows.layout


def batch_of(draw: Any, requested: Requested, taken: Any, *, view: Any, layouts: Any) -> Any:
    """Return the batch, built from fetched rows."""
    return weighted(_made(requested, taken, view, layouts), draw)


@functools.partial(jax.jit, static_argnames="view")
def look(state: Any, ids: fbuf.Ids, key: Any, *, view: Any) -> Requested:
    """Return the requests for the rows of ids."""
    slots, live, _ = find_ids("read", state, ids, view)
    return request_rows(state, slots, live, view, key, drawn=False)[0]


@functools.partial(jax.jit, static_argnames=("view", "layouts", "shape"))
def looked_at(requested: Requested, taken: Any, *, view: Any, layouts: Any, shape: Any) -> Any:
    """Return the batch, built from fetched rows."""
    return reshaped(_made(requested, taken, view, layouts, drawn=False), shape)


def _made(requested: Requested, taken: Any, view: Any, layouts: Any, drawn: bool = True) -> Any:
    source = _Taken(taken, *layouts)
    rows = {name: wanted.read(source) for name, wanted in requested.request.rows.items()}
    return build_batch(layouts[0], requested, rows, view, drawn)


@functools.partial(jax.jit, static_argnames=("count", "keep", "view"))
def next_ids(state: Any, mask: Any, *, count: int, keep: int, view: Any) -> fbuf.Ids:
    """The ids of the oldest unread rows."""
    return popped(state, count, keep, mask, view)[1]


@functools.partial(jax.jit, static_argnames=("count", "keep", "view"), donate_argnums=0)
def pop(state: Any, mask: Any, *, count: int, keep: int, view: Any) -> Any:
    """Return the buffer with these rows marked as read."""
    return popped(state, count, keep, mask, view)[0]


@jax.jit
def all_rows(state: Any) -> fbuf.Ids:
    """The ids of all rows, the newest last."""
    return newest(state.ring, state.ring.lane_length)


@jax.jit
def in_order(state: Any) -> fbuf.Ids:
    """The ids of all rows, the oldest first."""
    return ids_in_order(state.ring)


class _Taken:
    """Fetched rows, in the order of the requests."""

    def __init__(self, taken: Sequence[Any], rows: Layout, kept: Layout | None) -> None:
        self._taken = iter(taken)
        self._rows = rows
        self._kept = kept

    def rows(self, slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
        """See `fbuf.views.requests.Source`."""
        words, *wide = next(self._taken)
        return store.unpacked(self._rows, leaves, words, wide, slots.shape)

    def kept(self, slots: jax.Array) -> list[jax.Array]:
        """See `fbuf.views.requests.Source`."""
        assert self._kept is not None
        words, *wide = next(self._taken)
        everything = range(len(self._kept.fields))
        return store.unpacked(self._kept, everything, words, wide, slots.shape)

    def steps(self, ahead: Ahead) -> Callable[[jax.Array], jax.Array]:
        """See `fbuf.views.requests.Source`."""
        words, *wide = next(self._taken)
        batch = ahead.slots.shape[0]
        lead = (batch, (wide[0] if wide else words).shape[0] // max(batch, 1))
        (steps,) = store.unpacked(self._rows, [ahead.leaf], words, wide, lead)
        return lambda first: lax.dynamic_slice_in_dim(steps, first, CHUNK, axis=1)

    def record(self, read: jax.Array) -> None:
        """Record nothing: no write can touch fetched rows."""


def take(
    requested: Requested, ring: Any, rows: HostRows | SavedRows, kept: HostRows | None
) -> list[Any]:
    """Fetch the rows of a request, in the order in which `_Taken` returns them."""
    taken: list[Any] = []
    for name in sorted(requested.request.rows):  # JAX's order of a dict
        taken += _taken(requested.request.rows[name], ring, rows, kept)
    return taken


def _taken(
    wanted: Wanted, ring: Any, rows: HostRows | SavedRows, kept: HostRows | None
) -> list[Any]:
    if isinstance(wanted, WantedRows):
        return [rows.take(np.asarray(wanted.slots), wanted.leaves)]
    if isinstance(wanted, NextObservations):
        assert kept is not None
        everything = range(len(kept.storage.layout.fields))
        own = kept.take(np.asarray(wanted.where.kept), everything)
        return [own, *_taken(wanted.following, ring, rows, kept)]
    assert isinstance(wanted, Ahead)
    # A power of two of chunks, so that few programs serve episodes of any length.
    chunks = int(np.asarray(wanted.count).max(initial=0)) // CHUNK + 1
    steps = np.arange(CHUNK << (chunks - 1).bit_length())
    by = steps % ring.lane_length * ring.lanes
    slots = (np.asarray(wanted.slots, np.int64)[:, None] + by) % ring.capacity
    return [rows.take(slots, [wanted.leaf])]
