"""Fields of an item by name, whatever kind of tree it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from fbuf import _nexts, _storage
from fbuf._state import State
from fbuf._storage import Storage

Fields = tuple[str, ...] | None
"""The names of the fields to gather; None is the whole item."""


def check(view: str, fields: Any) -> None:
    """Refuse what are no names."""
    if fields is None:
        return
    if not isinstance(fields, tuple) or not fields or not all(isinstance(f, str) for f in fields):
        raise TypeError(
            f"fbuf.{view}: fields must be a tuple of names, such as ('observation',), got "
            f"{fields!r}; leave it out for the whole item"
        )


def read(view: str, argument: str, storage: Storage[Any], slots: jax.Array, name: str) -> Any:
    """One field of the rows at int32 slots `[...]`: its tree, leaves `[..., *shape]`."""
    leaves, tree = jax.tree.flatten(_storage.find(view, argument, storage, name))
    return jax.tree.unflatten(tree, _storage.read_leaves(storage, slots, leaves))


def rows(
    view: str,
    storage: Storage[Any],
    slots: jax.Array,
    fields: Fields,
    instead: Mapping[int, jax.Array] | None = None,
) -> Any:
    """The rows at int32 slots `[...]`, leaves `[..., *shape]`: whole, or some fields of them.

    Args:
        view: Who asks, for the message if there is no such field.
        storage: The rows.
        slots: Where.
        fields: None for the item's own tree; names for a dict of these fields.
        instead: Leaves by number that are not read, but taken from here.
    """
    if fields is None:
        wanted: Any = jax.tree.unflatten(storage.tree, list(range(len(storage.fields))))
    else:
        wanted = {name: _storage.find(view, "fields", storage, name) for name in fields}
    numbers, tree = jax.tree.flatten(wanted)
    found = dict(instead or {})
    missing = [number for number in numbers if number not in found]
    found.update(zip(missing, _storage.read_leaves(storage, slots, missing), strict=True))
    return jax.tree.unflatten(tree, [found[number] for number in numbers])


def read_next(
    view: str, state: State[Any], slots: jax.Array, flags: jax.Array, next_of: str
) -> tuple[Any, jax.Array]:
    """What rows at int32 slots `[B]` with these flags led to, and whether that is known."""
    nexts = state.nexts
    if nexts is None or nexts.field != next_of:
        made = "without it" if nexts is None else f"with next_of={nexts.field!r}"
        raise ValueError(
            f"fbuf.{view}: next_of is {next_of!r}, but the buffer was made {made}; make it with "
            f"fbuf.init(..., next_of={next_of!r}), and give next_observation to fbuf.add"
        )
    return _nexts.read(nexts, state.storage, state.ring, slots, flags)


def specs(storage: Storage[Any], numbers: Any) -> Any:
    """What the leaves of a tree of numbers are: the same tree, of `jax.ShapeDtypeStruct`."""

    def spec(number: int) -> jax.ShapeDtypeStruct:
        field = storage.fields[number]
        return jax.ShapeDtypeStruct(field.shape, field.dtype)

    return jax.tree.map(spec, numbers)
