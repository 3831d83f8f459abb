"""The tree that is saved beside a buffer: keys, counters, parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import tree_json
from fbuf.checkpoint.errors import Mismatch
from fbuf.checkpoint.tree_json import Data

LEFT_OUT = object()
"""An example which says that the extra tree is not wanted."""


def split(extra: Any) -> tuple[Data, list[np.ndarray]]:
    """Encode a tree as JSON, and copy its arrays.

    Raises:
        TypeError: If a leaf is neither an array nor a number, a string, bytes or a bool.
    """
    arrays: list[np.ndarray] = []

    def spec_of(array: np.ndarray) -> Data:
        arrays.append(array)
        return tree_json.array(array.shape, array.dtype)

    def leaf(value: Any) -> Data:
        # A subclass, such as an IntEnum, would be lost.
        if type(value) in (bool, int, str):
            return {"value": value}
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) is bytes:
            return {"array": "bytes", **spec_of(np.frombuffer(value, np.uint8))}
        if isinstance(value, np.generic) and not isinstance(value, str | bytes):
            return {**leaf(np.asarray(value)), "array": "scalar"}
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            words = np.array(jax.random.key_data(value))
            return {"key": str(jax.random.key_impl(value)), **spec_of(words)}
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                "fbuf.save: extra has a masked array, whose mask would be lost; give its data and "
                "its mask as two arrays"
            )
        if isinstance(value, jax.Array | np.ndarray):
            found = np.array(jnp.copy(value) if isinstance(value, jax.Array) else value)
            if not tree_json.is_known(found.dtype.name):
                raise TypeError(f"fbuf.save: extra has an array of {found.dtype}")
            found = found.astype(found.dtype.newbyteorder("="), copy=False)
            return {"array": "jax" if isinstance(value, jax.Array) else "numpy", **spec_of(found)}
        raise TypeError(
            f"fbuf.save: extra has a leaf of type {type(value).__name__}; give arrays, and plain "
            "numbers, bools, strings and bytes of Python"
        )

    return tree_json.encode(extra, leaf), arrays


def specs(data: Data) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the arrays, in their order."""
    return [tree_json.spec(leaf) for leaf in tree_json.leaves(data) if "shape" in leaf]


def joined(data: Data, arrays: list[np.ndarray], example: Any) -> Any:
    """Decode a tree.

    Args:
        data: The result of `split`.
        arrays: Its arrays.
        example: A tree of the same structure, for one with classes of its own; or None, or
            `LEFT_OUT`.
    """
    if example is LEFT_OUT:
        return None
    rest = iter(arrays)

    def leaf(data: Data) -> Any:
        if "value" in data:
            return data["value"]
        if "float" in data:
            return float.fromhex(data["float"])
        array = next(rest)
        if "key" in data:
            return jax.random.wrap_key_data(jnp.asarray(array), impl=data["key"])
        if data["array"] == "bytes":
            return array.tobytes()
        if data["array"] != "jax":
            return array[()] if data["array"] == "scalar" else array
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            raise Mismatch(
                f"fbuf.load: extra has an array of {array.dtype}, and JAX's 64-bit types are off; "
                "switch them on as they were (jax_enable_x64)"
            )
        return jnp.asarray(array)

    leaves = [leaf(found) for found in tree_json.leaves(data)]
    return tree_json.decode(data, leaves, "extra", example)
