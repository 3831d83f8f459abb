"""The protocol of views: the interface between `fbuf.ops` and the files of this folder.

A view is a frozen, hashable dataclass, static under jit. It turns slots into the data that the
learner wants: the rows themselves, the steps that follow, stacked frames. A view has two halves.
`request` reads flags through a `Reader`, and says which rows it wants. `build` gets these rows. So
a view need not know where rows lie. To add a view, write one file with a subclass of `View`;
nothing else changes. `docs/extending.md` shows one.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Generic

import jax
from typing_extensions import TypeVar

from fbuf.checks.renamed import CurrentNames
from fbuf.storage.layout import Layout
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted

Data = TypeVar("Data", default=Any)
"""What a view makes of rows."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """What the first half of a view has found out.

    Attributes:
        rows: The rows that it wants, by names of its own: what the methods of `Reader` return.
        seen: Whatever else the second half needs, such as flags; any pytree of arrays.
    """

    rows: Mapping[str, Wanted]
    seen: Any = None


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


class View(CurrentNames, abc.ABC, Generic[Data]):
    """What a drawn row turns into: `data` of a batch, of the type `Data`.

    Attributes:
        is_random: Whether the view leaves something to chance, and so needs a key.
        time_major: Whether `data` is `[T, B, ...]`. The view returns flags as `[B, T]` all the
            same.
    """

    is_random: ClassVar[bool] = False
    time_major: bool = False

    old_names: ClassVar[Mapping[str, str]] = {"look": "'request'", "make": "'build'"}

    @abc.abstractmethod
    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Say which rows are wanted for those at `[B]` slots; every slot is in range.

        `key` is a random key for this view only; None unless `is_random` is True. Give it to
        `reader.bits`, so that a draw gets the same bits wherever it is read. Errors about names and
        arguments are raised here.
        """

    @abc.abstractmethod
    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Make something of the rows.

        Args:
            layout: What the leaves of an item are, and their names.
            rows: What `request` wanted, by the same names, read.
            seen: What `request` has seen.
        """
