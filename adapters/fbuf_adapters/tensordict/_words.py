"""Errors in the words of the buffer of TensorDicts."""

from __future__ import annotations

from fbuf_adapters.pytorch.crossing._words import OF_TENSORS, Words
from fbuf_adapters.tensordict._codec import NAME

_ITEMS = {"items": "data", "item": "data"}

OF_TENSORDICTS = Words(
    NAME,
    {
        **OF_TENSORS.functions,
        "init": "TensorDictReplayBuffer",
        "add": "extend",
        "save": "dumps",
        "load": "loads",
    },
    {"add": _ITEMS, "extend": _ITEMS},
)
"""The words of `TensorDictReplayBuffer`."""
