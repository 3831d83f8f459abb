"""Items that are no trees of JAX's: TensorDicts and tensorclasses, as dicts and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Path = tuple[str, ...]
"""The keys that lead to a TensorDict in a TensorDict."""

Axes = tuple[tuple[int, ...], tuple[str | None, ...]]
"""The batch size of a TensorDict behind the axes of rows, and the names of these dimensions."""

Nodes = Mapping[Path, Axes]
"""The axes of an item, `()`, and of the TensorDicts in it that have others than the one around."""


@dataclasses.dataclass(frozen=True)
class Container:
    """The form that items have outside of the buffer, which stores dicts.

    Attributes:
        kind: The class of a tensorclass; None for a TensorDict.
        nodes: The axes of the TensorDicts.
    """

    kind: Any
    nodes: Nodes

    def __call__(self, data: Any, lead: torch.Size) -> Any:
        """Make items of dicts of tensors, whose leaves begin with the axes `lead`."""
        made = built(data, lead, self.nodes)
        return made if self.kind is None else self.kind.from_tensordict(made)


def is_tensordict(items: Any) -> bool:
    """Whether it is a TensorDict or a tensorclass."""
    return hasattr(items, "batch_size") and callable(getattr(items, "to_dict", None))


def plain(items: Any) -> Any:
    """Items as a tree of JAX's."""
    return items.to_dict() if is_tensordict(items) else items


def container_of(items: Any, lead: int) -> list[Container]:
    """Return what makes items of dicts, for items with `lead` axes before their own.

    The list is empty if the items are a tree of JAX's.
    """
    if not is_tensordict(items):
        return []
    from tensordict import TensorDictBase  # which whoever gave one has

    kind = None if isinstance(items, TensorDictBase) else type(items)
    return [Container(kind, nodes_of(items, lead))]


def nodes_of(items: Any, lead: int) -> dict[Path, Axes]:
    """Return the axes of a TensorDict and of those in it, behind the first `lead` ones."""
    # TensorDict exports it, but does not mark it as public for type checkers.
    from tensordict import (
        is_leaf_nontensor,  # pyright: ignore[reportPrivateUsage]
        is_tensor_collection,
    )

    found: dict[Path, Axes] = {(): _axes(items, lead)}
    for key, node in items.items(True, False, is_leaf=is_leaf_nontensor):
        if is_tensor_collection(node):
            path = key if isinstance(key, tuple) else (key,)
            found[path] = _axes(node, lead)
    return {path: axes for path, axes in found.items() if not path or axes != found[path[:-1]]}


def built(
    data: Mapping[str, Any],
    lead: Sequence[int],
    nodes: Nodes,
    device: torch.device | None = None,
) -> Any:
    """Return dicts of tensors as TensorDicts with these axes, and without a check of the leaves.

    Args:
        data: The tensors. A key may have dots between its parts, as the name of a field has.
        lead: The first axes of all leaves.
        nodes: The axes behind those. A dict that is not in there has those of the dict around it.
        device: The device to name.
    """
    named: list[tuple[Any, list[str | None]]] = []

    def made(data: Mapping[str, Any], path: Path, key: Path, around: Axes) -> Any:
        size, names = axes = nodes.get(path, around)
        content: dict[str, Any] = {}
        for name, value in data.items():
            if isinstance(value, dict):
                inner = (*path, name)
                if inner not in nodes:
                    inner = (*path, *name.split("."))
                value = made(value, inner, (*key, name), axes)
            content[name] = value
        if any(names):
            named.append((key, [*[None] * len(lead), *names]))
        # No public name of tensordict's leaves the check out: ten microseconds a leaf.
        whole = torch.Size((*lead, *size))
        return TensorDict._new_unsafe(content, whole, device)  # pyright: ignore[reportPrivateUsage]

    from tensordict import TensorDict

    whole = made(data, (), (), ((), ()))
    # A TensorDict that is put into another one loses its names.
    for key, names in reversed(named):
        (whole[key] if key else whole).names = names
    return whole


def _axes(node: Any, lead: int) -> Axes:
    size, names = tuple(node.batch_size[lead:]), tuple(node.names or ())[lead:]
    return size, names if len(names) == len(size) and any(names) else ()


def said(nodes: Nodes) -> list[Any]:
    """Return axes as lists, numbers and strings, which any file can hold."""
    return [[list(path), list(size), list(names)] for path, (size, names) in nodes.items()]


def heard(nodes: Sequence[Any]) -> dict[Path, Axes]:
    """Return the axes that `said` was given."""
    return {tuple(path): (tuple(size), tuple(names)) for path, size, names in nodes}


def described(data: Any) -> tuple[list[int], dict[str, Any], list[Any]]:
    """Return a TensorDict as what `torch.load` reads by default: its size, content, and axes."""
    return list(data.batch_size), data.to_dict(), said(nodes_of(data, 0))


def restored(described: Sequence[Any], device: torch.device | None = None) -> Any:
    """Return the TensorDict that was described; older ones lack the axes."""
    size, content, *nodes = described
    return built(content, *(((), heard(nodes[0])) if nodes else (size, {})), device)
