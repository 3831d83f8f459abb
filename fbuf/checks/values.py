"""Checks of single values: counts, numbers, choices, keys.

Every message names the function and the argument, says what was expected and what came, and what
to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.checks import not_arrays

LARGEST_CAPACITY = 2**31 - 17
"""Slots are counted in int32, in rows of 16, with one to spare."""

LARGEST_INT = 2**31 - 1

LONGEST = 2**16
"""The most steps that a view reads for one draw."""


def instance(function: str, argument: str, value: Any, kind: type, example: str) -> None:
    """Require an object of a class, not the class itself."""
    if isinstance(value, kind):
        return
    came = type(value).__name__
    if isinstance(value, type):
        came = f"the class {value.__name__}; call it: {value.__name__}(...)"
    raise TypeError(
        f"fbuf.{function}: {argument} must be a {kind.__name__}, such as {example}, got {came}"
    )


def integer(
    function: str, argument: str, value: Any, largest: int = LARGEST_INT, smallest: int = 1
) -> int:
    """Return a static int in `[smallest, largest]`; refuse any other value."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"fbuf.{function}: {argument} is traced, but shapes depend on it; give a Python int "
            f"(in jax.jit, list {argument} in static_argnames)"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"fbuf.{function}: {argument} must be an int, got {value!r}")
    if not smallest <= value <= largest:
        raise ValueError(
            f"fbuf.{function}: {argument} must be from {smallest} to {largest}, got {value}"
        )
    return int(value)


def boolean(function: str, argument: str, value: Any) -> bool:
    """Return a static bool; refuse any other value."""
    if not isinstance(value, bool):
        raise TypeError(f"fbuf.{function}: {argument} must be True or False, got {value!r}")
    return value


def choice(function: str, argument: str, value: Any, allowed: Iterable[str]) -> None:
    """Require one of a few words."""
    if not isinstance(value, str) or value not in (allowed := tuple(allowed)):
        words = ", ".join(map(repr, allowed))
        raise ValueError(f"fbuf.{function}: {argument} must be one of {words}, got {value!r}")


def number(function: str, argument: str, value: Any, largest: float = math.inf) -> None:
    """Require a static Python number from 0 to `largest` that float32 can hold."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"fbuf.{function}: {argument} is traced, but it is static; give a Python number"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"fbuf.{function}: {argument} must be a Python number, got {value!r}")
    if not (value <= largest and is_float32(value)):
        raise ValueError(f"fbuf.{function}: {argument} must be {_range(largest)}, got {value!r}")


def names(function: str, argument: str, value: Any) -> None:
    """Require None, or a tuple of names of fields."""
    if value is None:
        return
    if not isinstance(value, tuple) or not value or not all(isinstance(n, str) for n in value):
        raise TypeError(
            f"fbuf.{function}: {argument} must be a tuple of names, such as ('observation',), got "
            f"{value!r}; leave it out for the whole item"
        )


def name(function: str, argument: str, value: Any) -> None:
    """Require the name of a field."""
    if isinstance(value, str):
        return
    said = f"fbuf.{function}: {argument} must be the name of a field, a str, got {value!r}"
    if isinstance(value, tuple) and value and all(isinstance(part, str) for part in value):
        dotted = ".".join(value)
        said += f"; write a nested name with dots: {dotted!r}"
    raise TypeError(said)


def name_or_none(function: str, argument: str, value: Any) -> None:
    """Require the name of a field, or None."""
    if value is not None:
        name(function, argument, value)


def scalar(
    function: str, argument: str, value: Any, largest: float = math.inf
) -> jax.Array | float | None:
    """Return a number of a call: None, a number from 0 to `largest`, or a traced scalar."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.ndarray | np.generic | jax.Array
    ):
        raise TypeError(
            f"fbuf.{function}: {argument} must be a number or a scalar array, got {value!r}"
        )
    if jnp.shape(value) != () or not is_real(jnp.result_type(value)):
        raise ValueError(
            f"fbuf.{function}: {argument} must be one real number for the whole batch, got "
            f"{describe(value)}"
        )
    if not isinstance(value, jax.core.Tracer) and not (
        is_float32(value) and float(value) <= largest
    ):
        raise ValueError(
            f"fbuf.{function}: {argument} must be {_range(largest)}, got {float(value)}"
        )
    return value if isinstance(value, jax.Array) else float(value)


