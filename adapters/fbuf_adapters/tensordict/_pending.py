"""Rows that a `MultiStepTransform` of TorchRL holds back until it has the steps that follow.

The transform keeps these rows in an attribute, which its `state_dict` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from fbuf.adapter_api import Episodes
from fbuf_adapters.pytorch.crossing._containers import described, restored

Pending = tuple[list[int], str, dict[str, Any], list[Any]] | None
"""The batch size, the device, the content and the axes of pending rows, as `torch.load` reads them.
"""


def saved(transforms: Iterable[Any]) -> list[Pending]:
    """Return copies of the pending rows, one entry for each `MultiStepTransform`."""
    return [
        None if (rows := one._buffer) is None else _copied(rows) for one in _holders(transforms)
    ]


def load(transforms: Iterable[Any], pending: Sequence[Pending], episodes: Episodes) -> None:
    """Give the transforms the rows that `saved` returned.

    Args:
        transforms: As many transforms as were saved.
        pending: The result of `saved`.
        episodes: `"end"` drops the rows of open episodes, whose next steps never come.
    """
    for one, rows in zip(_holders(transforms), pending, strict=True):
        held = None if rows is None else _made(*rows)
        one._buffer = _finished(held, one.done_key) if episodes == "end" else held


def _holders(transforms: Iterable[Any]) -> list[Any]:
    """Return every `MultiStepTransform`, also those inside others."""
    modules = [
        module for one in transforms if isinstance(one, torch.nn.Module) for module in one.modules()
    ]
    return [one for one in modules if any(map(_is_multi_step, type(one).__mro__))]


def _is_multi_step(kind: type) -> bool:
    """Tell the class by its name: a program may lack TorchRL."""
    return kind.__name__ == "MultiStepTransform" and kind.__module__.startswith("torchrl.")


def _copied(rows: TensorDictBase) -> Pending:
    """Return a copy: the rows are a view of a batch, all of which `torch.save` would write."""
    device = next((leaf.device for leaf in rows.values(True, True)), torch.device("cpu"))
    size, content, nodes = described(rows.clone().cpu())
    return size, str(device), content, nodes


def _made(size: Sequence[int], device: str, content: dict[str, Any], *nodes: Any) -> TensorDictBase:
    """Return the rows on their device, or on CPU if there is no such device any more."""
    there = device == "cpu" or torch.accelerator.is_available()
    rows = restored((size, content, *nodes)).clone()
    return rows.to(device if there else "cpu").clear_device_()


def _finished(rows: TensorDictBase | None, done_key: Any) -> TensorDictBase | None:
    """Return the rows up to the last step at which the episodes of all environments ended."""
    if rows is None:
        return None
    key = done_key if isinstance(done_key, tuple) else (done_key,)
    done: Any = rows.get(("next", *key))
    done = done.reshape(*rows.batch_size, -1).all(-1)  # [..., steps]
    ends = done.reshape(-1, done.shape[-1]).all(0).nonzero()
    return rows[..., : int(ends[-1]) + 1] if len(ends) else None
