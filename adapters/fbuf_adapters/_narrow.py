"""Casts to narrower dtypes that refuse a number which does not fit.

All adapters share this module. It imports NumPy alone, so processes of environments may use it.
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


def narrow(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array in another dtype: integers keep their values, floats may be rounded.

    Args:
        array: The array. It is returned itself if it has the dtype.
        dtype: A dtype of NumPy of the same kind, or of a wider kind.

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
    if dtype.kind in "iu" and array.size:
        smallest, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
        if int(array.min()) < smallest or int(array.max()) > largest:
            raise Misfit(array, (array < smallest) | (array > largest))
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            misfits = np.isfinite(array) & ~np.isfinite(array.astype(dtype))
    raise Misfit(array, misfits)
