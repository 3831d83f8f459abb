"""Fields of an item by name, whatever kind of tree it is."""

from __future__ import annotations

from typing import Any

import jax

from fbuf import _storage
from fbuf._storage import Storage


def read(view: str, argument: str, storage: Storage[Any], slots: jax.Array, name: str) -> Any:
    """One field of the rows at int32 slots `[...]`: its tree, leaves `[..., *shape]`."""
    leaves, tree = jax.tree.flatten(_storage.find(view, argument, storage, name))
    return jax.tree.unflatten(tree, _storage.read_leaves(storage, slots, leaves))
