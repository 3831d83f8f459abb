"""Sizes of trees and of buffers, by flashbax's names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf_adapters.flashbax.buffers._steps import of_each


def get_tree_shape_prefix(tree: Any, n_axes: int = 1) -> tuple[int, ...]:
    """Return the first `n_axes` sizes that all leaves of a tree have.

    Raises:
        ValueError: If the tree has no leaf, or if its leaves differ in these sizes.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fbuf_adapters.flashbax import utils
        >>> utils.get_tree_shape_prefix({"a": jnp.zeros((2, 3)), "b": jnp.zeros((2, 3, 4))}, 2)
        (2, 3)
    """
    found = {jnp.shape(leaf)[:n_axes] for leaf in jax.tree.leaves(tree)}
    if len(found) != 1 or len(prefix := found.pop()) != n_axes:
        raise ValueError(
            f"fbuf.get_tree_shape_prefix: all leaves of tree must have the same first {n_axes} "
            f"sizes, got {jax.tree.map(jnp.shape, tree)}"
        )
    return prefix


def get_timestep_count(buffer_state: Any) -> jax.Array:
    """Count the stored steps of all environments: int32 scalar, or one for each stacked state."""
    return of_each(lambda buffer: jnp.sum(buffer.ring.stored), buffer_state.buffer)


def get_max_index(buffer_state: Any) -> int:
    """Return the length of the time axis, `max_length_time_axis`."""
    return buffer_state.buffer.ring.lane_length
