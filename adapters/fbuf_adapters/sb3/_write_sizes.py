"""The numbers of steps that programs write: few programs, for each takes a second to compile."""

from __future__ import annotations

SIZES = (1, 4, 16, 64, 256, 1024)
"""The numbers of steps that cross together; a smaller number is padded to one of them."""

_FEWEST = 4
"""The least steps of the first program, unless the first write has fewer."""

_CALLS = 64
"""The most calls of a small program for one write."""

_SPARED = 2000
"""The calls that were more, or of more steps, than needed; from there on each size has its own."""

_PADDED = 16
"""The most steps to write in place of one."""


class WriteSizes:
    """The sizes of the programs of a memory. Another one is compiled where it pays."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._spared = 0

    def fitting(self, count: int, room: int) -> int:
        """Return the size of the program that writes the next of `count` steps.

        Args:
            count: The number of steps to write, at least 1.
            room: The largest padded size.
        """
        size = self._chosen(count, room)
        self._known.add(size)
        self._spared += size != next(s for s in SIZES if s >= count)
        return size

    def _chosen(self, count: int, room: int) -> int:
        exact = next(size for size in SIZES if size >= count)
        if self._spared >= _SPARED:
            return exact
        padded = [size for size in self._known if count <= size <= min(_PADDED * count, room)]
        if padded:
            return min(padded)
        small = [size for size in self._known if size < count <= _CALLS * size]
        if small:
            return max(small)
        return next(s for s in SIZES if min(_FEWEST, exact) <= s and count <= _CALLS * s)
