"""What stands between the rows and the user: TorchRL's transforms, or any function of a batch."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase, is_tensor_collection


class Inverted:
    """A transform the other way round: called with what is written, its inverse with batches."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, data: Any) -> Any:
        """For what is read."""
        return inverse(self.transform, data)

    def inv(self, data: Any) -> Any:
        """For what is written."""
        return self.transform(data)

    def state_dict(self) -> Any:
        """That of the transform; None if it has none."""
        return self.transform.state_dict() if hasattr(self.transform, "state_dict") else None

    def load_state_dict(self, state: Any) -> None:
        """Only called with what `state_dict` returned, and not with None."""
        self.transform.load_state_dict(state)


def inverse(transform: Any, data: Any) -> Any:
    """Apply the inverse of a transform; None if it keeps the data. Functions have none.

    Raises:
        TypeError: As `applied`.
    """
    if not hasattr(transform, "inv"):
        return data
    made = transform.inv(data)
    return None if made is None else _checked(transform, made)


def applied(transform: Any, batch: Any) -> Any:
    """Transform a batch.

    Raises:
        TypeError: If it makes something else than a TensorDict of it.
    """
    return _checked(transform, transform(batch))


def _checked(transform: Any, made: Any) -> Any:
    if isinstance(made, TensorDictBase) or is_tensor_collection(made):
        return made
    name = getattr(transform, "__qualname__", type(transform).__qualname__)
    raise TypeError(
        f"fbuf_adapters.tensordict.TensorDictReplayBuffer: the transform {name} returned a "
        f"{type(made).__name__} instead of a TensorDict; have it return the batch, and put what it "
        "makes under keys of it; for other batches use fbuf_adapters.pytorch.ReplayBuffer"
    )


def prepared(transform: Any, invert: bool) -> Any:
    """A transform as a buffer calls it."""
    if hasattr(transform, "eval"):
        transform.eval()
    return Inverted(transform) if invert else transform
