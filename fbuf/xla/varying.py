"""Arrays made inside `shard_map`: as far as JAX is concerned they differ from shard to shard."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
from jax import lax

T = TypeVar("T")


def varying(tree: T) -> T:
    """Constants, as what a shard has of its own; outside of `shard_map` as they are.

    An array of zeros is the same on all shards until something is written to it, and JAX's checks
    refuse a loop that carries it: what comes out is of another type than what went in.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    if not hasattr(lax, "pcast"):  # JAX 0.8.0 has it by another name
        # Newer releases have no such name, and type checkers would look for it.
        pvary: Any = getattr(lax, "pvary")  # noqa: B009
        return jax.tree.map(lambda leaf: pvary(leaf, axes), tree)
    return jax.tree.map(lambda leaf: lax.pcast(leaf, axes, to="varying"), tree)
