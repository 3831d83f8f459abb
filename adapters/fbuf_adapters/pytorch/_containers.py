"""Items that are no trees of JAX's: TensorDicts and tensorclasses, as dicts and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Rebuild = Callable[[Any, torch.Size], Any]
"""Makes of a dict of tensors, and the axes that they begin with, what was given."""


def is_tensordict(items: Any) -> bool:
    """Whether it is a TensorDict or a tensorclass."""
    return hasattr(items, "batch_size") and callable(getattr(items, "to_dict", None))


def plain(items: Any) -> tuple[Any, Rebuild | None]:
    """Items as a tree, and what makes them what they were; None where they are one."""
    if not is_tensordict(items):
        return items, None
    from tensordict import TensorDictBase  # which whoever gave one has

    of_class = functools.partial(_rebuilt, type(items))
    return items.to_dict(), TENSORDICT if isinstance(items, TensorDictBase) else of_class


def _rebuilt(kind: Any, data: Any, lead: torch.Size) -> Any:
    from tensordict import TensorDict

    made = TensorDict(data, batch_size=lead)
    return made if kind is None else kind.from_tensordict(made)


TENSORDICT: Rebuild = functools.partial(_rebuilt, None)
"""Makes TensorDicts, and needs no example for it, as it does for the class of a tensorclass."""
