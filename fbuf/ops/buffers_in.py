"""The buffers in a tree of arguments, and the types of their arrays in a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fbuf.state import State
from fbuf.xla.program import Array, array_of

LARGE = 16 * 1024
"""The least bytes of an array whose copies count: XLA may copy smaller ones at will."""


def is_buffer(tree: Any) -> bool:
    """Tell whether a value is a buffer, on one device or over a mesh."""
    return isinstance(tree, State) or (hasattr(tree, "blocks") and isinstance(tree.blocks, State))


def buffers_in(tree: Any) -> list[Any]:
    """List the buffers in a tree."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_buffer) if is_buffer(leaf)]


def with_buffers(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with each of its buffers changed."""
    return jax.tree.map(
        lambda leaf: change(leaf) if is_buffer(leaf) else leaf, tree, is_leaf=is_buffer
    )


def with_others(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with each array changed that belongs to no buffer."""
    return jax.tree.map(
        lambda leaf: leaf if is_buffer(leaf) or not isinstance(leaf, jax.Array) else change(leaf),
        tree,
        is_leaf=is_buffer,
    )


def large_arrays(buffer: Any) -> list[Array]:
    """List the arrays of a buffer that must not be copied, in the sizes on a device."""
    return [
        _on_a_device(buffer, leaf)
        for leaf in jax.tree.leaves(buffer)
        if bytes_on_a_device(buffer, leaf) >= LARGE
    ]


def bytes_on_a_device(buffer: Any, leaf: Any) -> int:
    """Return the bytes that a device has of an array of a buffer."""
    return _on_a_device(buffer, leaf).size * leaf.dtype.itemsize


def names_of(buffers: list[Any]) -> dict[Array, str]:
    """Return a name for each array: the part of a buffer that it may be."""
    names: dict[Array, str] = {}
    for buffer in buffers:
        for path, leaf in jax.tree.leaves_with_path(buffer):
            names.setdefault(_on_a_device(buffer, leaf), jax.tree_util.keystr(path).lstrip("."))
    return names


def _on_a_device(buffer: Any, leaf: Any) -> Array:
    """Return the type of a buffer's array in a program of one device."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None:
        return array_of(sharding.shard_shape(leaf.shape), leaf.dtype)
    devices = 1 if isinstance(buffer, State) else buffer.num_devices
    return array_of((leaf.size // devices,), leaf.dtype)
