"""Arrays of NumPy and Python numbers among the leaves of items, taken as tensors."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fbuf.adapter_api import can_hold
from fbuf_adapters.pytorch.crossing import _dtypes


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


def field(item: Any, name: str | None) -> Any:
    """A field of an item of dicts, such as `"observation.camera"`; None if there is no such one."""
    for part in () if name is None else name.split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return None if name is None else item


def _as_tensor(leaf: Any, spec: Any) -> Any:
    if isinstance(leaf, np.generic):
        # A float64 is a float of Python, too.
        keeps = spec is None and not isinstance(leaf, np.float64)
        leaf = np.asarray(leaf) if keeps else leaf.item()
    if isinstance(leaf, np.ndarray):
        if not leaf.dtype.isnative or leaf.dtype not in _dtypes.DTYPES.values():
            return leaf
        fits = all(step >= 0 and step % leaf.itemsize == 0 for step in leaf.strides)
        return torch.from_numpy(leaf if leaf.flags.writeable and fits else leaf.copy())
    if isinstance(leaf, bool):
        return torch.tensor(leaf)
    if isinstance(leaf, int):
        wanted = None if spec is None or spec.dtype == jnp.bool_ else spec.dtype
        return torch.tensor(leaf, dtype=torch.int64 if wanted is None else _held(leaf, wanted))
    if isinstance(leaf, float):
        if spec is None or not jnp.issubdtype(spec.dtype, jnp.floating):
            return torch.tensor(leaf, dtype=_held(leaf, jnp.float32))
        return torch.tensor(leaf, dtype=_held(leaf, spec.dtype))
    return leaf


def _held(number: int | float, dtype: Any) -> torch.dtype:
    """The dtype, if it can hold the number; else the widest, which is refused by name."""
    if not math.isfinite(number) or can_hold(dtype, number):
        return _dtypes.to_torch(dtype)
    return torch.int64 if jnp.issubdtype(dtype, jnp.integer) else torch.float64
