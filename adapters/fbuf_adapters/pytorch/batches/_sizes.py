"""Batches of any length, brought to a few sizes: a program is compiled for each size it sees."""

from __future__ import annotations

import bisect
from typing import Any

import jax
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import NO_SLOT

_STEPS = (16, 64, 256, 1024, 4096)
_OWN = 4


class Sizes:
    """The sizes with a compiled program of a buffer.

    For each call at most four exact sizes have a program: the first size, and sizes that come
    twice in a row. Other sizes go up to the next of 16, 64, 256, 1024, 4096, 8192, and so on by
    two.
    """

    def __init__(self) -> None:
        self.own: dict[str, list[int]] = {}
        """By call: the sizes that have a program of their own, and at the end the last size."""

    def fitting(self, call: str, size: int) -> int | None:
        """Return the padded size of a batch of a call; None if it is to stay as it is."""
        *own, last = self.own.get(call, [size])
        if size not in own and len(own) < _OWN and size == last:
            own.append(size)
        self.own[call] = [*own, size]
        return None if size in own else next_step(size)

    def fit_rows(
        self, given: dict[str, Any], axis: int, lead: int, ndim: int, whole_steps: bool
    ) -> dict[str, Any]:
        """Return rows to add, padded to a size with a program, and a mask for them.

        Args:
            given: The arguments of `fbuf.add`, by name.
            axis: The axis of the steps.
            lead: How many axes come before those of an item: 1, with environments 2.
            ndim: How many axes the first leaf of an item has.
            whole_steps: Whether a mask leaves out steps, or rows.

        Returns:
            The arguments that are different; none if they fit, or cannot be padded.
        """
        first = next(iter(jax.tree.leaves(given["items"])), None)
        if (
            not isinstance(first, torch.Tensor)
            or first.ndim != lead + ndim
            or not first.shape[axis]
        ):
            return {}
        steps = first.shape[axis]
        size = self.fitting("extend", steps)
        padable = {name: value for name, value in given.items() if name not in ("mask", "alpha")}
        if size is None or length(padable, axis) != steps:
            return {}
        mask, at = given["mask"], 0 if whole_steps else axis
        if mask is None:
            shape = (steps,) if whole_steps else first.shape[:lead]
            mask = torch.ones(shape, dtype=torch.bool, device=first.device)
        elif length(mask, at) != steps:
            return {}
        return {**padded(padable, axis, size), "mask": padded(mask, at, size)}

    def fit_ids(self, call: str, given: dict[str, Any]) -> dict[str, Any]:
        """Ids and what belongs to them, padded with "no row"; see `fit_rows`."""
        ids = given["ids"]
        if not isinstance(ids.slot, torch.Tensor | np.ndarray) or ids.slot.ndim != 1:
            return {}
        count = len(ids.slot)
        size = self.fitting(call, count) if count else None
        if size is None:
            return {}
        padable = {
            name: value
            for name, value in given.items()
            if not isinstance(value, int | float) and getattr(value, "ndim", 1) > 0
        }
        if length(padable, 0) != count:
            return {}
        slot = padded(ids.slot, 0, size, NO_SLOT)
        return {
            **padded(padable, 0, size),
            "ids": fbuf.Ids(slot, padded(ids.generation, 0, size)),
        }


def next_step(size: int) -> int:
    """The smallest step that is at least `size`."""
    at = bisect.bisect_left(_STEPS, size)
    return _STEPS[at] if at < len(_STEPS) else 1 << (size - 1).bit_length()


def length(tree: Any, axis: int) -> int | None:
    """Return the length of all leaves along an axis; None if they differ, or cannot be padded."""
    found: set[int | None] = set()
    for leaf in jax.tree.leaves(tree):
        padable = isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim > axis
        found.add(leaf.shape[axis] if padable else None)
    return found.pop() if len(found) == 1 else None


def padded(tree: Any, axis: int, size: int, value: Any = 0) -> Any:
    """The tree with `value` at the end of all leaves, so that they have this size along an axis."""

    def pad(leaf: Any) -> Any:
        if leaf.shape[axis] == size:
            return leaf
        shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
        if isinstance(leaf, np.ndarray):
            whole = np.full(shape, value, leaf.dtype)
        else:
            whole = leaf.new_full(shape, value)
        whole[(slice(None),) * axis + (slice(leaf.shape[axis]),)] = leaf
        return whole

    return jax.tree.map(pad, tree)
