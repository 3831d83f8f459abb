"""Columns: the arrays of a row, as Stable-Baselines3 has them and as the buffer stores them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape

from fbuf_adapters.pytorch.crossing import _dtypes

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """One array of a row.

    The buffer stores every number bit for bit. A number of 64 bits is two words, because JAX has
    no such numbers unless they are switched on.

    Attributes:
        shape: The shape in one row.
        dtype: The dtype that Stable-Baselines3 gives and takes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """The stored form of one row."""
        if self.dtype.itemsize < 8:
            return jax.ShapeDtypeStruct(self.shape, self.dtype)
        *axes, last = self.shape or (1,)
        return jax.ShapeDtypeStruct((*axes, 2 * last), jnp.int32)

    @property
    def nbytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def stored(self, array: Array) -> Array:
        """Return rows `[..., *shape]` in the stored form, in the same memory."""
        if self.dtype.itemsize < 8:
            return array
        lead = array.shape[: array.ndim - len(self.shape)]
        return array.reshape(*lead, *(self.shape or (1,))).view(np.int32)

    def numpy(self, array: Array) -> Array:
        """Return stored rows `[B, ...]` as `[B, *shape]`, in the same memory."""
        if self.dtype.itemsize < 8:
            return array
        return array.view(self.dtype).reshape(len(array), *self.shape)

    def tensor(self, rows: Any) -> torch.Tensor:
        """Return stored rows `[B, ...]`, an array or a tensor, as a tensor `[B, *shape]` there."""
        if isinstance(rows, np.ndarray):
            return torch.from_numpy(self.numpy(rows))
        if self.dtype.itemsize < 8:
            return rows
        return rows.view(_dtypes.to_torch(self.dtype)).reshape(len(rows), *self.shape)


def of_observations(space: spaces.Space[Any]) -> Any:
    """Return the column of observations, or for a dict of spaces a dict of columns."""
    if isinstance(space, spaces.Dict):
        return {name: of_observations(sub) for name, sub in space.spaces.items()}
    shape: Any = get_obs_shape(space)
    return Column(tuple(shape), _dtype(space))


def of_actions(space: spaces.Space[Any], cast: Callable[[Any], Any]) -> Column:
    """Return the column of actions, which are flat, and of the dtype that `cast` makes of it."""
    return Column((get_action_dim(space),), np.dtype(cast(_dtype(space))))


def _dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    if space.dtype is None:
        raise TypeError(
            f"fbuf_adapters.sb3: {space} has no dtype; use spaces that Stable-Baselines3 supports"
        )
    return np.dtype(space.dtype)


def map_columns(function: Any, columns: Any, *trees: Any) -> Any:
    """Return a tree of results: one for each column and its parts of the trees.

    Trees are dicts of dicts. A step of an algorithm maps a dozen of them, and JAX's general maps
    take as long as a draw.
    """
    if isinstance(columns, dict):
        parts: Any = columns.items()
        return {
            name: map_columns(function, column, *[tree[name] for tree in trees])
            for name, column in parts
        }
    return function(columns, *trees)
