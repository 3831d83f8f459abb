"""A list of items, made into a batch of them."""

from __future__ import annotations

from typing import Any

import jax
import torch

from fbuf_adapters.pytorch.crossing._containers import is_tensordict
from fbuf_adapters.pytorch.crossing._error import InteropError, describe


def stacked(where: str, items: list[Any], item: Any, lead: int, axis: int) -> Any:
    """The items of a list side by side; or the list itself, if it is a tree of leaves `[B, ...]`.

    Args:
        where: The caller, for messages.
        items: The list that was given for a batch.
        item: One item, of `jax.ShapeDtypeStruct`; None if it is not known yet.
        lead: How many axes come before those of an item in the leaves of a batch.
        axis: The axis to put the items on.

    Raises:
        InteropError: If the list is empty, if it may be either, or if its items differ.
    """
    if not items:
        raise InteropError(f"{where} items is an empty list; give at least one item")
    if not all(map(is_tensordict, items)):
        trees = [jax.tree.structure(one) for one in items]
        if item is not None and jax.tree.structure(items) == jax.tree.structure(item):
            return items
        same = all(tree == trees[0] for tree in trees)
        if item is None and (not same or not _alike(items)):
            return items
        if item is None and _is_batch(items, lead):
            raise InteropError(
                f"{where} items is a list: of {len(items)} single items, or of the leaves of one "
                "batch; stack single items, or make the buffer with item=, an example of one"
            )
        if item is not None and not (same and trees[0] == jax.tree.structure(item)):
            return items  # whose tree is another one than that of the item
    return side_by_side(where, "items", items, axis)


def refuse_inner_lists(where: str, items: Any) -> None:
    """Refuse a tree in which a list of equal tensors stands for a leaf of a batch.

    It is asked of what comes first: once the item is known, the trees are compared.
    """
    if type(items) is tuple and _several(items):
        raise InteropError(
            f"{where} items is a tuple of {len(items)} alike, which may be so many items, or one "
            "tree; stack the items, or give the buffer its item when you make it"
        )
    is_list = lambda node: node is not items and _several(node)
    for path, node in jax.tree.leaves_with_path(items, is_leaf=is_list):
        if _several(node):
            raise InteropError(
                f"{where} items{jax.tree_util.keystr(path)} is a list of {len(node)} tensors of "
                "one shape, which would be as many leaves of one row; use torch.stack, or give the "
                "buffer its item when you make it"
            )


def _several(node: Any) -> bool:
    """Tell a list, or the items in a tuple, that are steps and no fields."""
    if type(node) not in (list, tuple) or len(node) < 2:
        return False
    if type(node) is tuple and not all(isinstance(one, dict) for one in node):
        return False
    trees = [jax.tree.structure(one) for one in node]
    return all(tree == trees[0] for tree in trees) and _alike(list(node))


def side_by_side(where: str, argument: str, items: list[Any], axis: int) -> Any:
    """Trees of tensors, leaf by leaf on a new axis."""

    def stack(path: Any, *leaves: Any) -> torch.Tensor:
        for number, leaf in enumerate(leaves):
            name = f"{where} {argument}[{number}]{jax.tree_util.keystr(path)}"
            if not isinstance(leaf, torch.Tensor):
                raise InteropError(
                    f"{name} ({describe(leaf)}) is not a tensor; use torch.as_tensor"
                )
            if leaf.shape != leaves[0].shape or leaf.dtype != leaves[0].dtype:
                raise InteropError(
                    f"{name} ({describe(leaf)}) differs from the same leaf of the first item "
                    f"({describe(leaves[0])}); give items of the same shapes and dtypes"
                )
        return torch.stack(leaves, axis)

    if all(map(is_tensordict, items)):
        try:
            return torch.stack(items, axis).contiguous()  # type: ignore (TensorDicts can be stacked)
        except (RuntimeError, KeyError, ValueError) as error:
            raise InteropError(
                f"{where} {argument} are TensorDicts that cannot be stacked: {error}; give items "
                "of one form"
            ) from error
    try:
        return jax.tree_util.tree_map_with_path(stack, *items)
    except ValueError as error:
        raise InteropError(
            f"{where} {argument} is a list of different trees ({error}); give items of one form"
        ) from error


def _alike(items: list[Any]) -> bool:
    """Whether leaves of the same place have the same shape in all items."""
    shapes = [[getattr(leaf, "shape", None) for leaf in jax.tree.leaves(one)] for one in items]
    return all(one == shapes[0] for one in shapes)


def _is_batch(tree: Any, lead: int) -> bool:
    """Whether all leaves begin with the same axes."""
    found = {tuple(getattr(leaf, "shape", ()))[:lead] for leaf in jax.tree.leaves(tree)}
    return len(found) == 1 and len(found.pop()) == lead
