"""Data sets whose rows lie one after another, whatever episode they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.datasets._blocks import Block
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Array, nested, spec, under


class Flat:
    """Arrays of all rows, of which a part is read at a time.

    Args:
        where: Who asks.
        fields: By name; anything with `shape`, `dtype` and slices: an array, or one in a file.
        terminated: bool `[rows]`.
        truncated: bool `[rows]`. The last row counts as truncated if it ends no episode.
        following: What each row led to, named as by `under`; empty if the data set lacks it.
        last: The last observations of some episodes, named as by `under`, for data sets without
            `following`, and the numbers of the rows that they belong to.
        item: One row, if the names do not tell its tree.
        called: What the data set calls a field, for errors.
    """

    def __init__(
        self,
        where: str,
        fields: Mapping[str, Any],
        terminated: Array,
        truncated: Array,
        *,
        following: Mapping[str, Any],
        last: tuple[Mapping[str, Any], Array] | None = None,
        item: Any = None,
        called: Mapping[str, str] | None = None,
    ) -> None:
        self._where, self._fields, self._following = where, fields, following
        self.rows = len(terminated)
        said = {**{name: name for name in fields}, **(called or {})}
        following_said = {f"{NEXT}{name}": leaf for name, leaf in following.items()}
        for name, leaf in {**fields, **following_said, "truncated": truncated}.items():
            if not leaf.shape or leaf.shape[0] != self.rows:
                got = f"{leaf.shape[0]} rows" if leaf.shape else "no axis of rows"
                raise DatasetError(
                    f"{where}: {said.get(name, name)} has {got}, and "
                    f"{said.get('terminated', 'terminated')} has {self.rows}"
                )
        self._terminated, self._truncated = terminated, truncated.copy()
        if self.rows:
            self._truncated[-1] |= not terminated[-1]
        ended = terminated | self._truncated
        self._episode = np.cumsum(ended) - ended  # the number of each row's
        self._unknown = ended if not following else np.zeros_like(ended)
        self._last: Mapping[str, Any] = {}
        if last is not None and not following:
            self._last, rows = last
            self._unknown = ended.copy()
            self._unknown[rows] = False
            self._last_at = {int(row): place for place, row in enumerate(rows)}
        self.ends = int(ended.sum())
        self.unknown = int(self._unknown.sum())
        self.unknown_terminated = int((self._unknown & terminated).sum())
        specs = {name: spec(leaf) for name, leaf in fields.items()}
        self.item = nested(specs) if item is None else item

    def blocks(self, names: list[str], of: str | None, size: int, join: bool) -> Iterator[Block]:
        """The rows in order; see `Data`. One block more is in memory, for the next observation."""
        before: Block | None = None
        for start in range(0, self.rows, size):
            part = slice(start, min(start + size, self.rows))
            wanted = dict.fromkeys(names)
            wanted |= dict.fromkeys(n for n in self._fields if of and under({n: 0}, of))
            fields = {name: np.asarray(self._fields[name][part]) for name in wanted}
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
            if name not in self._following:
                raise DatasetError(f"{self._where}: the next observation lacks {name[1:]!r}")
            return np.asarray(self._following[name][part])
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[-1] = 0
        ended = np.flatnonzero(self._terminated[part] | self._truncated[part])
        for row in ended.tolist():
            place = self._last_at.get(part.start + row) if self._last else None
            following[row] = 0 if place is None else self._last[name][place]
        return following

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
