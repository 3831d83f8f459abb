"""Data sets whose rows lie one after another, whatever episode they are of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.datasets._blocks import Block
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Array, native, nested, spec, under

LAST = "last_observation"
"""What a data set calls the observations of `Last`."""


@dataclasses.dataclass(frozen=True)
class Last:
    """The last observations of some episodes.

    Attributes:
        leaves: Leaves `[n, ...]`, named as by `under`.
        rows: int `[n]`; the numbers of the rows that led to them.
        of: The field whose next values they are; None is whichever is asked for.
    """

    leaves: Mapping[str, Array]
    rows: Array
    of: str | None


class Flat:
    """Arrays of all rows, of which a part is read at a time.

    Args:
        where: Who asks.
        fields: By name; anything with `shape`, `dtype` and slices: an array, or one in a file.
        terminated: bool `[rows]`.
        truncated: bool `[rows]`. The last row counts as truncated if it ends no episode.
        following: What each row led to, named as by `under`; empty if the data set lacks it.
        last: The last observations of some episodes, for data sets without `following`.
        asked: Whether the caller gave `following`, so that it must not be left out.
        endless: What to give, if the data set may not say where episodes are cut; else empty.
        item: One row, if the names do not tell its tree.
        called: What the data set calls a field, for errors.

    Attributes:
        endless: As given if nothing ends an episode, else empty.
    """

    def __init__(
        self,
        where: str,
        fields: Mapping[str, Any],
        terminated: Array,
        truncated: Array,
        *,
        following: Mapping[str, Any],
        last: Last | None = None,
        asked: bool = False,
        endless: str = "",
        item: Any = None,
        called: Mapping[str, str] | None = None,
    ) -> None:
        self._where, self._fields, self._following = where, fields, following
        self._asked, self._called = asked, called or {}
        self.rows = len(terminated)
        following_said = {f"{NEXT}{name}": leaf for name, leaf in following.items()}
        for name, leaf in {**fields, **following_said, "truncated": truncated}.items():
            if not leaf.shape or leaf.shape[0] != self.rows:
                got = f"{leaf.shape[0]} rows" if leaf.shape else "no axis of rows"
                raise DatasetError(
                    f"{where}: {self._say(name)} has {got}, and {self._say('terminated')} has "
                    f"{self.rows}"
                )
        self._terminated, self._truncated = terminated, truncated.copy()
        if self.rows:
            self._truncated[-1] |= not terminated[-1]
        ended = terminated | self._truncated
        self._episode = np.cumsum(ended) - ended  # the number of each row's
        self.endless = "" if (terminated | truncated).any() else endless
        self._unknown = ended.copy() if not following else np.zeros_like(ended)
        self._last, self._last_at = last, dict[int, int]()
        if last is not None:
            self._unknown[last.rows] = False
            self._last_at = {int(row): place for place, row in enumerate(last.rows)}
        self.ends = int(ended.sum())
        self.unknown = int(self._unknown.sum())
        self.unknown_terminated = int((self._unknown & terminated).sum())
        specs = {name: spec(leaf) for name, leaf in fields.items()}
        self.item = nested(specs) if item is None else item

    def blocks(self, names: list[str], of: str | None, size: int, join: bool) -> Iterator[Block]:
        """The rows in order; see `Data`. One block more is in memory, for the next observation."""
        if of is None and self._asked:
            raise DatasetError(
                f"{self._where}: {NEXT} is given, and the buffer has no place for it; give "
                f"next_of='observation', or the item a field {NEXT!r}, or leave it out"
            )
        if of is not None:
            self._check_next(of)
        return self._blocks(names, of, size, join)

    def _blocks(self, names: list[str], of: str | None, size: int, join: bool) -> Iterator[Block]:
        before: Block | None = None
        for start in range(0, self.rows, size):
            part = slice(start, min(start + size, self.rows))
            wanted = dict.fromkeys(names)
            wanted |= dict.fromkeys(n for n in self._fields if of and under({n: 0}, of))
            fields = {name: native(self._fields[name][part]) for name in wanted}
            here = {} if of is None else under(fields, of)
            block = Block(
                fields,
                {name: self._led_to(name, leaf, part) for name, leaf in here.items()},
                self._terminated[part],
                self._truncated[part],
                self._unknown[part],
                int(self._episode[start]),
                start,
            )
            if before is not None:
                self._join(before, here, join)
                yield before
            if of is not None and join and self._following:
                self._check(block, here)
            before = block
        if before is not None:
            yield before

    def _led_to(self, name: str, leaf: Array, part: slice) -> Array:
        """What the rows of a block led to; of the last one only if the data set says it."""
        if self._following:
            return native(self._following[name][part])
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[-1] = 0
        ended = np.flatnonzero(self._terminated[part] | self._truncated[part])
        for row in ended.tolist():
            place = self._last_at.get(part.start + row)
            if self._last is not None and place is not None:
                following[row] = self._last.leaves[name][place]
            else:
                following[row] = 0
        return following

    def _check_next(self, of: str) -> None:
        """Refuse next observations that are not like the field whose next value they are."""
        fields = {name: spec(leaf) for name, leaf in under(self._fields, of).items()}
        last = self._last
        if last is not None and last.of not in (None, of):
            raise DatasetError(
                f"{self._where}: the data set has the last values of {last.of!r}, and not of "
                f"{of!r}; give next_of={last.of!r}"
            )
        for called, given in ((NEXT, self._following), (LAST, last.leaves if last else {})):
            if given and fields.keys() != given.keys():
                raise DatasetError(
                    f"{self._where}: {called} must have the same parts as {of}, which has "
                    f"{', '.join(of + name for name in fields)}; it has "
                    f"{', '.join(called + name for name in given)}"
                )
            for name, leaf in given.items():
                if spec(leaf).shape != fields[name].shape:
                    raise DatasetError(
                        f"{self._where}: {self._say(called + name)} has shape {spec(leaf).shape} "
                        f"in each row, and {self._say(of + name)} has {fields[name].shape}; they "
                        "must be alike"
                    )

    def _say(self, name: str) -> str:
        """What the data set calls a leaf."""
        return self._called.get(name, name)

    def _join(self, before: Block, here: dict[str, Array], join: bool) -> None:
        """The last row of a block led to the first one of the next, unless an episode ended."""
        if before.terminated[-1] or before.truncated[-1]:
            return
        for name, leaf in here.items():
            if not self._following:
                before.following[name][-1] = leaf[0]
            elif join and not _same(before.following[name][-1:], leaf[:1])[0]:
                self._refuse(before, len(before.terminated) - 1)

    def _check(self, block: Block, here: dict[str, Array]) -> None:
        """A buffer with `next_of` reads the next observation from the following row."""
        goes_on = ~(block.terminated | block.truncated)[:-1]
        for name, leaf in here.items():
            wrong = goes_on & ~_same(block.following[name][:-1], leaf[1:])
            if wrong.any():
                self._refuse(block, int(np.argmax(wrong)))

    def _refuse(self, block: Block, row: int) -> None:
        raise DatasetError(
            f"{self._where}: {block.place(row)}: its next observation is not the observation of "
            "the following row, though no episode ends there. Say where episodes end; or, if the "
            f"rows are in no order, give the item a field {NEXT!r} in place of next_of"
        )


def _same(left: Array, right: Array) -> Array:
    """Whether rows are alike, bit for bit but for the sign of 0: bool `[n]`."""
    same = (left == right) | ((left != left) & (right != right))
    return same.reshape(len(left), -1).all(axis=1)
