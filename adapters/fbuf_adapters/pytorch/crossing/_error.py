"""Refusals that name the leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.core


class InteropError(TypeError):
    """A leaf cannot cross as you asked; the message names it, says why, and what to do.

    Examples:
        >>> from fbuf_adapters import pytorch
        >>> pytorch.to_torch({"reward": 1.0})
        Traceback (most recent call last):
        ...
        fbuf_adapters.pytorch.InteropError: fbuf_adapters.pytorch.to_torch: tree['reward'] (float) \
is not a JAX array; use jnp.asarray
    """


InteropError.__module__ = "fbuf_adapters.pytorch"  # where users find it


def convert(
    function: str,
    arguments: dict[str, Any],
    convert: Callable[[Any], Any],
    is_leaf: Callable[[Any], bool] | None = None,
) -> dict[str, Any]:
    """Map the leaves of a function's arguments, and tell which of them was refused."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf)
    converted: list[Any] = []
    try:
        for leaf in leaves:
            converted.append(convert(leaf))
    except InteropError as refusal:  # only now the paths, for they cost time
        (argument, *path), leaf = jax.tree.leaves_with_path(arguments, is_leaf)[len(converted)]
        raise InteropError(
            f"fbuf_adapters.pytorch.{function}: {argument.key}{jax.tree_util.keystr(tuple(path))} "
            f"({describe(leaf)}) {refusal}"
        ) from None
    return jax.tree.unflatten(structure, converted)


def describe(leaf: Any) -> str:
    """A few words on what may be anything."""
    try:
        return f"{leaf.dtype} of shape {tuple(leaf.shape)}"
    except (AttributeError, RuntimeError):  # no array, or a tensor without a shape
        return type(leaf).__name__


def untraced(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        raise InteropError(
            "is traced, and PyTorch cannot run inside a compiled function; return it from the "
            "function, and call this outside"
        )
    return leaf
