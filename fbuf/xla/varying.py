"""Arrays made inside `shard_map`, which for JAX differ from shard to shard."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying(tree: T, like: jax.Array | None = None) -> T:
    """Return constants as arrays of a shard's own; outside of `shard_map` as they are.

    An array of zeros is the same on all shards until a write changes it. JAX refuses a loop that
    carries such an array: its result is of another type than its argument.

    Args:
        tree: The constants.
        like: An array that differs along the wanted axes; None is all axes.
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
        # JAX 0.8.0 has it under an old name, which type checkers do not find.
        pvary: Any = getattr(lax, "pvary")  # noqa: B009
        return pvary(leaf, missing)

    return jax.tree.map(vary, tree)


def _axes_of(array: jax.Array) -> frozenset[str]:
    """Return the axes of a mesh along which an array differs, as far as JAX knows."""
    kind: Any = jax.typeof(array)
    kind = getattr(kind, "manual_axis_type", kind)  # JAX 0.8.0 has it in the type itself
    return frozenset(getattr(kind, "varying", None) or getattr(kind, "vma", None) or ())
