"""What a space is stored as."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclasses.dataclass(frozen=True)
class Spec:
    """The shape and dtype of a field of one row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


_NARROW = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
}

_ARRAYS: Any = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def space_specs(space: Any, name: str) -> Any:
    """The arrays of one element of a space, with the dtypes of the space.

    Raises:
        ValueError: If its elements are no arrays of one shape.
    """
    if isinstance(space, spaces.Dict):
        return {key: space_specs(part, f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_specs(part, f"{name}[{i}]") for i, part in enumerate(space.spaces))
    if not isinstance(space, _ARRAYS):
        raise ValueError(
            f"Collector: {name} is a {type(space).__name__} space, whose elements are no arrays of "
            "one shape, so they cannot be rows; wrap the environment so that it has a Box, "
            "Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space"
        )
    dtype = np.dtype(space.dtype)
    stored_dtype(dtype, name)
    return Spec(tuple(space.shape), dtype)


def stored_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The dtype that a field of this dtype is stored as: 64 bits become 32."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(
            f"Collector: {name} is {dtype}, which cannot be stored; give floats, integers or bools"
        )
    return _NARROW.get(dtype, dtype)


def stored_spec(spec: Spec, name: str) -> Spec:
    """What a field is stored as."""
    return Spec(spec.shape, stored_dtype(spec.dtype, name))


def stored(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """An array as it is stored.

    Raises:
        ValueError: If an integer does not fit, or a finite float would become infinite.
    """
    return cast(array, stored_dtype(array.dtype, name), name)


def cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """An array in another dtype; floats may be rounded, integers keep their values."""
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(
                    f"Collector: {name} holds {value}, which {dtype} cannot hold; wrap the "
                    "environment so that it stays within that"
                )
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        largest = np.max(np.abs(array[np.isfinite(array)]))
        raise ValueError(
            f"Collector: {name} holds {largest}, which {dtype} cannot hold; scale it"
        ) from None
