"""Arrays of NumPy and Python numbers among the leaves of items, taken as tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fbuf_adapters.pytorch import _dtypes


def as_tensors(items: Any, item: Any = None) -> Any:
    """Items whose leaves are tensors; what is no tensor, array or number stays, to be refused.

    Args:
        items: The tree.
        item: One item, of `jax.ShapeDtypeStruct`, if it is known: a number takes its dtype where
            that holds numbers of the kind. Else ints are int64 and floats float32.
    """
    if type(items) is dict and all(type(leaf) is torch.Tensor for leaf in items.values()):
        return items  # nearly always
    leaves, structure = jax.tree.flatten(items)
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return items
    specs: list[Any] = [None] * len(leaves)
    if item is not None and jax.tree.structure(item) == structure:
        specs = jax.tree.leaves(item)
    return structure.unflatten(map(_as_tensor, leaves, specs))


def _as_tensor(leaf: Any, spec: Any) -> Any:
    if isinstance(leaf, np.generic):
        leaf = leaf.item()
    if isinstance(leaf, np.ndarray):
        if not leaf.dtype.isnative or leaf.dtype not in _dtypes.DTYPES.values():
            return leaf
        return torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())
    if isinstance(leaf, bool):
        return torch.tensor(leaf)
    if isinstance(leaf, int):
        wanted = None if spec is None or spec.dtype == jnp.bool_ else spec.dtype
        return torch.tensor(leaf, dtype=torch.int64 if wanted is None else _held(leaf, wanted))
    if isinstance(leaf, float):
        if spec is None or not jnp.issubdtype(spec.dtype, jnp.floating):
            return torch.tensor(leaf, dtype=torch.float32)
        return torch.tensor(leaf, dtype=_held(leaf, spec.dtype))
    return leaf


def _held(number: int | float, dtype: Any) -> torch.dtype:
    """The dtype, if it can hold the number; else the widest, which is refused by name."""
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        fits = int(limits.min) <= number <= int(limits.max)
        return _dtypes.to_torch(dtype) if fits else torch.int64
    fits = not np.isfinite(number) or abs(number) <= float(jnp.finfo(dtype).max)
    return _dtypes.to_torch(dtype) if fits else torch.float64
