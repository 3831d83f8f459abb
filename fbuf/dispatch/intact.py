"""Checks that a state still has the arrays of a buffer.

A state is a pytree. So code that maps over a whole training state changes its buffer, too, such as
a cast to bfloat16, or an average of weights. Each program looks at dtypes and shapes while it is
traced. At run time the check costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
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
    refuse_other_arrays(function, state)


def refuse_other_arrays(function: str, state: State[Any]) -> None:
    """Refuse a state whose arrays are those of no buffer."""
    places, tree = jax.tree.flatten_with_path(state)
    kept = 0 if state.next_obs is None else jnp.shape(state.next_obs.owner)[0]
    expected = _expected(tree, jnp.shape(state.ring.flags), kept, jnp.result_type(float).itemsize)
    for path, leaf in places:
        name = jax.tree_util.keystr(path)
        refuse_changed(function, name, leaf, expected.get(name, Expected()))


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


@functools.lru_cache(maxsize=1024)
def _expected(tree: Any, rows: tuple[int, ...], kept: int, widest: int) -> dict[str, Expected]:
    """Return the dtype and shape of the arrays of a state, by path.

    Args:
        tree: The structure of the state.
        rows: The shape of an array of one number a row.
        kept: The number of next observations that are kept aside.
        widest: The bytes of JAX's widest numbers, by its current setting of x64.
    """
    state: State[Any] = tree.unflatten(range(tree.num_leaves))
    old, next_obs = state.ring, state.next_obs
    if len(rows) != 1:
        return {}
    make = lambda: rings.empty(
        *(rows[0], old.num_envs, old.lockstep, old.autoreset),
        follow=old.open is not None,
        shards=old.shards,
        places=old.writes is not None,
        removable=old.removable,
    )
    ring, index = jax.eval_shape(lambda: (made := make(), state.sampler.init(made)))
    parts: dict[str, Any] = {
        ".storage": _of_storage(state.storage, rows[0], widest),
        ".ring": _whole(ring),
        ".index": jax.tree.map(lambda leaf: Expected(leaf.dtype), index),
        ".fault": Expected(np.dtype(np.uint32), ()),
    }
    if next_obs is not None:
        parts[".next_obs.rows"] = _of_storage(next_obs.rows, kept, widest)
        for name, shape in (("owner", (kept,)), ("kept_at", rows), ("cursor", (2, old.heads))):
            parts[f".next_obs.{name}"] = Expected(np.dtype(np.int32), shape)
    return {
        prefix + jax.tree_util.keystr(path): leaf
        for prefix, part in parts.items()
        for path, leaf in jax.tree.leaves_with_path(part)
    }


def _of_storage(storage: Any, rows: int, widest: int) -> Any:
    """Return what the arrays of a storage are; nothing if its rows lie elsewhere, or are cut."""
    if not isinstance(storage, Storage) or any(
        field.dtype.itemsize > widest for field in storage.layout.fields
    ):
        return None
    return _whole(store.spec(storage.layout, rows))


def _whole(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: Expected(leaf.dtype, leaf.shape), tree)
