"""Transforms of batches: those of TorchRL, or any function of a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase, is_tensor_collection


class Inverted:
    """A transform inverted: it is called with written data, and its inverse with batches."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, data: Any) -> Any:
        """Apply the inverse of the transform to a batch."""
        return inverse(self.transform, data)

    def inv(self, data: Any) -> Any:
        """Apply the transform to data that is written."""
        return self.transform(data)

    def state_dict(self) -> Any:
        """Return the `state_dict` of the transform; None if the transform has none."""
        return self.transform.state_dict() if hasattr(self.transform, "state_dict") else None

    def load_state_dict(self, state: Any) -> None:
        """Load the result of `state_dict`, which must not be None."""
        self.transform.load_state_dict(state)


def inverse(transform: Any, data: Any) -> Any:
    """Apply the inverse of a transform, if there is one; None if the transform drops the data.

    Raises:
        TypeError: If the result is no TensorDict.
    """
    if not hasattr(transform, "inv"):
        return data
    made = transform.inv(data)
    return None if made is None else _checked(transform, made)


def _checked(transform: Any, made: Any) -> Any:
    if isinstance(made, TensorDictBase) or is_tensor_collection(made):
        return made
    name = getattr(transform, "__qualname__", type(transform).__qualname__)
    raise TypeError(
        f"fbuf_adapters.tensordict.TensorDictReplayBuffer: the transform {name} returned a "
        f"{type(made).__name__} instead of a TensorDict; have it return the batch, and put what it "
        "makes under keys of it; for other batches use fbuf_adapters.pytorch.ReplayBuffer"
    )


class TransformChain:
    """The transforms of a buffer, in the order in which batches go through them."""

    def __init__(self) -> None:
        self.all: tuple[Any, ...] = ()
        """A change makes a new tuple, because another thread may be reading the old one."""

    def insert(self, where: str, index: int, transform: Any, invert: bool) -> None:
        """Insert a transform, or its inverse, at an index.

        Raises:
            ValueError: If the index is out of range.
        """
        if hasattr(transform, "eval"):
            transform.eval()
        transform = Inverted(transform) if invert else transform
        count = len(self.all)
        if not -count <= index <= count:
            raise ValueError(
                f"{where}: index must be from {-count} to {count}, because there are {count} "
                f"transforms, got {index}; use append_transform for the end"
            )
        self.all = (*self.all[:index], transform, *self.all[index:])

    def __call__(self, batch: Any) -> Any:
        """Transform a batch."""
        for transform in self.all:
            batch = _checked(transform, transform(batch))
        return batch

    def inverse(self, data: Any) -> Any:
        """Return the data to be stored; None if a transform drops the data."""
        for transform in reversed(self.all):
            data = inverse(transform, data)
            if data is None:
                return None
        return data

    def state_dicts(self) -> list[Any]:
        """Return the state of each transform; None for a transform without a state."""
        return [
            copy.deepcopy(one.state_dict()) if hasattr(one, "state_dict") else None
            for one in self.all
        ]

    def load(self, states: Sequence[Any]) -> None:
        """Load the states that `state_dicts` returned."""
        for transform, state in zip(self.all, states, strict=True):
            if state is not None:
                transform.load_state_dict(state)
