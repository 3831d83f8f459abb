"""Batches of any length, brought to a few sizes: a program is compiled for each size it sees."""

from __future__ import annotations

import bisect
from typing import Any

import jax
import numpy as np
import torch

_STEPS = (16, 64, 256, 1024, 4096)
_OWN = 4


class Sizes:
    """The sizes that a buffer has programs for.

    Of each call those have one of their own that came first, or twice in a row: four at most, for
    most programs never have more. All others go up to the next of 16, 64, 256, 1024, 4096, 8192,
    and so on by two.
    """

    def __init__(self) -> None:
        self.own: dict[str, list[int]] = {}
        """Of each call the sizes that have a program of their own, and at the end the last size."""

    def fitting(self, call: str, size: int) -> int | None:
        """The size to bring a batch of a call to; None if it is to stay as it is."""
        *own, last = self.own.get(call, [size])
        if size not in own and len(own) < _OWN and size == last:
            own.append(size)
        self.own[call] = [*own, size]
        return None if size in own else next_step(size)


def next_step(size: int) -> int:
    """The smallest step that is at least `size`."""
    at = bisect.bisect_left(_STEPS, size)
    return _STEPS[at] if at < len(_STEPS) else 1 << (size - 1).bit_length()


def length(tree: Any, axis: int) -> int | None:
    """How long all leaves are along an axis; None if they differ, or cannot be padded."""
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
        shape = list(leaf.shape)
        shape[axis] = size - shape[axis]
        if isinstance(leaf, np.ndarray):
            return np.concatenate([leaf, np.full(shape, value, leaf.dtype)], axis)
        return torch.cat([leaf, leaf.new_full(shape, value)], axis)

    return jax.tree.map(pad, tree)
