"""What the learner and its workers say to each other."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ready:
    """The worker has made its environments, and knows what a row is."""

    spec: Any


@dataclasses.dataclass(frozen=True)
class Command:
    """Fill a slot."""

    slot: int
    steps: int
    newest: bool  # take the newest weights first


@dataclasses.dataclass(frozen=True)
class Filled:
    """A slot has been filled."""

    slot: int
    steps: int
    version: int
    fresh: bool
    waited: float  # seconds that the worker waited for the slot
    worked: float  # seconds that it took to fill it


@dataclasses.dataclass(frozen=True)
class Failed:
    """The worker cannot go on."""

    place: int
    reason: str
    trace: str
