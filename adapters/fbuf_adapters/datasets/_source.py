"""Sources of rows: the data sets that `load` reads, block by block."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fbuf_adapters.datasets._fields import Array

_NOWHERE = np.zeros((), np.bool_)


class RowFlags(NamedTuple):
    """Flags of some rows, bool `[n]` each.

    Attributes:
        terminated: The episode ended by itself at this row.
        truncated: The episode was cut off after this row.
        unknown: A truncated row whose next observation the data set lacks. Views that return next
            observations mask the row.
        stands_in: A terminated row whose next observation the data set lacks. No target needs it,
            so a placeholder, such as the row's own observation, is stored.

    Examples:
        >>> import numpy as np
        >>> from fbuf_adapters.datasets import RowFlags
        >>> RowFlags(terminated=np.array([False, True]), truncated=np.zeros(2, bool)).ended
        array([False,  True])
    """

    terminated: Array
    truncated: Array
    unknown: Array = _NOWHERE
    stands_in: Array = _NOWHERE

    @property
    def ended(self) -> Array:
        """The rows that end an episode: bool `[n]`."""
        return self.terminated | self.truncated


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive rows, as many as suit the data set.

    Attributes:
        fields: Leaves `[n, ...]`, by name.
        following: The next values of the leaves of a field, `[n, ...]`, by the same names; empty
            unless requested.
        flags: The flags of the rows.
        episode: The number of the first row's episode, for errors. None counts ends from 0.

    Examples:
        >>> import numpy as np
        >>> from fbuf_adapters.datasets import Block, RowFlags
        >>> steps = np.arange(3, dtype=np.float32)
        >>> flags = RowFlags(terminated=steps == 2, truncated=np.zeros(3, bool))
        >>> block = Block({"observation": steps}, {"observation": steps + 1}, flags)
    """

    fields: Mapping[str, Array]
    following: Mapping[str, Array]
    flags: RowFlags
    episode: int | None = None


class Source(abc.ABC):
    """A data set that `load` reads: subclass it for a format of your own.

    A leaf of a row is called `"observation.camera"` in a dict, and `"observation.0"` in a tuple.

    Attributes:
        where: The first words of errors and warnings.
        item: One row: a tree of `jax.ShapeDtypeStruct`, with the dtypes of the data set.
        rows: The number of rows.
        ends: The number of rows that end an episode.
        unknown: The number of rows that are `unknown` in `RowFlags`.
        stands_in: The number of rows that are `stands_in` in `RowFlags`.

    `settle` may set the last three.

    Examples:
        >>> import jax, numpy as np
        >>> from fbuf_adapters.datasets import Block, RowFlags, Source, load
        >>> class Count(Source):
        ...     item = {"observation": jax.ShapeDtypeStruct((), np.float32)}
        ...     rows, ends = 6, 2
        ...
        ...     def blocks(self, names, next_of, size):
        ...         for episode in range(2):
        ...             steps = np.arange(4, dtype=np.float32)
        ...             following = {} if next_of is None else {next_of: steps[1:]}
        ...             flags = RowFlags(steps[:-1] == 2, np.zeros(3, bool))
        ...             yield Block({name: steps[:-1] for name in names}, following, flags)
        >>> load(Count(), next_of="observation")
        State(Uniform, 6 of 6 rows)
    """

    where: str = "load"
    item: Any
    rows: int
    ends: int
    unknown: int = 0
    stands_in: int = 0

    def settle(self, next_of: str, size: int) -> list[str]:
        """Find the ends of episodes before `blocks` is called; by default they are known.

        Args:
            next_of: The field whose next values the data set may have.
            size: The approximate number of rows to read at a time.

        Returns:
            Warnings for the caller, as sentences without a full stop.
        """
        return []

    @abc.abstractmethod
    def blocks(self, names: list[str], next_of: str | None, size: int) -> Iterator[Block]:
        """Return the rows in order.

        Args:
            names: The leaves to read.
            next_of: The field whose next values to read, too; None for no field.
            size: The approximate number of rows of a block.
        """
        ...
