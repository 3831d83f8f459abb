"""Arrays made inside `shard_map`: as far as JAX is concerned they differ from shard to shard."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying(tree: T, like: jax.Array | None = None) -> T:
    """Constants, as what a shard has of its own; outside of `shard_map` as they are.

    An array of zeros is the same on all shards until something is written to it, and JAX's checks
    refuse a loop that carries it: what comes out is of another type than what went in.

    Args:
        tree: The constants.
        like: What differs along the same axes as they shall; None is all axes.
    """
    axes = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    axes = axes if like is None else _axes_of(like)

    def vary(leaf: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _axes_of(leaf)))
        if not missing:
            return leaf
        if hasattr(lax, "pcast"):
            return lax.pcast(leaf, missing, to="varying")
        # JAX 0.8.0 has it by a name that is gone since, and type checkers would look for it.
        pvary: Any = getattr(lax, "pvary")  # noqa: B009
        return pvary(leaf, missing)

    return jax.tree.map(vary, tree)


def _axes_of(array: jax.Array) -> frozenset[str]:
    """The axes of a mesh along which an array differs, as far as JAX knows."""
    kind: Any = jax.typeof(array)
    kind = getattr(kind, "manual_axis_type", kind)  # JAX 0.8.0 has it in the type itself
    return frozenset(getattr(kind, "varying", None) or getattr(kind, "vma", None) or ())
