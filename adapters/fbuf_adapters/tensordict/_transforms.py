"""What stands between the rows and the user: TorchRL's transforms, or any function of a batch."""

from __future__ import annotations

from typing import Any


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
    """What the inverse of a transform makes of data; functions have none."""
    return transform.inv(data) if hasattr(transform, "inv") else data


def prepared(transform: Any, invert: bool) -> Any:
    """A transform as a buffer calls it."""
    if hasattr(transform, "eval"):
        transform.eval()
    return Inverted(transform) if invert else transform
