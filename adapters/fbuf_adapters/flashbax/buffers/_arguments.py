"""Checks of the arguments of all buffers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import check, warn


def time_axis(function: str, max_length_time_axis: Any, max_size: Any, add_batch_size: int) -> int:
    """Return the length of the time axis, of the two ways to give it."""
    if (max_size is None) == (max_length_time_axis is None):
        raise ValueError(
            f"fbuf.{function}: give either max_length_time_axis, the steps of an environment, or "
            f"max_size, those of all environments; got {max_length_time_axis} and {max_size}"
        )
    if max_size is None:
        return check.integer(function, "max_length_time_axis", max_length_time_axis)
    return lane(function, "max_size", max_size, add_batch_size)


def lane(function: str, argument: str, size: Any, add_batch_size: int) -> int:
    """Return the steps of an environment, of those of all; warn if some are left over."""
    size = check.integer(function, argument, size, smallest=add_batch_size)
    if left := size % add_batch_size:
        warn(
            f"fbuf.{function}: {argument} is no multiple of add_batch_size={add_batch_size}, so "
            f"the buffer holds {size - left} steps instead of {size}"
        )
    return size // add_batch_size


def at_most(function: str, argument: str, value: Any, other: str, largest: int) -> int:
    """Return an int from 1 to `largest`, which another argument says."""
    value = check.integer(function, argument, value)
    if value > largest:
        raise ValueError(
            f"fbuf.{function}: {argument} must be at most {other}, which is {largest}, got {value}"
        )
    return value


def exponent(function: str, priority_exponent: Any) -> float:
    """Return the exponent of priorities, from 0 to 1."""
    check.number(function, "priority_exponent", priority_exponent, largest=1.0)
    return float(priority_exponent)


def rows(buffer: fbuf.State[Any], batch: Any, axes: tuple[str, ...], most: int) -> None:
    """Require these axes before those of the item, and at most `most` steps.

    `fbuf.add` refuses everything else. But it would take a batch without an axis for another one.
    """
    stored = jax.tree.leaves(buffer.storage.item)
    shapes = list(map(jnp.shape, jax.tree.leaves(batch)))
    for spec, shape in zip(stored, shapes, strict=False):
        if len(shape) != len(axes) + spec.ndim:
            wanted = ", ".join((*axes, *map(str, spec.shape)))
            raise ValueError(
                f"fbuf.add: a leaf of batch must be of shape [{wanted}], got {shape}; which axes "
                "come first is said by the arguments of the function that made the buffer"
            )
    if axes == ("batch", "steps") and len({shape[:2] for shape in shapes}) > 1:
        # As one axis they may be equal, with the rows of a leaf in another order.
        raise ValueError(
            f"fbuf.add: all leaves of batch must begin with the same [batch, steps], got {shapes}"
        )
    sizes = dict(zip(axes, shapes[0], strict=False)) if shapes else {}
    count = math.prod(size for axis, size in sizes.items() if axis != "add_batch_size")
    if count > most:
        raise ValueError(
            f"fbuf.add: batch has {count} steps, and the buffer keeps {most}; add fewer at a time"
        )
