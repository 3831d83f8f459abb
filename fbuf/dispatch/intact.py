"""Checks that a state still has the arrays of a buffer.

A state is a pytree. So code that maps over a whole training state changes its buffer, too: a cast to
bfloat16, an average of weights. Each program looks at dtypes and shapes while it is traced, and at
run time that costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.state import State
from fbuf.storage import ring as rings
from fbuf.storage import store
from fbuf.storage.store import Storage

_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""The dtypes of a sampler's index with JAX's 64-bit types, and without."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """The dtype and the shape of an array of a buffer; None is any."""

    dtype: Any = None
    shape: tuple[int, ...] | None = None


def one_buffer(function: str, state: State[Any]) -> None:
    """Refuse a batch of states, and a state whose arrays are those of no buffer."""
    if jnp.ndim(state.fault) != 0:
        raise ValueError(
            f"fbuf.{function}: state is a batch of buffers of shape {jnp.shape(state.fault)}; "
            f"use jax.vmap(lambda state: fbuf.{function}(state, ...))(state)"
        )
    places, tree = jax.tree.flatten_with_path(state)
    kept = 0 if state.next_obs is None else jnp.shape(state.next_obs.owner)[0]
    expected = _expected(tree, jnp.shape(state.ring.flags), kept, _x64())
    for (path, leaf), wanted in zip(places, expected, strict=True):
        refuse_changed(function, jax.tree_util.keystr(path), leaf, wanted)


def refuse_changed(function: str, path: str, leaf: Any, wanted: Expected) -> None:
    """Refuse an array of a state that has another dtype or shape than in a buffer.

    Args:
        function: The called function, for errors.
        path: The path of the array in the state.
        leaf: The array.
        wanted: The dtype and shape in a buffer.
    """
    dtype, shape = np.dtype(jnp.result_type(leaf)), jnp.shape(leaf)
    same = wanted.dtype is None or _narrow(dtype) == _narrow(wanted.dtype)
    if same and wanted.shape in (None, shape):
        return
    expected = wanted.dtype if wanted.shape is None else f"{wanted.dtype}{list(wanted.shape)}"
    raise TypeError(
        f"fbuf.{function}: state{path} is {dtype}{list(shape)}, and in this buffer it was "
        f"{expected}. Code that maps over a tree has changed the buffer in it, such as a cast to "
        "another precision, or an average of weights. Keep the buffer out of that tree, or leave "
        "it as it is there: is_leaf=lambda node: isinstance(node, fbuf.State)"
    )


def _narrow(dtype: Any) -> str:
    """Return the name of a dtype, that of 32 bits for one of 64."""
    name = np.dtype(dtype).name
    return _NARROW.get(name, name)


def _x64() -> bool:
    return jnp.result_type(float) == jnp.float64


@functools.lru_cache(maxsize=1024)
def _expected(tree: Any, rows: tuple[int, ...], kept: int, x64: bool) -> list[Expected]:
    """Return the dtype and shape of each array of a state.

    Args:
        tree: The structure of the state.
        rows: The shape of an array of one number a row.
        kept: The number of next observations that are kept aside.
        x64: Whether JAX has numbers of 64 bits.
    """
    state: State[Any] = tree.unflatten(range(tree.num_leaves))
    old, next_obs, int32 = state.ring, state.next_obs, np.dtype(np.int32)
    if len(rows) != 1:
        return [Expected()] * tree.num_leaves
    make = lambda: rings.empty(
        *(rows[0], old.num_envs, old.lockstep, old.autoreset),
        follow=old.open is not None,
        shards=old.shards,
        places=old.writes is not None,
    )
    ring, index = jax.eval_shape(lambda: (made := make(), state.sampler.init(made)))
    parts = [
        (state.storage, _of_storage(state.storage, rows[0], x64)),
        (old, jax.tree.map(lambda leaf: Expected(leaf.dtype, leaf.shape), ring)),
    ]
    if next_obs is not None:
        wanted = dataclasses.replace(
            next_obs,
            rows=_of_storage(next_obs.rows, kept, x64),
            owner=Expected(int32, (kept,)),
            kept_at=Expected(int32, rows),
            cursor=Expected(int32, (2, old.heads)),
        )
        parts.append((next_obs, wanted))
    parts.append((state.index, jax.tree.map(lambda leaf: Expected(leaf.dtype), index)))
    aligned = [_aligned(*part) for part in parts]
    return [*itertools.chain(*aligned), Expected(np.dtype(np.uint32), ())]


def _of_storage(storage: Any, rows: int, x64: bool) -> Any:
    """Return what the arrays of a storage are; of rows that lie elsewhere, nothing is known."""
    known = isinstance(storage, Storage) and (
        x64 or all(field.dtype.itemsize < 8 for field in storage.layout.fields)
    )
    if not known:
        return jax.tree.map(lambda _: Expected(), storage)
    spec = store.spec(storage.layout, rows)
    return jax.tree.map(lambda leaf: Expected(leaf.dtype, leaf.shape), spec)


def _aligned(part: Any, wanted: Any) -> list[Expected]:
    """Return what is wanted of each array of a part; anything where the structures differ."""
    leaves, tree = jax.tree.flatten(part)
    found, same = jax.tree.flatten(wanted)
    return found if same == tree else [Expected()] * len(leaves)
