"""What views that deal with rewards have in common."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from fbuf import _storage
from fbuf._storage import Storage
from fbuf.views import _fields


def check_gamma(view: str, gamma: Any) -> None:
    """Refuse what is no discount."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"fbuf.{view}: gamma must be a Python number, got {gamma!r}")
    if not (math.isfinite(gamma) and 0 <= gamma <= 1):
        raise ValueError(f"fbuf.{view}: gamma must be from 0 to 1, got {gamma}")


def leaf(view: str, storage: Storage[Any], name: str) -> int:
    """The number of the leaf that holds the reward, which must be one real number."""
    number: Any = _storage.find(view, "reward", storage, name)
    if isinstance(number, int):
        field = storage.fields[number]
        if field.shape == () and not jnp.issubdtype(field.dtype, jnp.complexfloating):
            return number
    raise ValueError(
        f"fbuf.{view}: reward is {name!r}, which must be one real number in each item, got "
        f"{_fields.specs(storage, number)}; name the field that is"
    )
