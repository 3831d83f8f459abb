"""The programs that draw batches of a store: one says which rows, one makes the batch of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from fbuf.host import HostStore, programs
from fbuf.ops.sample import planned
from fbuf.views.gather import request_rows
from fbuf_adapters.pytorch import _dtypes, _programs
from fbuf_adapters.pytorch._calls import Calls
from fbuf_adapters.pytorch._delivery import Drawing
from fbuf_adapters.pytorch._programs import Asked, Recipe, Unpackers
from fbuf_adapters.pytorch._unpack import Axes


class HostDrawer:
    """Draws batches of a store. Whoever calls it holds a lock."""

    def __init__(self, store: HostStore[Any], recipe: Recipe, calls: Calls, form: Any) -> None:
        """Of indices of this form; nothing is compiled yet."""
        self._store = store
        self._recipe = recipe
        self._calls = calls
        self._program, self._trees = _planning(form, recipe)
        self._make, self._unpackers = _making(recipe.view, store.layouts)
        self._axes: Axes | None = None

    def __call__(
        self, leaves: tuple[jax.Array, ...], asked: Asked, ahead: bool
    ) -> tuple[Callable[[], Drawing], jax.Array]:
        """What returns the batch, and the next turn.

        Ahead, whoever asks for the batch takes its rows. Else they are taken here, for behind the
        lock others may be written in their place.
        """
        program = self._program
        call = asked.call(program, leaves)
        if asked.count is not None and self._axes is None:
            self._axes = self._calls.apart(functools.partial(self._found_axes, asked))
        if ahead:
            return self._planned(self._calls(asked.kind(program), call), asked)

        def drawn() -> tuple[Callable[[], Drawing], jax.Array]:
            make, after = self._planned(call(), asked)
            made = make()
            return lambda: made, after

        return self._calls.apart(drawn)

    def _planned(self, called: Any, asked: Asked) -> tuple[Callable[[], Drawing], jax.Array]:
        """What makes a batch of what the first program has returned, and the next turn."""
        arrays, after = called
        x64, size = _dtypes.x64(), asked.batch_size
        draw, found = self._trees[size, x64].unflatten(arrays)
        taking = self._store.taking(lambda: found)
        axes = None if asked.count is None else self._axes

        def make() -> Drawing:
            with jax.enable_x64(x64):  # which may be set for a thread alone
                arrays = self._make(draw, found, taking(), batch_size=size)
            unpack, tree = self._unpackers[size, x64]
            return Drawing(arrays, unpack, tree, asked.size, axes)

        return make, after

    def _found_axes(self, asked: Asked) -> Axes:
        """Those of a buffer on the device with the same rows."""
        leaves, form = jax.tree.flatten(self._store.whole())
        leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return _programs.batch_axes(*_programs.compiled(form, self._recipe), tuple(leaves), asked)


@functools.cache
def _planning(form: Any, recipe: Recipe) -> tuple[Any, dict[Any, Any]]:
    """What draws, and says which rows are wanted; and the structure of that, for each size."""
    trees: dict[Any, Any] = {}

    def draw(
        state: Any, key: Any, batch_size: int, beta: Any, step: Any, count: Any
    ) -> tuple[jax.Array, ...]:
        drawn, view_key = planned(state, key, beta, step, batch_size, recipe.view, count)
        found = request_rows(state, drawn.slots, drawn.mask, recipe.view, view_key)[0]
        leaves, trees[batch_size, _dtypes.x64()] = jax.tree.flatten((drawn, found))
        return tuple(leaves)

    return _programs.turning(form, recipe, draw), trees


@functools.cache
def _making(view: Any, layouts: Any) -> tuple[Any, Unpackers]:
    """What makes a batch of rows that were taken, packed; and what unpacks each size."""
    unpackers: Unpackers = {}

    @functools.partial(jax.jit, static_argnames="batch_size")
    def make(draw: Any, found: Any, taken: Any, batch_size: int) -> tuple[jax.Array, ...]:
        sample = programs.drawn(draw, found, taken, view=view, layouts=layouts)
        return _programs.packed(sample, batch_size, unpackers)

    return make, unpackers
