"""Arrays of the host as arguments: copied, and refused where JAX would change a value."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check

_PLAIN = frozenset(map(np.dtype, ("?", "b", "B", "h", "H", "i", "I", "e", "f")))
"""Dtypes that JAX takes as they are; any other dtype is checked."""


def on_device(value: Any) -> Any:
    """Return a value whose NumPy arrays are JAX's.

    Inside `jit` they are. Beside traced arrays, and where a user switched `jit` off, they are not.
    """
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, value
    )


def owned(function: str, argument: str, value: Any) -> Any:
    """Copy the NumPy arrays of an argument; refuse values that JAX would narrow."""
    leaves, tree = jax.tree.flatten(value)
    if not all(type(leaf) is np.ndarray and leaf.dtype in _PLAIN for leaf in leaves):
        for path, leaf in jax.tree.leaves_with_path(value):
            if not isinstance(leaf, jax.Array):
                check.array(function, argument + jax.tree_util.keystr(path), leaf)
    return tree.unflatten(map(_own, leaves))


def _own(leaf: Any) -> Any:
    """Copy a leaf of NumPy; give a Python number a type that holds it."""
    if isinstance(leaf, np.ndarray):
        return np.array(leaf)
    # JAX takes an int as a signed one, and raises an error of its own if that cannot hold it.
    if isinstance(leaf, int) and leaf > jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64)).max:
        leaf = jax.dtypes.canonicalize_dtype(np.uint64).type(leaf)
    # JAX makes the names of its options at run time.
    config: Any = jax.config
    if config.jax_transfer_guard_host_to_device not in (None, "allow"):
        # The user gave this number to this call, so it may cross to the device.
        return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)
    return leaf
