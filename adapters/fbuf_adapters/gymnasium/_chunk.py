"""A few steps of all environments."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`T` steps of `E` environments: trees of NumPy arrays `[T, E, ...]`, as they are stored.

    Attributes:
        observation: What the policy saw.
        action: What it did.
        reward: float32 `[T, E]`, or `[T, E, K]`.
        terminated: bool `[T, E]`.
        truncated: bool `[T, E]`.
        next_observation: What the steps led to: at the end of an episode its final observation.
            None if the environments did not return that.
        extras: What the policy returned beside the action, and what was asked for of info.
        version: That of the policy that acted; or int32 `[E]`.
        fresh: The environments were reset before the first of these steps. Episodes that were open
            in the chunk before have not ended in it, and go on nowhere. A bool, or bool `[E]`.
    """

    observation: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_observation: Any
    extras: dict[str, Any]
    version: Any
    fresh: Any

    @property
    def steps(self) -> int:
        """`T`."""
        return len(self.terminated)
