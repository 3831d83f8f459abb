"""The leaves that are stored of a TensorDict, and their way back to the given dtypes."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import torch
from tensordict import (
    TensorDict,
    TensorDictBase,
    # TensorDict exports it, but does not mark it as public for type checkers.
    is_leaf_nontensor,  # pyright: ignore[reportPrivateUsage]
)

import fbuf
from fbuf_adapters.pytorch import InteropError
from fbuf_adapters.pytorch.crossing import _dtypes
from fbuf_adapters.pytorch.crossing._containers import Nodes, Path
from fbuf_adapters.pytorch.crossing._unpack import free

Leaves = dict[Path, torch.Tensor]
"""Tensors by key."""

ADDED = ("index", "index_generation", "_weight", "priority_weight")
"""Keys that a batch has beside the stored ones."""

WIDE = (torch.float64, torch.complex128)
"""Dtypes that JAX would narrow. Their bits are stored instead, in words of 32 bits."""


@dataclasses.dataclass(frozen=True)
class Form:
    """The dtypes and batch dimensions of items, as users give them.

    Attributes:
        dtypes: The dtype of each leaf.
        dims: The batch dimensions within one item.
        nodes: The batch dimensions of the TensorDicts in an item; None if they are not known yet.
        is_stored: Whether the dtypes are those of stored rows, which nobody gave yet. The first
            rows may then have dtypes that are stored as these.
    """

    dtypes: dict[Path, torch.dtype]
    dims: torch.Size
    nodes: Nodes | None = None
    is_stored: bool = False


def form_of(item: Any, begins: str) -> Form:
    """Return the form of items that are stored as this tree of arrays; errors begin like this."""
    leaves = jax.tree.leaves_with_path(item)
    if not isinstance(item, dict) or any(not hasattr(k, "key") for path, _ in leaves for k in path):
        raise InteropError(
            f"{begins} has items that are not dicts of dicts: {item}; use "
            "fbuf_adapters.pytorch.ReplayBuffer"
        )
    return Form(
        {tuple(k.key for k in path): _dtypes.to_torch(leaf.dtype) for path, leaf in leaves},
        torch.Size(),
        is_stored=True,
    )


def path_of(key: str | tuple[Any, ...]) -> Path:
    """Return the parts of a key. Keys of TensorDict may be tuples in tuples."""
    if isinstance(key, str):
        return (key,)
    return tuple(part for inner in key for part in path_of(inner))


def leaves_of(where: str, data: TensorDictBase, form: Form | None) -> Leaves:
    """Return the leaves to be stored, by key; raise if a buffer of this form cannot store one."""
    leaves: Leaves = {}
    is_stored = form is not None and form.is_stored
    whole = data if type(data) is TensorDict else data.contiguous()  # such as a lazy stack
    for key, leaf in whole.items(True, True, is_leaf=is_leaf_nontensor):
        path = key if isinstance(key, tuple) else (key,)
        if path[0] in ADDED:
            continue
        known = None if form is None else form.dtypes.get(path)
        wrong = None
        if not isinstance(leaf, torch.Tensor):
            wrong = "is no tensor; leave it out"
        elif leaf.requires_grad:
            wrong = "requires grad, which JAX does not track; use .detach()"
        elif known not in (None, leaf.dtype) and not (is_stored and _fits(leaf, known)):
            wrong = f"is {leaf.dtype}, but was {known} in the first call; use .to({known})"
        if wrong is not None:
            raise InteropError(f"{where}: data[{key!r}] {wrong}")
        leaves[path] = leaf
    return leaves


def _fits(leaf: torch.Tensor, stored: torch.dtype) -> bool:
    """Return whether the numbers of a leaf are stored in a dtype, such as int64 in int32."""
    return leaf.dtype not in WIDE and _dtypes.to_torch(_dtypes.stored(leaf.dtype)) == stored


def moves_bits(view: Any) -> bool:
    """Return whether a view only moves rows, and never reads their values."""
    return isinstance(view, fbuf.Item) or (isinstance(view, fbuf.Sequence) and view.state is None)


def words(leaves: Leaves) -> Leaves:
    """Return the leaves with 64-bit floats as words of 32 bits, so that no bit is lost."""
    return {
        key: leaf.contiguous().unsqueeze(-1).view(torch.int32) if leaf.dtype in WIDE else leaf
        for key, leaf in leaves.items()
    }


def nested(leaves: Leaves) -> dict[str, Any]:
    """Return leaves by key as dicts in dicts, one level for each part of a key."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def plain(node: Any) -> Any:
    """Return the result of a view as dicts in dicts, without the fields that are None."""
    if dataclasses.is_dataclass(node):
        given = [f.name for f in dataclasses.fields(node) if not f.metadata.get("static")]
        node = {name: getattr(node, name) for name in given}
    if isinstance(node, dict):
        parts = cast("dict[str, Any]", node).items()
        return {key: plain(value) for key, value in parts if value is not None}
    return node


def restored(node: Any, form: Form, path: Path = ()) -> Any:
    """Return the leaves of an item in the dtypes of the given items."""
    if isinstance(node, dict):
        parts = cast("dict[str, Any]", node).items()
        return {key: restored(value, form, (*path, key)) for key, value in parts}
    dtype = form.dtypes.get(path)
    if dtype is None and path:  # a view of some fields names a nested one "a.b"
        dtype = form.dtypes.get((*path[0].split("."), *path[1:]))
    if dtype in (None, node.dtype):
        return node
    return free(node.view(dtype).squeeze(-1)) if dtype in WIDE else node.to(dtype)
