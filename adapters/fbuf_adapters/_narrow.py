"""Casts to narrower dtypes that refuse a number which does not fit.

All adapters share this module. Processes of environments use it without JAX and PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Misfit(ValueError):
    """A number that a dtype cannot hold.

    Attributes:
        index: The index of the first such number in the array.
        value: The number.
    """

    def __init__(self, array: np.ndarray[Any, Any], misfits: np.ndarray[Any, Any]) -> None:
        """Take the number of an array at the first True of `misfits`."""
        self.index = tuple(np.argwhere(misfits)[0].tolist())
        self.value = array[self.index]
        super().__init__(f"{self.value} does not fit")


def narrow(
    array: np.ndarray[Any, Any], dtype: np.dtype[Any], *, exact: bool = False
) -> np.ndarray[Any, Any]:
    """Return an array in another dtype: integers keep their values, floats may be rounded.

    Args:
        array: The array. It is returned itself if it has the dtype.
        dtype: A dtype of the same kind, or of a wider kind.
        exact: Whether integers that become floats keep their values, too; if not, they may be
            rounded.

    Raises:
        Misfit: If an integer is out of range, or a finite float would become infinite.

    Examples:
        >>> narrow(np.array([1, 2]), np.dtype(np.int8))
        array([1, 2], dtype=int8)
        >>> narrow(np.array([1, 300]), np.dtype(np.int8))
        Traceback (most recent call last):
        fbuf_adapters._narrow.Misfit: 300 does not fit
    """
    if array.dtype == dtype:
        return array
    if _is_integer(dtype):
        with np.errstate(invalid="ignore"):  # of NaN the cast is not defined
            cast = array.astype(dtype)
        misfits = cast != array
    else:
        cast, misfits = _to_floats(array, dtype, exact and _is_integer(array.dtype))
    if misfits.any():
        raise Misfit(array, misfits)
    return cast


def _to_floats(
    array: np.ndarray[Any, Any], dtype: np.dtype[Any], exact: bool
) -> tuple[np.ndarray[Any, Any], Any]:
    """Return an array as floats, and which of its numbers do not fit."""
    if not exact and array.dtype.isbuiltin == dtype.isbuiltin == 1:
        # Between its own dtypes NumPy says whether a number overflows, with no other pass.
        try:
            with np.errstate(over="raise", invalid="ignore"):
                return array.astype(dtype), np.False_
        except FloatingPointError:
            pass
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    return cast, _are_rounded(array, cast) if exact else np.isfinite(array) & ~np.isfinite(cast)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is of integers, such as int4, whose kind NumPy does not know."""
    return dtype.kind in "iu" or (dtype.kind == "V" and np.can_cast(dtype, np.int64))


def _are_rounded(
    integers: np.ndarray[Any, Any], floats: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return a mask of the integers that the cast to float changed."""
    integers = integers if integers.dtype.kind in "iu" else integers.astype(np.int64)
    limits = np.iinfo(integers.dtype)
    wide = floats.astype(np.float64)
    # No float that is out of range is cast back: NumPy does not define the result.
    within = (wide >= float(limits.min)) & (wide < float(int(limits.max) + 1))
    return ~within | (np.where(within, wide, 0).astype(integers.dtype) != integers)
