"""The arguments of a buffer, for objects that make it later or again."""

from __future__ import annotations

import dataclasses
from typing import Any

from fbuf.ops.init import init
from fbuf.samplers import Sampler
from fbuf.state import State
from fbuf.storage.episodes import Autoreset


@dataclasses.dataclass(frozen=True)
class BufferSpec:
    """The arguments of `fbuf.init`, without the item. `fbuf.init` checks them."""

    capacity: int
    sampler: Sampler
    num_envs: int | None = None
    autoreset: Autoreset = "same_step"
    lockstep: bool = True
    next_of: str | None = None
    max_ends: int | None = None
    removable: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """The arguments by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def init(self, item: Any, **changes: Any) -> State[Any]:
        """Make a buffer of an item, with some arguments replaced."""
        return init(item, **(self.options | changes))
