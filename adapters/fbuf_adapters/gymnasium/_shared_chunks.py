"""Room for chunks in memory, filled by workers, read by the learner.

A slot is as long as a chunk and as wide as the environments of all workers. Each worker fills its
own columns of it, so that what is added needs not be put together.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._chunk import Chunk
from fbuf_adapters.gymnasium._shared_memory import Memory
from fbuf_adapters.gymnasium._spaces import Spec
from fbuf_adapters.gymnasium._trees import map_leaves


def fields(spec: dict[str, Any]) -> dict[str, Any]:
    """All that is in a chunk, from the fields of a row."""
    own = {name: spec[name] for name in ("observation", "action", "reward")}
    flag = Spec((), np.dtype(np.bool_))
    return {
        **own,
        "terminated": flag,
        "truncated": flag,
        "next_observation": spec["observation"],
        "extras": {name: part for name, part in spec.items() if name not in own},
    }


class Slots:
    """Arrays `[slots, steps, envs, ...]` of all fields of a chunk."""

    def __init__(self, memory: Memory, spec: Any, slots: int, steps: int, envs: int) -> None:
        """Lay them out in memory that has room for them."""
        place = 0

        def room(leaf: Spec) -> np.ndarray[Any, Any]:
            nonlocal place
            shape = (slots, steps, envs, *leaf.shape)
            array = memory.view(leaf.dtype, shape, place)
            place += _bytes(leaf, slots * steps * envs)
            return array

        self._arrays = map_leaves(room, fields(spec))

    def write(self, slot: int, envs: slice, chunk: Chunk) -> None:
        """Put a chunk of some environments into a slot."""
        given = {name: getattr(chunk, name) for name in self._arrays}

        def put(room: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> None:
            room[slot, : chunk.steps, envs] = array

        map_leaves(put, self._arrays, given)

    def read(self, slot: int) -> dict[str, Any]:
        """The arrays `[steps, envs, ...]` of a slot. They change when the slot is filled anew."""
        return map_leaves(lambda array: array[slot], self._arrays)


@dataclasses.dataclass(frozen=True)
class Room:
    """Memory for slots, which are laid out once it is known what a row is."""

    slots: int
    steps: int
    envs: int
    memory: Memory = dataclasses.field(default_factory=Memory)

    def make(self, spec: Any) -> Slots:
        """Take the memory, which must not have been done before, and lay out the slots."""
        sizes: list[int] = []
        rows = self.slots * self.steps * self.envs
        map_leaves(lambda leaf: sizes.append(_bytes(leaf, rows)), fields(spec))
        self.memory.grow(sum(sizes))
        return self.open(spec)

    def open(self, spec: Any) -> Slots:
        """The slots, in memory that has been taken."""
        return Slots(self.memory, spec, self.slots, self.steps, self.envs)


def _bytes(leaf: Spec, rows: int) -> int:
    return -(-rows * math.prod(leaf.shape) * leaf.dtype.itemsize // 64) * 64
