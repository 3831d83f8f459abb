"""New arrays of one number, without a program for each: that takes 20 to 60 ms to compile."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

_COPIED = 2**24
"""The largest array to fill on the host and copy, in bytes. XLA fills a larger one sooner."""

_ALIGNMENT = 64
"""JAX shares an array of NumPy that lies at a multiple of this number of bytes.

XLA does not write in place to memory that is shared.
"""


def filled(shape: tuple[int, ...] | int, value: float, dtype: Any) -> jax.Array:
    """Return an array of one number, on the default device, in memory of its own."""
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size > _COPIED or dtype.isbuiltin != 1 or not _on_one_device():
        return jnp.full(shape, value, dtype)
    array = _unshared(shape, dtype)
    if value or math.copysign(1, value) < 0:
        array.fill(value)
    return jax.device_put(array)


def zeros(shape: tuple[int, ...] | int, dtype: Any) -> jax.Array:
    """Return an array of zeros; see `filled`."""
    return filled(shape, 0, dtype)


def copied(array: np.ndarray, sharding: Any = None) -> jax.Array:
    """Return an array of NumPy's in memory of its own, on the default device if none is given."""
    if array.nbytes > _COPIED or array.dtype.isbuiltin != 1 or not _on_one_device():
        return jnp.copy(jax.device_put(array, sharding))
    copy = _unshared(array.shape, array.dtype)
    copy[...] = array
    return jax.device_put(copy, sharding)


def traced() -> bool:
    """Whether new arrays are values of a program that is being traced."""
    return isinstance(jax.device_put(np.zeros((), bool)), jax.core.Tracer)


def _unshared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return zeros in memory that JAX has to copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + 2 * _ALIGNMENT, np.uint8)
    # 16 bytes behind a multiple every dtype is aligned, and the array lies at none.
    first = -memory.ctypes.data % _ALIGNMENT + 16
    return memory[first : first + size].view(dtype).reshape(shape)


def _on_one_device() -> bool:
    """Whether new arrays lie on the default device: with a mesh in force JAX lays them there."""
    return jax.sharding.get_abstract_mesh().empty and not traced()
