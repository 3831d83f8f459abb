"""The programs that draw batches of a store: one says which rows, one makes the batch of them."""

from __future__ import annotations

import functools
from typing import Any

import jax

from fbuf.adapter_api import Calls, build_host_batch, plan_draws, request_rows, uninterrupted
from fbuf.host import HostStore
from fbuf_adapters.pytorch.batches import _drawer
from fbuf_adapters.pytorch.batches._delivery import PackedBatch
from fbuf_adapters.pytorch.batches._drawer import BatchRequest, PackedDraw, Recipe, Unpackers
from fbuf_adapters.pytorch.crossing import _dtypes
from fbuf_adapters.pytorch.crossing._unpack import Axes


class HostBatchProgram:
    """Draw batches of a store. Call it with a lock held."""

    def __init__(self, store: HostStore[Any], recipe: Recipe, calls: Calls, form: Any) -> None:
        """Draw from indices of this form; nothing is compiled yet."""
        self._store = store
        self._recipe = recipe
        self._calls = calls
        self._program, self._trees = _planning(form, recipe)
        self._make, self._unpackers = _making(recipe.view, store.contents.layouts)
        self._axes: Axes | None = None

    def __call__(
        self, newest: list[tuple[jax.Array, ...]], asked: BatchRequest, ahead: bool
    ) -> PackedDraw:
        """Return a function that makes the batch, and the next turn.

        Ahead, the thread takes the rows. Else they are taken here: once the lock is free, other
        rows may be written in their place.
        """
        program = self._program
        call = asked.call(program, newest)
        if asked.count is not None and self._axes is None:
            self._axes = self._calls.apart(functools.partial(self._found_axes, asked))
        if ahead:
            with uninterrupted():  # rows that are planned, and not asked for, could be replaced
                return self._planned(self._calls(asked.kind(program), call), asked)

        def drawn() -> PackedDraw:
            make, after = self._planned(call(), asked)
            made = make()
            return lambda: made, after

        return self._calls.apart(drawn)

    def _planned(self, called: Any, asked: BatchRequest) -> PackedDraw:
        """Return a function that makes a batch of the first program's result; the next turn."""
        arrays, after = called
        x64, size = _dtypes.x64(), asked.batch_size
        draw, found = self._trees[size, x64].unflatten(arrays)
        taking = self._store.contents.taking(lambda: found)
        axes = None if asked.count is None else self._axes

        def make() -> PackedBatch:
            with jax.enable_x64(x64):  # which may be set for a thread alone
                arrays = self._make(draw, found, taking(), batch_size=size)
            unpack, tree = self._unpackers[size, x64]
            return PackedBatch(arrays, unpack, tree, asked.size, axes)

        return make, after

    def _found_axes(self, asked: BatchRequest) -> Axes:
        """Those of a buffer on the device with the same rows."""
        leaves, form = jax.tree.flatten(self._store.contents.whole())
        leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return _drawer.batch_axes(*_drawer.compiled(form, self._recipe), tuple(leaves), asked)


@functools.cache
def _planning(form: Any, recipe: Recipe) -> tuple[Any, dict[Any, Any]]:
    """Return the program that draws and requests rows; and the structure of its result by size."""
    trees: dict[Any, Any] = {}

    def draw(
        state: Any, key: Any, batch_size: int, beta: Any, step: Any, count: Any
    ) -> tuple[jax.Array, ...]:
        drawn, view_key = plan_draws(state, key, beta, step, batch_size, recipe.view, count)
        found = request_rows(state, drawn.slots, drawn.mask, recipe.view, view_key)[0]
        leaves, trees[batch_size, _dtypes.x64()] = jax.tree.flatten((drawn, found))
        return tuple(leaves)

    program = _drawer.turning(form, recipe, draw)
    return jax.jit(program, static_argnames=_drawer.STATIC), trees


@functools.cache
def _making(view: Any, layouts: Any) -> tuple[Any, Unpackers]:
    """Return the program that packs a batch of taken rows; and the unpacker of each size."""
    unpackers: Unpackers = {}

    @functools.partial(jax.jit, static_argnames="batch_size")
    def make(draw: Any, found: Any, taken: Any, batch_size: int) -> tuple[jax.Array, ...]:
        sample = build_host_batch(draw, found, taken, view=view, layouts=layouts)
        return _drawer.packed(sample, batch_size, unpackers)

    return make, unpackers
