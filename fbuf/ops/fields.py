"""Adding fields to the items of a buffer, and dropping fields."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State
from fbuf.storage import store
from fbuf.storage.store import Storage
from fbuf.xla.explicit import on_automatic_axes

_CHUNK = 2**24
"""The bytes of rows to move at a time."""


@dataclasses.dataclass(frozen=True)
class _New:
    """The value of a new leaf, the same in all rows."""

    value: jax.Array


def changed(
    function: str, state: State[Any], fill: Mapping[str, Any], drop: Collection[str]
) -> State[Any]:
    """Make a buffer of the same rows with other fields; all else stays the same.

    Args:
        function: The called function, for errors.
        state: The buffer; not consumed. Both are in memory until it is dropped.
        fill: The new fields by name, each with its value in the stored rows. A value is an array of
            the shape and dtype of the field, or a tree of arrays.
        drop: The names of fields to leave out.

    Raises:
        ValueError: If a field to drop is not there, or a field to fill is. Also if the buffer keeps
            next observations of a dropped field, if its sampler draws by it, or if items are no
            dicts.
    """
    sources = _sources(function, state.storage, fill, drop)
    if not jax.tree.leaves(sources):
        raise ValueError(f"fbuf.{function}: drop leaves no field")
    _refuse_drawn_by(function, state.sampler, drop)
    storage, kept = _moved(state.storage, sources), state.next_obs
    if kept is not None:
        begin = f"{kept.field}."
        whole = any(begin.startswith(f"{name}.") for name in drop)
        more = {name.removeprefix(begin): fill[name] for name in fill if name.startswith(begin)}
        less = [name.removeprefix(begin) for name in drop if name.startswith(begin)]
        inner = None if whole else _sources(function, kept.rows, more, less)
        if not jax.tree.leaves(inner):
            raise ValueError(
                f"fbuf.{function}: drop has all of {kept.field!r}, of which the buffer keeps next "
                "observations"
            )
        if more or less:
            kept = dataclasses.replace(kept, rows=_moved(kept.rows, inner))
    return dataclasses.replace(state, storage=storage, next_obs=kept)


def _refuse_drawn_by(function: str, sampler: Sampler, drop: Collection[str]) -> None:
    """Refuse to drop a field of the sampler: new values would not fit its index."""
    for field in sampler.fields:
        for name in drop:
            if f"{field}.".startswith(f"{name}."):
                raise ValueError(
                    f"fbuf.{function}: drop has {name!r}, and the sampler "
                    f"{type(sampler).__name__} draws by {field!r}; keep that field, or first add "
                    "the rows to a buffer with another sampler: fbuf.extend"
                )


def _sources(
    function: str, storage: Storage[Any], fill: Mapping[str, Any], drop: Collection[str]
) -> Any:
    """Return the new item, with the number of an old leaf or a `_New` as each leaf."""
    layout = storage.layout
    tree = _copied(jax.tree.unflatten(layout.tree, list(range(len(layout.fields)))))
    for name in drop:
        _remove(function, tree, name)
    for name, value in fill.items():
        node, last = _place(function, "fill", tree, name)
        if last in node:
            inside = f"; {name}.x names a field within it" if type(node[last]) is dict else ""
            raise ValueError(
                f"fbuf.{function}: fill has {name!r}, and the items have that field{inside}"
            )
        node[last] = jax.tree.map_with_path(functools.partial(_new, function, name), value)
    return tree


def _remove(function: str, tree: Any, name: str) -> None:
    """Remove a field, and each dict that becomes empty."""
    node, last = _place(function, "drop", tree, name)
    if last not in node:
        raise ValueError(
            f"fbuf.{function}: drop has {name!r}, and the items have no such field; they have "
            f"{', '.join(map(str, node))}"
        )
    del node[last]
    if not node and node is not tree:
        _remove(function, tree, name.rpartition(".")[0])


def _new(function: str, name: str, path: Any, leaf: Any) -> _New:
    """Return the value of a new leaf; refuse a number that JAX would narrow."""
    argument = f"fill[{name!r}]{jax.tree_util.keystr(path)}"
    check.array(function, argument, leaf)
    if isinstance(leaf, int | float):
        spec = jax.ShapeDtypeStruct((), jnp.result_type(type(leaf)))
        parse.python_numbers(function, argument, spec, leaf)
    return _New(jnp.asarray(leaf))


def _copied(tree: Any) -> Any:
    """Copy the dicts of a tree."""
    return {key: _copied(tree[key]) for key in tree} if type(tree) is dict else tree


def _place(function: str, argument: str, tree: Any, name: Any) -> tuple[dict[str, Any], str]:
    """Return the dict of an old or new field, and the field's name there."""
    if not isinstance(name, str):
        raise TypeError(
            f"fbuf.{function}: {argument} must have names such as 'camera.depth', got {name!r}"
        )
    if type(tree) is dict and name in tree:  # a field with dots in its own name
        return tree, name
    *outer, last = name.split(".")
    for depth, part in enumerate(outer, start=1):
        if type(tree) is dict and part not in tree:
            raise ValueError(
                f"fbuf.{function}: {argument} has {name!r}, and the items have no dict "
                f"{'.'.join(outer[:depth])!r}; a new one is filled with a dict"
            )
        tree = tree[part] if type(tree) is dict else None
    if type(tree) is not dict:
        raise ValueError(
            f"fbuf.{function}: {argument} has {name!r}, and fields can be changed in dicts only"
        )
    return tree, last


def _moved(old: Storage[Any], sources: Any) -> Storage[Any]:
    """Return a store of all rows, with the leaves of `sources`."""
    leaves, tree = jax.tree.flatten(sources)
    new = [leaf.value for leaf in leaves if isinstance(leaf, _New)]
    numbers = tuple(None if isinstance(leaf, _New) else leaf for leaf in leaves)
    return _written(old, new, tree=tree, numbers=numbers)


@functools.partial(jax.jit, static_argnames=("tree", "numbers"))
@on_automatic_axes
def _written(
    old: Storage[Any], new: list[jax.Array], *, tree: Any, numbers: tuple[int | None, ...]
) -> Storage[Any]:
    """Rewrite all rows: `numbers` has each leaf's old number, or None for the next new leaf."""
    capacity, fields = old.words.shape[0], old.layout.fields
    values = iter(new)
    specs = [fields[n] if n is not None else next(values) for n in numbers]
    specs = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
    width = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
    step = min(max(_CHUNK // max(width, 1), 1), capacity)

    def some(turn: jax.Array, rows: Storage[Any]) -> Storage[Any]:
        first = jnp.minimum(turn * step, capacity - step)
        slots = first + jnp.arange(step, dtype=jnp.int32)
        there = iter(old.read_leaves(slots, [n for n in numbers if n is not None]))
        values = iter(new)
        leaves = [
            next(there) if n is not None else jnp.broadcast_to(v := next(values), (step, *v.shape))
            for n in numbers
        ]
        return rows.write(slots, jax.tree.unflatten(tree, leaves))

    empty = store.empty(jax.tree.unflatten(tree, specs), capacity)
    return lax.fori_loop(0, -(-capacity // step), some, empty)
