"""Spaces and their elements: trees of dicts and tuples, without JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from fbuf_adapters._narrow import Misfit, narrow
from fbuf_adapters.gymnasium._errors import CollectorError

FILLED = (
    "observation",
    "action",
    "reward",
    "next_observation",
    "terminated",
    "truncated",
    "version",
)
"""The fields that collectors fill themselves."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """The shape and dtype of a field of one row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def check(
        self, array: np.ndarray[Any, Any], num_envs: int, what: str, why: str, remedy: str = ""
    ) -> None:
        """Refuse an array that is not one entry an environment, in a dtype of the same kind.

        Raises:
            CollectorError: Made of the texts `what`, `why` and `remedy`.
        """
        shape = (num_envs, *self.shape)
        if array.shape != shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise CollectorError(
                f"Collector: {what} {self.dtype} of shape {shape}, {why}, got {array.dtype} of "
                f"shape {array.shape}{remedy}"
            )


FLAG = Spec((), np.dtype(np.bool_))

_ARRAYS: Any = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def space_specs(space: Any, name: str) -> Any:
    """Return the specs of one element of a space, with the dtypes of the space.

    Raises:
        ValueError: If the elements are no arrays of one shape.
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
    """Return the stored dtype of a field: 64 bits become 32."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(
            f"Collector: {name} is {dtype}, which cannot be stored; give floats, integers or bools"
        )
    return np.dtype(f"{dtype.kind}4") if dtype.itemsize == 8 else dtype


def stored_specs(specs: Any, name: str) -> Any:
    """Return the stored specs of a field."""
    return map_leaves(lambda spec: Spec(spec.shape, stored_dtype(spec.dtype, name)), specs)


def stored(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return an array in its stored dtype.

    Raises:
        ValueError: If an integer does not fit, or a finite float would become infinite.
    """
    return cast(array, stored_dtype(array.dtype, name), name)


def cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Return an array in another dtype; see `narrow`."""
    try:
        return narrow(array, dtype)
    except Misfit as misfit:
        raise ValueError(
            f"Collector: {name} holds {misfit.value}, which {dtype} cannot hold; "
            + (
                "scale it"
                if dtype.kind == "f"
                else "wrap the environment so that it stays within that"
            )
        ) from None


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return the tree with `function(leaf, *leaves of the rest)` for each leaf."""
    if isinstance(tree, dict):
        return {
            name: map_leaves(function, value, *(other[name] for other in rest))
            for name, value in tree.items()
        }
    if isinstance(tree, tuple | list):
        parts = (map_leaves(function, *parts) for parts in zip(tree, *rest, strict=True))
        return list(parts) if isinstance(tree, list) else tuple(parts)
    return function(tree, *rest)


def paths(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its path, such as `['camera'][0]`."""
    if isinstance(tree, dict | tuple | list):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from paths(part, f"{name}[{key!r}]")
    else:
        yield name, tree


def matched(tree: Any, like: Any) -> list[Any] | None:
    """Return the leaves of a tree in the order of those of `like`; None if the trees differ."""
    if isinstance(like, dict):
        if not isinstance(tree, dict) or tree.keys() != like.keys():
            return None
        parts = [(tree[name], value) for name, value in like.items()]
    elif isinstance(like, tuple):
        if not isinstance(tree, tuple) or len(tree) != len(like):
            return None
        parts = list(zip(tree, like, strict=True))
    else:
        return None if isinstance(tree, dict | tuple) else [tree]
    found = [matched(part, other) for part, other in parts]
    return None if None in found else [leaf for part in found if part for leaf in part]
