"""The item of a buffer, learned from what is added first."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import torch

from fbuf_adapters.pytorch.crossing import _dtypes
from fbuf_adapters.pytorch.crossing._error import InteropError, describe


@dataclasses.dataclass(frozen=True)
class Learned:
    """The known form of a buffer's items.

    Attributes:
        item: A tree of `jax.ShapeDtypeStruct`, as it is stored.
        given: The same tree of torch's dtypes, as it was given: of integers 64 bits, for instance.
    """

    item: Any
    given: Any

    @functools.cached_property
    def first_ndim(self) -> int:
        """The number of axes of its first leaf."""
        return jax.tree.leaves(self.item)[0].ndim

    def has_axes(self, items: Any, lead: int) -> bool:
        """Tell whether the first leaf of items has `lead` axes before its own; True if unknown."""
        leaf, spec = items, self.item
        while type(leaf) is dict and leaf:
            name, leaf = next(iter(leaf.items()))
            spec = spec.get(name) if type(spec) is dict else None
        if not isinstance(leaf, torch.Tensor) or spec is None:
            leaf, spec = next(iter(jax.tree.leaves(items)), None), jax.tree.leaves(self.item)[0]
        return not isinstance(leaf, torch.Tensor) or leaf.ndim == lead + len(spec.shape)

    def check_axes(self, where: str, argument: str, items: Any, lead: int, batch: bool) -> None:
        """Raise if what is no batch looks like one, or the other way round.

        `lead` axes should come before those of an item.
        """
        if jax.tree.structure(items) != jax.tree.structure(self.item):
            return
        more: set[int] = set()
        for leaf, spec in zip(jax.tree.leaves(items), jax.tree.leaves(self.item), strict=True):
            shape, ndim = tuple(getattr(leaf, "shape", ())), len(spec.shape)
            if len(shape) < ndim or shape[len(shape) - ndim :] != spec.shape:
                return  # about which `fbuf.add` says more
            more.add(len(shape) - ndim - lead)
        (first, *_) = jax.tree.leaves_with_path(items)
        name = f"{where} {argument}{jax.tree_util.keystr(first[0])} ({describe(first[1])})"
        if more == {1} and not batch:
            raise InteropError(
                f"{name} has one axis more than it should: this looks like a batch; use extend()"
            )
        if more == {-1} and batch:
            raise InteropError(
                f"{name} has no axis for the items: this looks like one item; use add()"
            )

    def check_tree(self, where: str, argument: str, items: Any) -> None:
        """Raise if a tree is another one than that of the item."""
        wanted = jax.tree.structure(self.item)
        if jax.tree.structure(items) == wanted:
            return
        keys, known = _paths(items), _paths(self.item)
        changes = [f"{argument}{key} is new" for key in keys if key not in known]
        changes += [f"{argument}{key} is missing" for key in known if key not in keys]
        what = ", ".join(changes) or f"got {jax.tree.structure(items)}, wanted {wanted}"
        raise InteropError(f"{where} {argument} must have the same tree as before: {what}")


def learn(where: str, tree: Any, axes: int = 0, given: Any = None) -> Learned:
    """Take shapes and dtypes from a tree of arrays, tensors or specs with `axes` leading axes.

    `given` is the same tree before it was made ready for JAX.
    """
    leaves, structure = jax.tree.flatten(tree)
    paths = list(_paths(tree))
    item: list[jax.ShapeDtypeStruct] = []
    dtypes: list[torch.dtype] = []
    for path, leaf, as_given in zip(
        paths, leaves, leaves if given is None else jax.tree.leaves(given), strict=True
    ):
        try:
            shape, dtype = tuple(leaf.shape), as_given.dtype
        except AttributeError:
            raise InteropError(
                f"{where} item{path} ({describe(leaf)}) is neither a tensor nor an array; make it "
                "one with torch.as_tensor"
            ) from None
        if len(shape) < axes:
            raise InteropError(
                f"{where} item{path} ({describe(leaf)}) lacks the leading axis of the items or of "
                "the environments; add it, or call add() for one item"
            )
        if not isinstance(dtype, torch.dtype):
            dtype = _dtypes.to_torch(dtype)
        item.append(jax.ShapeDtypeStruct(shape[axes:], _dtypes.stored(dtype)))
        dtypes.append(dtype)
    return Learned(structure.unflatten(item), structure.unflatten(dtypes))


def _paths(tree: Any) -> dict[str, None]:
    """The paths of all leaves, in order."""
    return dict.fromkeys(jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree))


def example(learned: Learned) -> Any:
    """Return the item as tensors in the dtypes of the caller, which take almost no memory."""
    return jax.tree.map(
        lambda spec, dtype: torch.zeros((), dtype=dtype).expand(spec.shape),
        learned.item,
        learned.given,
    )
