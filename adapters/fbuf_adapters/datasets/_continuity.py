"""Comparison of the next observation of each row with the observation of the row after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fbuf_adapters.datasets._fields import Array, native

_COARSE = ("bfloat16", "float16")  # the coarsest first


def goes_on(
    observed: Mapping[str, Any], following: Mapping[str, Any], asked: Array, size: int
) -> Array:
    """Return whether a next observation is the observation of the following row: bool `[rows]`.

    Numbers that differ by no more than a rounding are the same.

    Args:
        observed: Leaves `[rows, ...]`, by name: the observations of the rows.
        following: Leaves `[rows, ...]`, by name: the next observations of the rows.
        asked: bool `[rows]`; for all other rows, and for the last one, the answer is False.
        size: The number of rows to read at a time.
    """
    continued = asked.copy()
    continued[-1:] = False
    for name, leaf in observed.items():
        last: Array | None = None  # the next observation of the row before the block
        for start, here, led in _blocks(leaf, following[name], size):
            if last is not None:
                rows = slice(start - 1, start)
                continued[rows] &= _alike(last, here[:1], continued[rows])
            rows = slice(start, start + len(here) - 1)
            continued[rows] &= _alike(led[:-1], here[1:], continued[rows])
            last = led[-1:]
    return continued


def _blocks(here: Any, led: Any, size: int) -> Iterator[tuple[int, Array, Array]]:
    for start in range(0, here.shape[0], size):
        part = slice(start, min(start + size, here.shape[0]))
        yield start, native(here[part]), native(led[part])


def same(left: Array, right: Array) -> Array:
    """Return whether elements are equal, apart from the sign of 0 and the bits of NaN."""
    return (left == right) | ((left != left) & (right != right))


def _alike(left: Array, right: Array, asked: Array) -> Array:
    """Return whether the asked rows are equal up to rounding: bool `[n]`."""
    if not len(left):
        return np.zeros(0, np.bool_)
    alike: Array = np.asarray(same(left, right).reshape(len(left), -1).all(axis=1))
    other = asked & ~alike
    if other.any() and all(jnp.issubdtype(array.dtype, jnp.floating) for array in (left, right)):
        # Infinity minus infinity is NaN, and within no bound: `same` compares infinities.
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(left[other].astype(np.float64) - right[other].astype(np.float64))
            near = (apart <= _rounding(left, right, other)) | same(left[other], right[other])
        alike[other] = near.reshape(len(near), -1).all(axis=1)
    return alike


def _rounding(left: Array, right: Array, rows: Array) -> Array:
    """Return the bound for the distance of two roundings of one number.

    One of the two may have been stored in a coarse format. Then they may differ by half a step of
    that format. If both are fine, they may have been computed twice, and differ by a few steps.
    Coordinates of a grid are coarse in both, and further apart.
    """
    both = left, right
    for name in _COARSE:
        shares = [_share(array, name) for array in both]
        if max(shares) == 1 and min(shares) < 0.5:
            coarse = both[shares.index(1)][rows].astype(np.float64)
            smallest = float(jnp.finfo(name).smallest_subnormal)
            return 0.51 * np.maximum(float(jnp.finfo(name).eps) * np.abs(coarse), smallest)
    single = any(_share(array, "float32") == 1 for array in both)
    eps = float(jnp.finfo("float32" if single else "float64").eps)
    sizes = [np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64)) for array in both]
    # A value near 0 may be a difference of typical values: scale by the median, not an outlier.
    usual = np.median(sizes[1], axis=0)
    return 4 * eps * np.maximum(np.maximum(sizes[0][rows], sizes[1][rows]), usual)


def _share(array: Array, name: str) -> float:
    """Return the share of nonzero numbers that a format holds exactly: from 0 to 1."""
    numbers = array[(array != 0) & np.isfinite(array)]
    with np.errstate(over="ignore"):
        held = numbers.astype(jnp.dtype(name)).astype(array.dtype) == numbers
    return float(held.mean()) if held.size else 1.0
