"""What a view is: the one interface between `fbuf.sample` and the files of this folder.

A view is a frozen, hashable dataclass, static under jit, that turns drawn slots into what the
learner wants of them: the rows themselves, the steps that follow, frames stacked. It reads the
store and changes nothing. To add one, write a file with a class that has this method.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from fbuf._state import State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """What a view made of a batch of `B` slots.

    Attributes:
        data: What becomes `Sample.data`.
        flags: uint8 `[B, ...]`; the flags (see `fbuf._ring`) of the rows that `data` stands for.
        others: uint8 `[B, ...]`; what other flags the view has read, None if it has not.
        known: bool `[B]`; False where the view could not make what it is for: such a draw is
            masked. None if it always could.
    """

    data: Any
    flags: jax.Array
    others: jax.Array | None = None
    known: jax.Array | None = None


class View(Protocol):
    """What a drawn row turns into."""

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Read the rows at `[B]` slots, each of which is in range.

        `key` is a random key of the view's own, for those that leave something to chance.
        """
        ...
