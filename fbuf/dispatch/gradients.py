"""Gradients end where rows go into a buffer, and a caller who wants them is told.

A buffer stores bits, so what is read from it has no gradient. A gradient through a buffer would be
0, silently. So rows of which somebody wants one are refused while they are differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

_ROWS = frozenset({"items", "next_observation", "fields"})
"""The arguments with rows."""


def stopped(tree: Any) -> Any:
    """Return a tree without gradients, which are 0: those of a buffer in a differentiated tree."""

    def stop(leaf: Any) -> Any:
        traced = isinstance(leaf, jax.core.Tracer)
        return jax.lax.stop_gradient(leaf) if traced and _has(leaf) else leaf

    return jax.tree.map(stop, tree)


def stopped_but_rows(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without gradients; rows keep theirs, see `refused`.

    A loop that gets arguments with gradients cannot be differentiated twice.
    """
    return {name: tree if name in _ROWS else stopped(tree) for name, tree in given.items()}


def refused(function: str, argument: str, tree: Any) -> Any:
    """Return rows unchanged; to differentiate them is an error.

    Args:
        function: The called function, for the error.
        argument: The argument with the rows, for the error.
        tree: The rows.
    """
    places, structure = jax.tree.flatten_with_path(tree)
    leaves = [leaf for _, leaf in places]
    real = [number for number, leaf in enumerate(leaves) if _has(leaf)]
    if not real:
        return tree
    names = tuple(argument + jax.tree_util.keystr(places[number][0]) for number in real)
    same = _undifferentiated(function, argument, names)(*(leaves[number] for number in real))
    for number, leaf in zip(real, same, strict=True):
        leaves[number] = leaf
    return structure.unflatten(leaves)


def _has(leaf: Any) -> bool:
    """Tell whether an array can have a gradient."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


@functools.lru_cache(maxsize=1024)
def _undifferentiated(
    function: str, argument: str, names: tuple[str, ...]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that returns its arguments, of these names, and has no derivative."""

    @jax.custom_jvp
    def same(*leaves: Any) -> tuple[Any, ...]:
        return leaves

    def derivative(primals: Any, tangents: Any) -> Any:
        for name, tangent in zip(names, tangents, strict=True):
            if not isinstance(tangent, SymbolicZero):
                raise TypeError(
                    f"fbuf.{function}: {name} is differentiated, and no gradient goes through a "
                    "buffer: it would be 0. If none is wanted there, give "
                    f"jax.lax.stop_gradient({argument}). Else keep these rows out of the buffer, "
                    "such as in the results of jax.lax.scan"
                )
        return primals, tangents

    same.defjvp(derivative, symbolic_zeros=True)
    return same