def count(function: str, argument: str, value: Any) -> jax.Array | np.int32 | None:
    """Return a count of a call: None, an int of at least 0, or an integer scalar, maybe traced."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.ndarray | np.generic | jax.Array):
        raise TypeError(
            f"fbuf.{function}: {argument} must be an int or a scalar array, got {value!r}"
        )
    is_int = isinstance(value, int) or jnp.issubdtype(value.dtype, jnp.integer)
    if np.ndim(value) != 0 or not is_int:
        raise ValueError(f"fbuf.{function}: {argument} must be one integer, got {describe(value)}")
    if not isinstance(value, jax.core.Tracer) and not 0 <= int(value) < 2**31:
        raise ValueError(
            f"fbuf.{function}: {argument} must be from 0 to 2**31 - 1, got {int(value)}"
        )
    # The number itself is taken: a NumPy array may change after the call.
    return value.astype(jnp.int32) if isinstance(value, jax.Array) else np.int32(int(value))


def _range(largest: float) -> str:
    return "at least 0, and finite in float32" if largest == math.inf else f"from 0 to {largest}"


def is_float32(value: Any) -> bool:
    """Tell whether a number is at least 0, and neither too large nor too small for float32."""
    number = float(value)
    if number == 0:
        return True
    limits = np.finfo(np.float32)
    return float(limits.tiny) <= number <= float(limits.max)


def key(function: str, value: Any) -> None:
    """Require a random key, of the new kind or the old one."""
    if isinstance(value, jax.Array | np.ndarray):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.shape == ():
            return
        if value.dtype == np.uint32 and value.ndim == 1:
            return
        raise ValueError(
            f"fbuf.{function}: key must be one random key, got {value.dtype} of shape "
            f"{value.shape}; take one of the keys, or use jax.vmap over them"
        )
    raise TypeError(
        f"fbuf.{function}: key must be a random key, such as jax.random.key(0), got {value!r}"
    )


def no_list(function: str, argument: str, value: Any) -> None:
    """Refuse None, and a list or tuple, of which JAX would make many arrays."""
    if value is None:
        raise TypeError(f"fbuf.{function}: {argument} must be an array, got None")
    if isinstance(value, list | tuple):
        raise TypeError(
            f"fbuf.{function}: {argument} must be an array, got a {type(value).__name__}; use "
            "jnp.array(...)"
        )


_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)


def array(function: str, argument: str, value: Any) -> None:
    """Require a value that JAX takes unchanged: no tensor, no object, no number that it narrows."""
    name = f"fbuf.{function}: {argument}"
    if type(value).__module__.partition(".")[0] == "torch":
        raise TypeError(
            f"{name} is a torch tensor; use fbuf_adapters.pytorch (add_from_torch, from_torch)"
        )
    if not isinstance(value, _NUMBERS):
        table = not_arrays.of_table(argument, value)
        instead = "" if table is None else f"; give {table}"
        raise TypeError(f"{name} must be an array, got {type(value).__name__}{instead}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; give value.data")
    if isinstance(value, int):
        # JAX makes the names of its options at run time.
        x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
        if not x64 and not -(2**31) <= value < 2**32:
            raise ValueError(f"{name} is {value}, which no 32-bit integer can hold")
        return
    if not isinstance(value, np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return
    dtype = value.dtype
    if isinstance(dtype, np.dtype) and dtype.name.startswith("float6_"):
        # Only JAX from 0.11 on has them.
        raise TypeError(
            f"{name} is of dtype {dtype}, and a buffer stores no numbers of 6 bits; give "
            "float8_e4m3fn"
        )
    if isinstance(dtype, np.dtype) and (dtype.kind in "OSUVMm" and not _is_extended(dtype)):
        instead = not_arrays.of_object(argument) if dtype.kind == "O" else "numbers"
        raise TypeError(f"{name} is of dtype {dtype}, which JAX has no arrays of; give {instead}")
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise TypeError(
            f"{name} is {dtype}, in the byte order of another machine; give "
            "value.astype(value.dtype.newbyteorder('='))"
        )
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return  # JAX narrows no such value
    if dtype.itemsize >= 8:
        kept = jax.dtypes.canonicalize_dtype(dtype)
        if kept != dtype:
            raise TypeError(
                f"{name} is {dtype}, and JAX would silently make it {kept} because its 64-bit "
                f"types are off; for a buffer of {kept} use .astype({str(kept)!r}), for one of "
                f"{dtype} jax.config.update('jax_enable_x64', True)"
            )


def _is_extended(dtype: Any) -> bool:
    """Tell whether JAX has numbers of a dtype that NumPy has as bytes, such as bfloat16."""
    return jnp.issubdtype(dtype, jnp.number) and dtype.name not in ("int1", "uint1")


def is_real(dtype: Any) -> bool:
    """Tell whether numbers of a dtype are real."""
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def describe(value: Any) -> str:
    """Return the dtype and the shape of a value, for messages."""
    return f"{jnp.result_type(value)} of shape {jnp.shape(value)}"
