"""Data sets whose rows lie one after another, episode by episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbuf_adapters.datasets._continuity import goes_on
from fbuf_adapters.datasets._ends import Ends, settle
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Array, native, nested, spec, under, within
from fbuf_adapters.datasets._source import Block, RowFlags, Source

LAST = "last_observation"
"""The default name of the observations of `Last`."""


@dataclasses.dataclass(frozen=True)
class Last:
    """The last observations of some episodes.

    Attributes:
        leaves: Leaves `[n, ...]`, named as by `under`: anything with `shape`, `dtype` and items.
        rows: int `[n]`; the numbers of the last rows of these episodes.
        of: The field of these observations; None means any field.
    """

    leaves: Mapping[str, Any]
    rows: Array
    of: str | None


class Flat(Source):
    """A source of arrays over all rows, read a part at a time.

    Args:
        where: The function that was called, for errors.
        fields: Arrays by name: anything with `shape`, `dtype` and slices, in memory or in a file.
        ends: The ends of episodes. The last row counts as truncated if it ends no episode.
        following: The next observations, named as by `under`; empty if the data set lacks them.
        last: The last observations of some episodes, for data sets without `following`.
        asked: Whether `following` is from the caller, so that it must be used.
        item: One row, if the names do not determine its tree.
        called: The data set's own names of fields, for errors.
    """

    def __init__(
        self,
        where: str,
        fields: Mapping[str, Any],
        ends: Ends,
        *,
        following: Mapping[str, Any],
        last: Last | None = None,
        asked: bool = False,
        item: Any = None,
        called: Mapping[str, str] | None = None,
    ) -> None:
        self.where, self._fields, self._following = where, fields, following
        self._asked, self._called, self._said = asked, called or {}, ends
        self.rows = len(ends.terminated)
        following_said = {f"{NEXT}{name}": leaf for name, leaf in following.items()}
        for name, leaf in {**fields, **following_said, "truncated": ends.truncated}.items():
            if not leaf.shape or leaf.shape[0] != self.rows:
                got = f"{leaf.shape[0]} rows" if leaf.shape else "no axis of rows"
                raise DatasetError(
                    f"{where}: {self._say(name)} has {got}, and {self._say('terminated')} has "
                    f"{self.rows}"
                )
        self._last, self._last_at = last, dict[int, int]()
        if last is not None:
            self._last_at = {int(row): place for place, row in enumerate(last.rows)}
        specs = {name: spec(leaf) for name, leaf in fields.items()}
        self.item = nested(specs) if item is None else item

    def settle(self, next_of: str, size: int) -> list[str]:
        """Find where episodes end; see `Source`."""
        terminated = self._said.terminated
        observed, shown = under(self._fields, next_of), None
        shapes = lambda leaves: {name: tuple(leaf.shape) for name, leaf in leaves.items()}
        if observed and shapes(observed) == shapes(self._following):
            shown = goes_on(observed, self._following, ~self._said.truncated, size)
        truncated, doubts = settle(self._said, shown)
        if self.rows:
            truncated[-1] |= not terminated[-1]
        ended = terminated | truncated
        lacking = ended.copy() if not self._following else np.zeros_like(ended)
        if self._last is not None:
            lacking[self._last.rows] = False
        # A row that terminated needs no next observation: its value is 0.
        unknown, stands_in = lacking & ~terminated, lacking & terminated
        self._flags = RowFlags(terminated, truncated, unknown, stands_in)
        self.ends, self.unknown = int(ended.sum()), int(unknown.sum())
        self.stands_in = int(stands_in.sum())
        return doubts

    def blocks(self, names: list[str], next_of: str | None, size: int) -> Iterator[Block]:
        """Return the rows in order; see `Source`. The previous block is also in memory."""
        if next_of is None and self._asked:
            raise DatasetError(
                f"{self.where}: {NEXT} is given, and the buffer has no place for it; give "
                f"next_of='observation', or the item a field {NEXT!r}, or leave it out"
            )
        if next_of is not None:
            self._check_next(next_of)
        return self._blocks(names, next_of, size)

    def _blocks(self, names: list[str], next_of: str | None, size: int) -> Iterator[Block]:
        observed = {} if next_of is None else within(self._fields, next_of)
        before: Block | None = None
        for start in range(0, self.rows, size):
            part = slice(start, min(start + size, self.rows))
            wanted = dict.fromkeys([*names, *observed])
            fields = {name: native(self._fields[name][part]) for name in wanted}
            flags = RowFlags(*(flag[part] for flag in self._flags))
            following = {
                name: self._led_to(name.removeprefix(next_of or ""), fields[name], part, flags)
                for name in observed
            }
            if before is not None:
                self._join(before, fields)
                yield before
            before = Block(fields, following, flags)
        if before is not None:
            yield before

    def _led_to(self, name: str, leaf: Array, part: slice, flags: RowFlags) -> Array:
        """Return the next observations of a block; that of its last row only if stored.

        The placeholder is a row's own observation, which any network accepts.
        """
        if self._following:
            return native(self._following[name][part])
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[-1] = 0
        for row in np.flatnonzero(flags.ended).tolist():
            place = self._last_at.get(part.start + row)
            if self._last is not None and place is not None:
                following[row] = self._last.leaves[name][place]
            else:
                following[row] = leaf[row] if flags.stands_in[row] else 0
        return following

    def _check_next(self, of: str) -> None:
        """Refuse next observations whose leaves or shapes are not those of the field."""
        fields = {name: spec(leaf) for name, leaf in under(self._fields, of).items()}
        last = self._last
        if last is not None and last.of not in (None, of):
            raise DatasetError(
                f"{self.where}: the data set has the last values of {last.of!r}, and not of "
                f"{of!r}; give next_of={last.of!r}"
            )
        for called, given in ((NEXT, self._following), (LAST, last.leaves if last else {})):
            if given and fields.keys() != given.keys():
                raise DatasetError(
                    f"{self.where}: {called} must have the same parts as {of}, which has "
                    f"{', '.join(of + name for name in fields)}; it has "
                    f"{', '.join(called + name for name in given)}"
                )
            for name, leaf in given.items():
                if spec(leaf).shape != fields[name].shape:
                    raise DatasetError(
                        f"{self.where}: {self._say(called + name)} has shape {spec(leaf).shape} "
                        f"in each row, and {self._say(of + name)} has {fields[name].shape}; they "
                        "must be alike"
                    )

    def _say(self, name: str) -> str:
        """Return the name of a leaf in the data set."""
        return self._called.get(name, name)

    def _join(self, before: Block, fields: dict[str, Array]) -> None:
        """Set the next observation of the last row of a block, unless an episode ended."""
        if not self._following and not before.flags.ended[-1]:
            for name, leaf in before.following.items():
                leaf[-1] = fields[name][0]
