"""Words: numbers of any width laid side by side, bit for bit.

A row of a store is a row of words. So is a message between devices.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
"""The unsigned integers that stand for numbers, by their bytes."""


def packed(leaves: Sequence[jax.Array]) -> jax.Array:
    """Lay leaves `[B, ...]` of any dtype side by side: uint32 `[B, words]`."""
    columns = [bits(in_whole_bytes(leaf), jnp.uint32) for leaf in leaves]
    # A number alone in its word is converted, which needs no separate kernel on a GPU.
    wide = [
        column.astype(jnp.uint32) if column.shape[1] == 1 else widened(column, jnp.uint32)
        for column in columns
    ]
    return jnp.concatenate(wide, axis=1)


def unpacked(words: jax.Array, like: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Undo `packed`; `like` has the shapes and dtypes of the leaves, with any first axis."""
    leaves: list[jax.Array] = []
    first = 0
    for spec in like:
        row = jax.ShapeDtypeStruct((1, *spec.shape[1:]), spec.dtype)
        plain = jax.eval_shape(in_whole_bytes, row)
        size = plain.dtype.itemsize
        count = math.prod(plain.shape) * max(size // 4, 1)
        last = first + -(-count * min(size, 4) // 4)
        small = words[:, first:last]
        if count > 1:
            small = narrowed(small, min(size, 4))[:, :count]
        elif size < 4:
            small = small.astype(UNSIGNED[size])
        whole = numbers(small, plain.shape[1:], np.dtype(plain.dtype))
        leaves.append(as_it_was(whole, spec.dtype))
        first = last
    return leaves


def bits(leaf: jax.Array, word: Any) -> jax.Array:
    """Return numbers `[B, ...]` as unsigned integers of their width, or two words: `[B, n]`."""
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    unsigned = UNSIGNED.get(leaf.dtype.itemsize, word)
    return lax.bitcast_convert_type(leaf, unsigned).reshape(leaf.shape[0], -1)


def numbers(bits: jax.Array, feature: tuple[int, ...], dtype: np.dtype[Any]) -> jax.Array:
    """Undo `bits`, for leaves `[B, *feature]`."""
    shape = (bits.shape[0], *feature)
    if dtype == jnp.bool_:
        return bits.reshape(shape) != 0
    if dtype.itemsize > bits.dtype.itemsize:
        bits = bits.reshape(*shape, dtype.itemsize // bits.dtype.itemsize)
        return lax.bitcast_convert_type(bits, dtype)
    return lax.bitcast_convert_type(bits.reshape(shape), dtype)


def widened(bits: jax.Array, word: Any) -> jax.Array:
    """Lay small integers `[B, n]` together, several to a word."""
    ratio = np.dtype(word).itemsize // bits.dtype.itemsize
    if ratio == 1:
        return bits
    # By shifts: on a GPU a bitcast to a wider number is a separate kernel.
    padded = jnp.pad(bits, ((0, 0), (0, -bits.shape[1] % ratio)))
    parts = [
        padded[:, at::ratio].astype(word) << np.dtype(word).type(8 * bits.dtype.itemsize * at)
        for at in range(ratio)
    ]
    return functools.reduce(operator.or_, parts)


def narrowed(words: jax.Array, width: int) -> jax.Array:
    """Undo `widened`; the padding comes last."""
    if words.dtype.itemsize == width:
        return words
    ratio = words.dtype.itemsize // width
    places = lax.broadcasted_iota(words.dtype, (1, 1, ratio), 2) * words.dtype.type(8 * width)
    parts = (words[:, :, None] >> places).astype(UNSIGNED[width])
    return parts.reshape(words.shape[0], words.shape[1] * ratio)


def in_whole_bytes(leaf: jax.Array) -> jax.Array:
    """Return real numbers of whole bytes: complex numbers in parts, small numbers widened."""
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.stack([leaf.real, leaf.imag], axis=-1)
    unsigned = _less_than_a_byte(leaf.dtype)
    if unsigned is None:
        return leaf
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint8)
    # Some versions of XLA for CPU compile no such bitcast of a float.
    values = leaf.astype(jnp.float32)
    negative = (lax.bitcast_convert_type(values, jnp.uint32) >> 31).astype(jnp.uint8)
    positive = _values(leaf.dtype)[1 : 2 ** (width(leaf.dtype) - 1)]
    size = sum((abs(values) >= least).astype(jnp.uint8) for least in positive)
    return size | negative << (width(leaf.dtype) - 1)


def as_it_was(leaf: jax.Array, dtype: Any) -> jax.Array:
    """Undo `in_whole_bytes`."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(leaf[..., 0], leaf[..., 1])
    unsigned = _less_than_a_byte(dtype)
    if unsigned is None:
        return leaf
    if not jnp.issubdtype(dtype, jnp.floating):
        return lax.bitcast_convert_type(leaf.astype(unsigned), dtype)
    return jnp.asarray(_values(dtype))[leaf.astype(jnp.int32)].astype(dtype)


def _values(dtype: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the values of a float of less than a byte, by its bits: the positive ones first."""
    return np.arange(2 ** width(dtype), dtype=np.uint8).view(dtype).astype(np.float32)


def _less_than_a_byte(dtype: Any) -> Any:
    """Return the unsigned integer type of numbers below a byte; None for other dtypes."""
    return {4: jnp.uint4, 2: jnp.uint2}.get(width(dtype))


def width(dtype: Any) -> int:
    """Return the number of bits of a number, or of one part of a complex number."""
    if dtype == jnp.bool_:
        return 8
    limits = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return limits(dtype).bits
