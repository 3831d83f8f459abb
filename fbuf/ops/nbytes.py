"""Computing the size of a buffer before it is made."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from fbuf.checks import sizes
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.ops.init import init
from fbuf.state import State


def nbytes(item: Any, capacity: int | None = None, **options: Any) -> int:
    """Count the bytes that `fbuf.init` would allocate, without allocating them.

    Args:
        item: As for `fbuf.init`; or a buffer, alone, to count its own bytes.
        capacity: As for `fbuf.init`.
        options: All options of `fbuf.init`.

    Returns:
        The size of the whole state, in bytes.

    Raises:
        ValueError: As `fbuf.init`.
        TypeError: As `fbuf.init`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> frame = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
        >>> f"{fbuf.nbytes(frame, 1_000_000) / 2**30:.1f} GiB"
        '26.3 GiB'
        >>> fbuf.nbytes(frame, 1_000, num_envs=10, sampler=fbuf.Prioritized())
        28229572
        >>> fbuf.nbytes(fbuf.init(jnp.zeros(4), capacity=1_000))
        17220
    """
    if isinstance(item, State):
        if capacity is not None or options:
            raise TypeError("fbuf.nbytes: give a buffer alone, without capacity and options")
        return sizes.nbytes(item)
    arguments_of_init("nbytes", item, capacity, options)
    specs = parse.item_specs("nbytes", item)
    capacity = check.integer("nbytes", "capacity", capacity, check.LARGEST_CAPACITY)
    state = jax.eval_shape(lambda: init(specs, capacity, **options))
    return sizes.nbytes(state)


def arguments_of_init(
    function: str, item: Any, capacity: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return all arguments of `init` by name; refuse unknown options."""
    if capacity is None:
        raise TypeError(
            f"fbuf.{function}: capacity is missing: the number of rows to make room for"
        )
    try:
        given = inspect.signature(init).bind(item, capacity, **options)
    except TypeError as error:
        raise TypeError(f"fbuf.{function}: {error}") from None
    given.apply_defaults()
    return given.arguments
