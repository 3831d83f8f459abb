"""Registration of states with flax, if the program has flax; nothing is imported here.

flax saves what is registered with it, by exact type, and takes a pytree's class for a leaf
otherwise. So `fbuf.init` registers the state where flax is loaded by then.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.storage import tags


def register(kind: type[Any]) -> None:
    """Let `flax.serialization` save and restore a pytree class. Call it often: it costs nothing."""
    serialization: Any = sys.modules.get("flax.serialization")
    if serialization is not None and not serialization.is_serializable(kind):
        serialization.register_serialization_state(kind, _to_state_dict, _from_state_dict)


def _to_state_dict(tree: Any) -> dict[str, Any]:
    return _named(tree)[0]


def _from_state_dict(target: Any, saved: dict[str, Any]) -> Any:
    """Return the arrays of `saved` in the tree of `target`; only its shapes and dtypes count."""
    expected, structure = _named(target)
    if saved.keys() != expected.keys():
        different = sorted(saved.keys() ^ expected.keys())
        raise ValueError(f"{_refusal(target)} They differ in {', '.join(different)}")
    restored: list[jax.Array] = []
    for name, like in expected.items():
        value = np.asarray(saved[name])
        if name == "ring.cursor" and value.shape[-2:-1] == (tags.ROW,):  # of an older version
            value = tags.renewed(value)
        if value.shape != like.shape or value.dtype != like.dtype:
            raise ValueError(
                f"{_refusal(target)} {name} was saved as {value.dtype} of shape {value.shape}, "
                f"and here it is {like.dtype} of shape {like.shape}"
            )
        array = jnp.array(value)  # a copy: the memory of `saved` belongs to flax
        restored.append(jax.device_put(array, like.sharding) if _is_placed(like) else array)
    return jax.tree.unflatten(structure, restored)


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """Return the leaves by their path, as `ring.flags` or `storage.wide.0`, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    names = [re.sub(r"\[(\d+)\]", r".\1", name) for name in names]
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}, structure


def _is_placed(like: Any) -> bool:
    return isinstance(like, jax.Array) and not isinstance(like, jax.core.Tracer)


def _refusal(target: Any) -> str:
    return (
        f"fbuf: flax was given a {type(target).__name__} to restore into that is not like the "
        "saved one; make it with the same item, capacity and options."
    )
