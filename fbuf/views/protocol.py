"""What a view is: the one interface between the verbs of `fbuf` and the files of this folder.

A view is a frozen, hashable dataclass, static under jit, that turns drawn slots into what the
learner wants of them: the rows themselves, the steps that follow, frames stacked. It reads through
a `Reader` and changes nothing. To add one, write a file with a subclass of `View`; nothing else
changes. `docs/extending.md` shows it.
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
        flags: uint8 `[B]`, or `[B, T]`; the flags of the rows that `data` stands for.
        known: bool `[B]`; False where the view could not make what it is for: such a draw is
            masked. None if it always could.
        time_major: Whether flags of `[B, T]` become `[T, B]`, as `data` is; static.
    """

    data: Any
    flags: jax.Array
    known: jax.Array | None = None
    time_major: bool = dataclasses.field(default=False, metadata={"static": True})


class View(abc.ABC):
    """What a drawn row turns into.

    Attributes:
        is_random: Whether it leaves something to chance, and so needs a key.
    """

    is_random: ClassVar[bool] = False

    @abc.abstractmethod
    def read(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Reading:
        """Read the rows at `[B]` slots, each of which is in range.

        `key` is a random key of the view's own, None unless `is_random`.
        """
