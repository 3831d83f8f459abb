"""Arrays on a mesh with explicit axes: there the type of an array says how the array lies on it.

Functions of `fbuf` make arrays of their own, whose types say nothing, and JAX refuses to take both
together. So such a function is traced as on a mesh of automatic axes. Its result lies whole on
every device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import AxisType

P = ParamSpec("P")
R = TypeVar("R")


def on_automatic_axes(run: Callable[P, R]) -> Callable[P, R]:
    """Return a function that is traced on automatic axes if an argument has explicit ones."""

    @functools.wraps(run)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        mesh = explicit_mesh((args, kwargs))
        if mesh is None:
            return run(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        at = [number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def of_arrays(*arrays: jax.Array) -> R:
            for number, array in zip(at, arrays, strict=True):
                leaves[number] = array
            given: Any = jax.tree.unflatten(tree, leaves)
            plain: Any = run
            return plain(*given[0], **given[1])

        whole = jax.NamedSharding(mesh, jax.P())
        automatic: Any = jax.sharding.auto_axes(of_arrays, out_sharding=whole)
        # With a part of the rows on each device, XLA would have to join the faults of all devices.
        return automatic(*jax.sharding.reshard([leaves[number] for number in at], whole))

    return call


def explicit_mesh(tree: Any) -> Any:
    """Return the mesh of an array of a tree whose type says so, or None."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            mesh = getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None)
            if mesh is not None and not mesh.empty and AxisType.Explicit in mesh.axis_types:
                return mesh
    return None
