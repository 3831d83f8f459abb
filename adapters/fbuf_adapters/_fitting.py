"""Whether a buffer was made for the rows that a collector has."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import fbuf

MAKE = "fbuf.init(collector.item, capacity, **collector.options)"
"""How to make one, for errors."""


def check_fits(where: str, state: Any, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse what is no `fbuf.State`, and one for other rows or environments; as `check_rows`."""
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
        where: How messages begin.
        state: The buffer, or the part of it that knows what it stores.
        fields: What there is to store, by name: trees of `jax.ShapeDtypeStruct`.
        options: What it had to be given beside the item.
        num_envs: How many environments it is for.
        make: How to make it.

    Raises:
        ValueError: If it is one for something else.
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
