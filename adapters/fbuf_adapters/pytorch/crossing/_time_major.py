"""Steps of environments, in the order in which they are stored: step after step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from fbuf_adapters.pytorch.crossing import _packed


def steps_first(given: dict[str, Any], num_envs: int, ndim: int) -> dict[str, Any] | None:
    """Arguments of `fbuf.add` for `[num_envs, T]`, turned to `[T, num_envs]`, if that is needed.

    It is needed if a tensor on CPU is too large to be packed. Compiled code would turn it in memory
    of its own, and where that is missing, the state that it writes to is lost. Here a copy is made
    before the state is touched.

    Args:
        given: The arguments, by name.
        num_envs: How many environments there are.
        ndim: How many axes the first leaf of an item has.

    Returns:
        None if it is not needed; or if the arguments do not fit, about which `fbuf.add` says more.
    """
    leaves, tree = jax.tree.flatten(given)
    if not any(map(_is_large, leaves)):
        return None
    first = next(iter(jax.tree.leaves(given["items"])), None)
    if not isinstance(first, torch.Tensor) or first.ndim != 2 + ndim:
        return None
    steps = first.shape[1]
    turned: list[Any] = []
    for leaf in leaves:
        shape = tuple(getattr(leaf, "shape", ()))
        if shape[:2] == (num_envs, steps) and isinstance(leaf, torch.Tensor):
            turned.append(leaf.transpose(0, 1).contiguous())
        elif shape == (num_envs, steps) and isinstance(leaf, np.ndarray):
            turned.append(leaf.T)
        elif shape in ((), (steps,)):  # a number for all, or a mask of steps
            turned.append(leaf)
        else:
            return None
    return tree.unflatten(turned)


def _is_large(leaf: Any) -> bool:
    plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.is_cpu
    return plain and _packed.is_large(leaf.nbytes)
