"""Leaves of other shapes than those given to `init`, brought to the shapes that flashbax stores."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.adapter_api import check, warn


def as_stored(item: Any, batch: Any, axes: tuple[str, ...]) -> Any:
    """Return a batch whose leaves have the shapes of the item, where flashbax repeats numbers.

    flashbax writes with `.at[...].set`, which broadcasts. Here a leaf is broadcast if every number
    stays in its own row; `fbuf.add` refuses the others. A warning names each such leaf.

    Args:
        item: The item of the buffer, a tree of shapes and dtypes.
        batch: The batch, of any shapes.
        axes: The axes of the batch before those of the item.
    """
    specs, tree = jax.tree.flatten(item)
    leaves, given = jax.tree.flatten(batch)
    shapes = list(map(jnp.shape, leaves))
    pairs = zip(shapes, specs, strict=True)
    if given != tree or all(shape[len(axes) :] == spec.shape for shape, spec in pairs):
        return batch
    for number, (path, leaf) in enumerate(jax.tree.leaves_with_path(batch)):
        shape, feature = shapes[number], specs[number].shape
        lead = shape[: len(axes)]
        if shape == (*lead, *feature) or not _stays_in_its_row(shape, lead, axes, feature):
            continue
        name = f"batch{jax.tree_util.keystr(path)}"
        check.array("add", name, leaf)
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
            continue  # a Python number is the row of a scalar field alone
        wanted = (*lead, *feature)
        how = "reshaped" if math.prod(shape) == math.prod(wanted) else "repeated"
        warn(
            f"fbuf.add: {name} is of shape {shape} instead of {wanted}, as init was given "
            f"{feature}; its numbers are {how}, as in flashbax; add them in that shape, or give "
            "init their own"
        )
        # `fbuf.add` copies arrays of NumPy at once; JAX may read them after the call.
        library: Any = jnp if isinstance(leaf, jax.Array) else np
        leaves[number] = library.broadcast_to(leaf, wanted)
    return tree.unflatten(leaves)


def _stays_in_its_row(
    shape: tuple[int, ...], lead: tuple[int, ...], axes: tuple[str, ...], feature: tuple[int, ...]
) -> bool:
    """Return whether NumPy's rules broadcast a shape to an item's, and leave the batch's axes.

    They align shapes at their ends. So with an axis too few, those of the batch must be of size 1.
    """
    missing = len(axes) + len(feature) - len(shape)
    if len(lead) < len(axes) or missing < 0 or (missing and math.prod(lead) != 1):
        return False
    own = shape[len(axes) :]
    return all(size in (1, want) for size, want in zip(own, feature[missing:], strict=True))
