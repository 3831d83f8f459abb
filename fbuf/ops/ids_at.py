"""Naming rows by their slots."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import read_before_write
from fbuf.dispatch.call import operation
from fbuf.state import State
from fbuf.storage.ids import Ids, live_ids
from fbuf.xla.varying import varying


def _integers(function: str, argument: str, value: Any) -> Any:
    """Return slots as an array: int32 of NumPy, checked, or an array of JAX of any integers."""
    name = f"fbuf.{function}: {argument}"
    if isinstance(value, list | tuple):
        traced = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
        try:
            value = (jnp if traced else np).asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise TypeError(
                f"{name} must be integers of one shape, such as [0, 2]: {error}"
            ) from None
        value = value if value.size else value.astype(np.int32)  # an empty list has no dtype
    elif isinstance(value, int):
        value = np.asarray(value)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
    if not is_array or isinstance(value, np.ma.MaskedArray):
        check.array(function, argument, value)  # its message on tensors and masks is better
        raise TypeError(f"{name} must be integers, got {type(value).__name__}")
    if value.dtype == bool:
        raise TypeError(f"{name} must be integers, got bool; for a mask give np.flatnonzero(mask)")
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got {value.dtype}; cast them with astype")
    if isinstance(value, jax.Array) or value.dtype == np.int32:
        return value
    if value.size and not -(2**31) <= int(value.min()) <= int(value.max()) < 2**31:
        worst = int(value.min() if value.min() < -(2**31) else value.max())
        raise ValueError(f"{name} is {worst}, which int32 cannot hold; a slot is below capacity")
    return value.astype(np.int32)


@operation(checks={"slots": _integers}, typed=("slots",))
def ids_at(state: State[Any], slots: Array) -> Ids:
    """Name the rows that lie in these slots now.

    It is for programs that know only slots. The ids of a batch are better: they never name a later
    row in the slot of a drawn one.

    Args:
        state: The buffer; never consumed.
        slots: Integers of any shape: an array of JAX or of NumPy, a list, or a number.

    Returns:
        Their ids, shaped like `slots`. A slot outside the buffer, an unwritten slot, and the slot
        of a removed row give an id that names no row (slot -1).

    Raises:
        TypeError: If `slots` are no integers.
        ValueError: If one of NumPy's or Python's is no int32.
        RuntimeError: If `state` has been consumed.

    Cost: O(B) for B slots.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> fbuf.ids_at(state, jnp.array([0, 2, 3])).slot
        Array([ 0,  2, -1], dtype=int32)
    """
    slots = jnp.asarray(slots)
    if slots.dtype != jnp.int32:
        if slots.dtype.itemsize >= 4:  # the cast could wrap a slot into the range
            outside = (slots < 0) | (slots >= state.capacity)
            slots = jnp.where(outside, state.capacity, slots)
        slots = slots.astype(jnp.int32)
    ids = live_ids(state.ring, varying(slots, state.fault))
    read_before_write.note_read(state, ids.slot)
    return ids
