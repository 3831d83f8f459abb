"""Batches as text: the shape and dtype of each array, and its range in place of numbers.

The functions wait for the arrays alone, and compile nothing. They also serve a traced batch, a
batch of shapes, and one of consumed arrays.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

_LEAVES = 40
"""The most arrays to name."""

_NUMBERS = 2**22
"""The most numbers of an array to read."""


def batch_repr(self: Any) -> str:
    """Return the class of a batch, and a line for each of its arrays: its `__repr__`."""
    return lines(self)


def lines(batch: Any) -> str:
    """Return the class of a batch, and a line for each of its arrays."""
    paths, _ = jax.tree_util.tree_flatten_with_path(batch)
    entries = [(jax.tree_util.keystr(path).removeprefix("."), of(leaf)) for path, leaf in paths]
    more = len(entries) - _LEAVES
    entries = entries[:_LEAVES]
    entries += [
        (field.name, repr(getattr(batch, field.name)))
        for field in dataclasses.fields(batch)
        if field.metadata.get("static")
    ]
    width = max((len(name) for name, _ in entries), default=0)
    told = [f"  {name:{width}}  {said}" for name, said in entries]
    if more > 0:
        told.append(f"  and {more:,} more arrays")
    return "\n".join([f"{type(batch).__name__}(", *told, ")"])


def of(leaf: Any) -> str:
    """Return the dtype and the shape of an array, and its range if it has values."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        kind = type(leaf)
        is_number = kind in (bool, int, float, complex)
        return repr(leaf) if is_number else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    words = f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
        return words
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return f"{words} consumed"
    said = "" if math.prod(shape) > _NUMBERS else _range(_values(leaf))
    return f"{words} {said}".rstrip()


def _values(leaf: Any) -> np.ndarray[Any, Any] | None:
    """Return the numbers of an array; None if it has no values here, or none that are numbers."""
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) or not leaf.is_fully_addressable:
            return None
        with jax.transfer_guard_device_to_host("allow"):
            # Copies of parts: the array would keep a copy of itself, and could not be donated.
            parts = [part.data for part in leaf.addressable_shards if part.replica_id == 0]
            return np.concatenate([np.asarray(part).reshape(-1) for part in parts])
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(leaf).reshape(-1)
    if type(leaf).__module__.partition(".")[0] != "torch" or leaf.device.type == "meta":
        return None
    leaf = leaf.detach().cpu().reshape(-1)
    narrow = leaf.is_floating_point() and leaf.element_size() < 4  # NumPy has no bfloat16
    return (leaf.float() if narrow else leaf).numpy()


def _range(values: np.ndarray[Any, Any] | None) -> str:
    """Return the range of numbers in words."""
    if (
        values is None
        or not values.size
        or (values.dtype.kind in "cOSUV" and not _is_short(values))
    ):
        return ""
    if values.dtype.kind == "b":
        return f"{int(values.sum()):,} True"
    if _is_short(values):
        values = values.astype(np.float32)
    bad = ""
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        if not finite.all():
            bad = f"; {int((~finite).sum()):,} NaN or infinite"
            values = values[finite]
    if not values.size:
        return bad.removeprefix("; ")
    least, most = values.min().item(), values.max().item()
    return (f"all {least:.4g}" if least == most else f"{least:.4g} to {most:.4g}") + bad


def _is_short(values: np.ndarray[Any, Any]) -> bool:
    """Tell whether numbers are of a dtype that only JAX knows, such as bfloat16."""
    return values.dtype.kind not in "biufc" and bool(jnp.issubdtype(values.dtype, jnp.number))
