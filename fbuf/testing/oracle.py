"""A buffer in plain Python: lists, loops and floats, without an index."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from fbuf.storage.faults import Fault
from fbuf.storage.tags import MOST_LAPS


@dataclasses.dataclass
class Row:
    """A row of an `Oracle`.

    Attributes:
        number: The number of the row. Its fields are made from it.
        generation: The generation in its id.
        priority: Its last priority; that of `Oracle.default` if it came without one.
        terminated: Its flag.
        truncated: Its flag.
        dummy: Whether it only reset its environment (`autoreset="next_step"`). It is never drawn.
        leads_to: The number of the row whose observation is the next observation of this one. If
            the row ended an episode when it was added, it is its own number with a minus sign.
        removed: Whether `fbuf.remove` has removed it.
        cut: Whether its episode began before it, in rows that this buffer never had.
    """

    number: int
    generation: int
    priority: float | None
    terminated: bool
    truncated: bool
    dummy: bool
    leads_to: int = 0
    removed: bool = False
    cut: bool = False

    @property
    def end(self) -> bool:
        """Whether an episode ends here."""
        return self.terminated or self.truncated


class Oracle:
    """Every row of every lane since the last clear. Without environments there is one lane.

    The checks of `fbuf.testing` do the same to a buffer and to its oracle. Ask it in a law or a
    model of a view: `stored`, `at`, `age`, `ahead` and `back`.

    Attributes:
        length: The rows of a lane.
        envs: The number of lanes.
        autoreset: As for `fbuf.init`.
        lanes: The rows of each lane, the oldest first, overwritten ones included.
        capacity: The rows of all lanes.

    Examples:
        >>> import numpy as np
        >>> from fbuf.testing import Oracle
        >>> oracle = Oracle(length=3)
        >>> oracle.add(np.arange(5)[:, None])
        >>> oracle.stored(), [oracle.at(slot).number for slot in oracle.stored()]
        ([2, 0, 1], [2, 3, 4])
        >>> oracle.age(2), [row.number for row in oracle.ahead(2, 2)]
        (2, [2, 3])
    """

    def __init__(
        self,
        length: int,
        envs: int = 1,
        autoreset: str = "same_step",
        *,
        tag: int = 0,
        new_priority: Callable[[Any], float] | None = None,
    ) -> None:
        """Begin without rows.

        Args:
            length: The rows of a lane.
            envs: The number of lanes.
            autoreset: As for `fbuf.init`.
            tag: The number from which generations count.
            new_priority: A function of the oracle that returns the priority of a row that is added
                without one. None keeps None.
        """
        self.length, self.envs, self.autoreset = length, envs, autoreset
        self.tag, self.new_priority = tag, new_priority
        self.capacity = length * envs
        self.lanes: list[list[Row]] = [[] for _ in range(envs)]
        self.laps = [0] * envs
        self.resets = [False] * envs
        self.fault = 0

    # Operations on a buffer.

    def add(
        self,
        numbers: Any,
        terminated: Any = None,
        truncated: Any = None,
        priority: Any = None,
        mask: Any = None,
    ) -> None:
        """Add rows by their numbers, `[steps, envs]`."""
        default = self.default()
        for lane, rows in enumerate(self.lanes):
            chosen = [n for n in range(len(numbers)) if mask is None or mask[n][lane]]
            for rank, step in enumerate(chosen):
                dummy = self.autoreset == "next_step" and self.resets[lane]
                kept = len(chosen) - rank <= self.length and not dummy
                stored = default
                if priority is not None:
                    given = float(priority[step][lane])
                    good = math.isfinite(given) and given >= 0
                    stored = self.power(given) if good else default
                    if kept and not good:
                        self.fault |= Fault.BAD_PRIORITY
                if kept:
                    self.remember(stored)
                number = int(numbers[step][lane])
                ends = [
                    flag is not None and bool(flag[step][lane]) for flag in (terminated, truncated)
                ]
                row = Row(
                    number,
                    self.generation(lane, len(rows)),
                    stored,
                    not dummy and ends[0],
                    not dummy and ends[1],
                    dummy,
                    -number if any(ends) else number + self.envs,
                )
                rows.append(row)
                self.resets[lane] = row.end

    def end_episode(self, lanes: Sequence[Any]) -> None:
        """Truncate what is open in some lanes, and forget that a reset is due."""
        for lane, rows in enumerate(self.lanes):
            if lanes[lane]:
                if rows and not rows[-1].dummy and not rows[-1].end:
                    rows[-1].truncated = True
                self.resets[lane] = False

    def update_priority(self, ids: Any, priority: Any, mask: Any = None) -> None:
        """Give the rows of ids `(slot, generation)` new priorities."""
        for row, given in zip(self.named(ids, mask), priority, strict=True):
            if row is None:
                continue
            if not math.isfinite(given) or given < 0:
                self.fault |= Fault.BAD_PRIORITY
            else:
                row.priority = self.power(given)
                self.remember(row.priority)

    def remove(self, ids: Any, mask: Any = None) -> None:
        """Remove the rows of ids `(slot, generation)`."""
        for row in self.named(ids, mask):
            if row is not None:
                row.removed = True

    def clear(self) -> None:
        """Forget all rows and faults."""
        self.laps = [
            lap + len(rows) // self.length + 1
            for lap, rows in zip(self.laps, self.lanes, strict=True)
        ]
        self.lanes = [[] for _ in range(self.envs)]
        self.fault = 0

    def extend(self, other: Oracle) -> None:
        """Add the rows of another buffer, lane by lane or, where there is one lane, as episodes."""
        self.fault |= other.fault
        alike = self.envs == other.envs and self.autoreset == other.autoreset
        for lane in range(self.envs):
            new = other.kept(lane) if alike else [row for e in other.episodes() for row in e]
            if not new:
                continue
            if len(new) > self.length:
                new, left = new[-self.length :], new[-self.length - 1]
                new[0].cut |= not (left.end or left.dummy)
            self.end_episode([at == lane for at in range(self.envs)])
            self.lanes[lane] += [
                dataclasses.replace(row, generation=self.generation(lane, at))
                for at, row in enumerate(new, len(self.lanes[lane]))
            ]
            self.resets[lane] = alike and other.resets[lane]

    # Priorities. A subclass may keep other data than the priorities themselves.

    def default(self) -> Any:
        """Return the value to keep for a row without a priority."""
        return None if self.new_priority is None else self.new_priority(self)

    def power(self, priority: float) -> float:
        """Return the value to keep for a priority."""
        return priority

    def remember(self, priority: Any) -> None:
        """Record a kept priority."""

    # Rows by their places.

    def there(self, lane: int) -> range:
        """Return the places in a lane of the rows that have not been overwritten."""
        rows = self.lanes[lane]
        return range(max(0, len(rows) - self.length), len(rows))

    def slot(self, lane: int, at: int) -> int:
        """Return the slot of a row by its place in a lane."""
        return at % self.length * self.envs + lane

    def place(self, slot: int) -> tuple[list[Row], int | None]:
        """Return the lane of a slot, and the place of its row there; None without one."""
        step, lane = divmod(slot, self.envs)
        return self.lanes[lane], self.in_lane(lane, step)

    def in_lane(self, lane: int, step: int) -> int | None:
        """Return the place of the stored row at this step of a lane; None without one."""
        found = [at for at in self.there(lane) if at % self.length == step]
        return found[0] if found else None

    def at(self, slot: int) -> Any:
        """Return the `Row` in a slot, removed or not; None without one."""
        rows, number = self.place(slot)
        return None if number is None else rows[number]

    def age(self, slot: int) -> int:
        """Count the rows of its lane that are newer than the row in a slot."""
        rows, at = self.place(slot)
        assert at is not None, f"slot {slot} holds no row"
        return len(rows) - 1 - at

    def stored(self) -> list[int]:
        """Return the slots of the live rows, lane by lane, the oldest first."""
        return [
            self.slot(lane, at)
            for lane, rows in enumerate(self.lanes)
            for at in self.there(lane)
            if not rows[at].removed and not rows[at].dummy
        ]

    def generation(self, lane: int, at: int) -> int:
        """Return the generation of a row by its place in a lane."""
        lap = self.tag + self.laps[lane] + at // self.length
        return (lap + 2**31) % 2**32 - 2**31

    def named(self, ids: Any, mask: Any = None) -> list[Row | None]:
        """Return the rows of ids `(slot, generation)`; None, and a fault, where there is none."""
        rows: list[Row | None] = []
        for n, (slot, generation) in enumerate(ids):
            rows.append(None)
            if slot == -1 or (mask is not None and not mask[n]):
                continue
            if not 0 <= slot < self.capacity:
                self.fault |= Fault.ID_OUT_OF_RANGE
                continue
            row = self.at(slot)
            if row is None or row.removed or row.dummy or row.generation != generation:
                late = (self.generation(0, len(self.lanes[0])) - generation) % 2**32
                self.fault |= Fault.STALE_ID if late < MOST_LAPS else Fault.FOREIGN_ID
            else:
                rows[-1] = row
        return rows

    # Rows that follow one another.

    def ahead(self, slot: int, steps: int, cross: bool = False) -> list[Row]:
        """Return at most `steps` rows of the episode, beginning at a slot; `cross` passes ends."""
        rows, at = self.place(slot)
        found: list[Row] = []
        for row in rows[at:]:
            if row.dummy and cross:
                continue
            if row.removed or row.dummy or len(found) == steps:
                break
            found.append(row)
            if row.end and not cross:
                break
        return found

    def back(self, slot: int, steps: int) -> list[Row]:
        """Return the rows of the episode up to a slot, the newest last, at most `steps`."""
        rows, at = self.place(slot)
        assert at is not None, f"slot {slot} holds no row"
        found = [rows[at]]
        oldest = max(0, len(rows) - self.length)
        while len(found) < steps and at > oldest:
            at -= 1
            if rows[at].end or rows[at].removed or rows[at].dummy:
                break
            found.insert(0, rows[at])
        return found

    def kept(self, lane: int) -> list[Row]:
        """Return copies of the rows of a lane; in a full lane the first row is marked as cut."""
        there = self.there(lane)
        rows = [dataclasses.replace(self.lanes[lane][at]) for at in there]
        if rows and len(there) == self.length:
            rows[0].cut = True
        return rows

    def episodes(self) -> list[list[Row]]:
        """Return copies of all episodes, closed, in the order in which they ended; then by lane."""
        episodes: list[tuple[int, int, list[Row]]] = []
        for lane in range(self.envs):
            rows, episode = self.kept(lane), list[Row]()
            for age, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
                if row.dummy:
                    continue
                episode.append(row)
                if row.end or age == 0:
                    row.truncated |= not row.end
                    episodes.append((-age, lane, episode))
                    episode = []
        return [
            e for *_, e in sorted(episodes, key=lambda f: f[:2]) if not all(r.removed for r in e)
        ]
