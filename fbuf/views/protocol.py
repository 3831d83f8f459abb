"""The protocol of views: the interface between `fbuf.ops` and the files of this folder.

A view is a frozen, hashable dataclass, static under jit. It turns slots into the data that the
learner wants: the rows themselves, the steps that follow, stacked frames. A view has two halves.
`request` reads flags through a `Reader`, and says which rows it wants. `build` gets these rows. So
a view need not know where rows lie. To add a view, write one file with a subclass of `View`;
nothing else changes. `docs/know/extending.md` shows one.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Generic

import jax
from typing_extensions import TypeVar

from fbuf._pytree import pytree
from fbuf.compat.listed import Listed
from fbuf.compat.renamed import CurrentNames, OldName
from fbuf.storage.layout import Layout
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted

Data = TypeVar("Data", default=Any)
"""The data of a view."""


@pytree
class Request:
    """The request of a view for rows.

    Attributes:
        rows: The requested rows, by the view's own names, as the methods of `Reader` return them.
        seen: Other arrays for the second half, such as flags; any pytree.
    """

    rows: Mapping[str, Wanted]
    seen: Any = None


@pytree
class Reading:
    """The result of a view for a batch of `B` slots.

    Attributes:
        data: The `data` of the batch.
        flags: uint8 `[B]` or `[B, T]`: the flags of the batch, before the mask.
        known: bool `[B]`: False where the view has no result; such a draw is masked. None if every
            draw has a result.
    """

    data: Any
    flags: jax.Array
    known: jax.Array | None = None


class View(CurrentNames, Listed, Generic[Data]):
    """Turn drawn rows into `data` of a batch, of the type `Data`.

    Attributes:
        is_random: Whether the view is random, and so needs a key. It may follow from the view's
            arguments.
        reads_one_row: Whether the view reads the drawn row alone. Other views need rows in the
            order of time.
        time_major: Whether `data` is `[T, B, ...]`. The view returns flags as `[B, T]` all the
            same.
    """

    is_random: bool = False
    reads_one_row: ClassVar[bool] = False
    time_major: bool = False

    old_names: ClassVar[Mapping[str, OldName]] = {
        "look": OldName("request", arguments=3),
        "make": OldName("build", arguments=3),
    }

    def leaves_of_any(self, layout: Layout) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the reads of random rows, which may be in other shards; None without such reads.

        The result is the number of rows for each draw, and the numbers of their leaves. None as the
        number means one row without an axis. Over several shards `reader.anywhere()` has these
        leaves.
        """
        return None

    @abc.abstractmethod
    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request rows for the rows at `[B]` slots; every slot is in range.

        `key` is a random key for this view only; None unless `is_random` is True. Give the key to
        `reader.bits`, so that a draw gets the same bits on every device. Errors about names and
        arguments are raised here.
        """

    @abc.abstractmethod
    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Build the result from the rows.

        Args:
            layout: The leaves of an item, and their names.
            rows: The requested rows, by the same names.
            seen: The `seen` of the request.
        """
