"""What a view is: the one interface between the verbs of `fbuf` and the files of this folder.

A view is a frozen, hashable dataclass, static under jit. It turns slots into what the learner
wants: the rows themselves, the steps that follow, stacked frames. It reads through a `Reader` and
changes nothing. To add a view, write one file with a subclass of `View`; nothing else changes.
`docs/extending.md` shows one.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax

from fbuf.views.reader import Reader


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """What a view made of a batch of `B` slots.

    Attributes:
        data: What becomes `data` of the batch.
        flags: uint8 `[B]` or `[B, T]`: the flags of the rows that `data` stands for.
        known: bool `[B]`: False where the view could not make its result; such a draw is masked.
            None if it always could.
    """

    data: Any
    flags: jax.Array
    known: jax.Array | None = None


class View(abc.ABC):
    """What a drawn row turns into.

    Attributes:
        is_random: Whether the view leaves something to chance, and so needs a key.
        time_major: Whether `data` is `[T, B, ...]`. The view returns flags as `[B, T]` all the
            same.
    """

    is_random: ClassVar[bool] = False
    time_major: bool = False

    @abc.abstractmethod
    def read(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Reading:
        """Read the rows at `[B]` slots; every slot is in range.

        `key` is a random key for this view only; None unless `is_random` is True. Give it to
        `reader.bits`, so that a draw gets the same bits wherever it is read.
        """
