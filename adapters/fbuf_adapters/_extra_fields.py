"""Fields that rows have from the start, and that the learner writes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.checks import values as check


def blank_specs(owner: str, blank: Any) -> dict[str, Any]:
    """One row of these fields: trees of `jax.ShapeDtypeStruct`.

    Args:
        owner: Who collects, for errors.
        blank: What the user gave: a dict of trees of arrays, of one row, or None.

    Raises:
        TypeError: If it is something else.
    """
    if blank is None:
        return {}
    if not isinstance(blank, dict):
        raise TypeError(
            f"{owner}: blank must be a dict of fields of one row, such as "
            f"{{'advantage': np.float32(0)}}, got a {type(blank).__name__}"
        )

    def spec(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        check.array(owner, "blank" + jax.tree_util.keystr(path), leaf)
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.result_type(leaf))

    return jax.tree_util.tree_map_with_path(spec, blank)


def with_blank(owner: str, fields: dict[str, Any], blank: dict[str, Any]) -> dict[str, Any]:
    """The fields that are filled, and those that are not.

    Raises:
        ValueError: If one is both.
    """
    for name in blank.keys() & {*fields, "terminated", "truncated"}:
        raise ValueError(
            f"{owner}: blank has a field {name!r}, which is filled already; leave it out of blank, "
            "or call it something else"
        )
    return {**fields, **blank}
