"""JAX arrays in the place of tensors, for SBX: what it takes for tensors of NumPy's memory."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fbuf_adapters.pytorch.crossing import _dtypes


class JaxTensor:
    """A JAX array with the methods of a tensor that SBX and CleanRL call before they compute.

    `numpy()` returns the array itself, so that it never leaves its device.

    Attributes:
        array: The array.
    """

    def __init__(self, array: jax.Array) -> None:
        """Hold an array."""
        self.array = array

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Hold the memory of a tensor, which must be nobody else's. JAX may cut 64 bits to 32."""
        if tensor.element_size() == 8:
            return cls(jnp.asarray(tensor.numpy()))
        return cls(jnp.from_dlpack(tensor))

    def numpy(self) -> jax.Array:
        """Return the array."""
        return self.array

    def long(self) -> Self:
        """Return integers of the widest dtype that JAX has."""
        return type(self)(self.array.astype(jnp.int64 if _dtypes.x64() else jnp.int32))

    def flatten(self) -> Self:
        """Return the numbers in one axis."""
        return type(self)(self.array.reshape(-1))

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a NumPy array."""
        return np.asarray(self.array, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.array.dtype
