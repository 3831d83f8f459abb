"""Every tensor in whatever a user's transform returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import jax
import torch

Change = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(tree: Any, change: Change, moved_to: torch.device | None = None) -> Any:
    """Change all tensors of a tree, and leave everything else as it is.

    It goes through JAX's pytrees, dicts of any kind, plain dataclasses, and TensorDicts. The device
    that a container names is set anew only if its tensors have moved. Objects of other kinds stay
    as they are.
    """
    device = {} if moved_to is None else {"device": moved_to}

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if _is_tensordict(leaf):
            return leaf.apply(visit, **device)
        if isinstance(leaf, MutableMapping):  # dict and its kind, whatever their keys
            changed = copy.copy(leaf)
            changed.update({key: map_tensors(leaf[key], change, moved_to) for key in leaf})
            return changed
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            values = {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if f.init}
            return dataclasses.replace(leaf, **map_tensors(values, change, moved_to))
        return leaf

    return jax.tree.map(visit, tree, is_leaf=lambda node: isinstance(node, MutableMapping))


def _is_tensordict(leaf: Any) -> bool:
    """Whether it is one, or a class of tensors; asked so that nobody needs to have the package."""
    return hasattr(leaf, "batch_size") and callable(getattr(leaf, "apply", None))
