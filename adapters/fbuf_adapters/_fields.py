"""The fields of a collector's rows: blank ones, and whether a buffer is made for all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.adapter_api import check

MAKE = "fbuf.init(collector.item, capacity, **collector.options)"
"""The call that makes a buffer, for errors."""


def blank_specs(owner: str, blank: Any) -> dict[str, Any]:
    """Return one row of the blank fields: trees of `jax.ShapeDtypeStruct`.

    Args:
        owner: The collector, for errors.
        blank: The user's argument: a dict of trees of arrays, of one row, or None.

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
    """Return the filled fields and the blank ones.

    Raises:
        ValueError: If a field is both.
    """
    for name in blank.keys() & {*fields, "terminated", "truncated"}:
        raise ValueError(
            f"{owner}: blank has a field {name!r}, which is filled already; leave it out of blank, "
            "or call it something else"
        )
    return {**fields, **blank}


def blank_rows(blank: dict[str, Any], lead: tuple[int, ...], xp: Any) -> dict[str, Any]:
    """Return zeros `[*lead, ...]` for blank fields, made by `numpy` or `jax.numpy`."""
    return jax.tree.map(lambda spec: xp.zeros((*lead, *spec.shape), spec.dtype), blank)


def check_state(where: str, state: Any, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse objects that are no `fbuf.State`, and states for other rows; see `check_rows`."""
    if not isinstance(state, fbuf.State):
        raise TypeError(
            f"{where}: state must be a fbuf.State, got {type(state).__name__}; make it with {MAKE}"
        )
    check_rows(where, state, fields, options, state.ring.num_envs, MAKE)


def check_rows(
    where: str,
    state: fbuf.State[Any],
    fields: dict[str, Any],
    options: dict[str, Any],
    num_envs: int | None,
    make: str,
) -> None:
    """Refuse a buffer for other rows or environments, and say how to make one.

    Args:
        where: The beginning of messages.
        state: The buffer, or the part of it that knows its rows.
        fields: The collector's fields, by name: trees of `jax.ShapeDtypeStruct`.
        options: The arguments that the buffer needs beside the item.
        num_envs: The number of its environments.
        make: The call that makes such a buffer.

    Raises:
        ValueError: If the rows or environments differ.
    """
    for name, wanted in options.items():
        found = num_envs if name == "num_envs" else getattr(state.ring, name)
        if found != wanted:
            raise ValueError(
                f"{where}: the buffer was made with {name}={found!r}, and the environments need "
                f"{name}={wanted!r}; make it with {make}"
            )
    item: Any = state.storage.item
    if not isinstance(item, dict):
        raise ValueError(
            f"{where}: the buffer's item is a {type(item).__name__}, and rows are dicts; make it "
            f"with {make}"
        )
    for name, stored in item.items():
        if name not in fields:
            raise ValueError(
                f"{where}: the buffer's item has a field {name!r}, which nobody fills; there are "
                f"{', '.join(fields)}. Have the policy return it beside the action, (action, "
                f"{{{name!r}: ...}}), name it in the collector's blank= if you write it later, or "
                "leave it out of the item"
            )
        if _form(stored) != _form(fields[name]):
            raise ValueError(
                f"{where}: the field {name!r} is {fields[name]}, and the buffer stores {stored}; "
                f"make it with {make}"
            )
    if state.next_obs is not None and state.next_obs.field != "observation":
        raise ValueError(
            f"{where}: the buffer was made with next_of={state.next_obs.field!r}; make it with "
            "next_of='observation'"
        )


def _form(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves]
