"""Wide rows: the format of the rows of a field in its own array.

Most keep their dtype. Two kinds of numbers are stored as unsigned integers of the same bits. XLA on
CPU computes small floats, such as bfloat16, as float32. A write of some rows would convert the
whole array, and change NaNs. Numbers below a byte are packed, several to a byte, the first one in
the lowest bits. Some versions of XLA would copy their whole array, and NumPy takes a byte for each.

Only the rows of a batch are converted. Rows are arrays of JAX, or of NumPy.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.storage import words
from fbuf.storage.layout import Field


def spec(field: Field, capacity: int) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array for `capacity` rows of a field."""
    together = _in_a_byte(field)
    shape = field.shape if together == 1 else (-(-field.size // together),)
    return jax.ShapeDtypeStruct((capacity, *shape), _lies_as(field))


def stored(field: Field, rows: Any) -> Any:
    """Return rows `[..., *shape]` of a field as they lie in its array."""
    kind, together = _lies_as(field), _in_a_byte(field)
    if kind == field.dtype:
        return rows
    if together == 1:
        return _bitcast(rows, kind)
    lead = rows.shape[: rows.ndim - len(field.shape)]
    bits = _bytes_of(field, rows).reshape(*lead, field.size)
    missing = -field.size % together
    if missing:
        of = jnp if isinstance(bits, jax.Array) else np
        bits = of.concatenate([bits, of.zeros((*lead, missing), np.uint8)], axis=-1)
    bits = bits.reshape(*lead, (field.size + missing) // together, together)
    parts = [bits[..., at] << shift for at, shift in enumerate(_shifts(field))]
    return functools.reduce(lambda one, other: one | other, parts)


def read(field: Field, array: Any) -> Any:
    """Undo `stored`."""
    kind, together = _lies_as(field), _in_a_byte(field)
    if kind == field.dtype:
        return array
    if together == 1:
        return _bitcast(array, field.dtype)
    lead = array.shape[:-1]
    of = jnp if isinstance(array, jax.Array) else np
    parts = [(array >> shift) & _mask(field) for shift in _shifts(field)]
    bits = of.stack(parts, axis=-1).reshape(*lead, -1 if array.size else 0)[..., : field.size]
    return _of_bytes(field, bits.reshape(*lead, *field.shape))


def as_it_lies(field: Field, array: Any) -> Any:
    """Convert an array of an earlier version, whose rows kept their dtype; keep any other."""
    as_before = isinstance(array, jax.Array | np.ndarray) and array.dtype == field.dtype
    return stored(field, array) if as_before else array


def is_whole(field: Field) -> bool:
    """Tell whether each number lies by itself, so that to read it is to copy its bits."""
    return _in_a_byte(field) == 1


def _lies_as(field: Field) -> np.dtype[Any]:
    """Return the dtype of the array."""
    if words.width(field.dtype) < 8:
        return np.dtype(np.uint8)
    small = jnp.issubdtype(field.dtype, jnp.floating) and field.dtype.itemsize < 4
    if small and field.dtype != np.float16:
        return np.dtype(words.UNSIGNED[field.dtype.itemsize])
    return field.dtype


def _in_a_byte(field: Field) -> int:
    """Return how many numbers share a byte; 1 for numbers of whole bytes."""
    return max(8 // words.width(field.dtype), 1)


def _shifts(field: Field) -> list[np.uint8]:
    """Return the first bit of each number in a byte."""
    return list(np.arange(0, 8, words.width(field.dtype), dtype=np.uint8))


def _mask(field: Field) -> np.uint8:
    return np.uint8(2 ** words.width(field.dtype) - 1)


def _bitcast(rows: Any, dtype: np.dtype[Any]) -> Any:
    """Return the same bits as numbers of another dtype of that width."""
    if isinstance(rows, jax.Array):
        return lax.bitcast_convert_type(rows, dtype)
    return np.asarray(rows).view(dtype)


def _bytes_of(field: Field, rows: Any) -> Any:
    """Return each number of less than a byte in a byte of its own."""
    if isinstance(rows, jax.Array):
        return words.in_whole_bytes(rows)
    return np.asarray(rows).view(np.uint8) & _mask(field)


def _of_bytes(field: Field, rows: Any) -> Any:
    """Undo `_bytes_of`."""
    if isinstance(rows, jax.Array):
        return words.as_it_was(rows, field.dtype)
    return rows.view(field.dtype)
