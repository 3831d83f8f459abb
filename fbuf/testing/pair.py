"""A buffer beside its oracle, with the same operations on both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.samplers import Sampler
from fbuf.testing.oracle import Oracle


class Shape(NamedTuple):
    """The shape of a buffer.

    Attributes:
        num_envs: As for `fbuf.init`.
        length: The rows of a lane: the capacity is `length` times the environments.
        lockstep: As for `fbuf.init`.
        autoreset: As for `fbuf.init`.
    """

    num_envs: int | None
    length: int
    lockstep: bool = True
    autoreset: str = "same_step"


def rows(numbers: Any) -> dict[str, Any]:
    """Return rows by their numbers, with four small fields that differ between rows.

    Args:
        numbers: Integers of any shape.

    Returns:
        The fields, leaves `[*numbers.shape, ...]`: `observation`, float32 `[2]`, `action`, int32,
        `reward`, float32, and `number`, int32.

    Examples:
        >>> from fbuf import testing
        >>> testing.rows(6)["observation"].tolist(), testing.rows([6, 7])["reward"].tolist()
        ([6.0, -6.0], [6.0, 0.0])
    """
    numbers = np.asarray(numbers)
    return {
        "observation": np.stack([numbers, -numbers], -1).astype(np.float32),
        "action": (numbers % 3).astype(np.int32),
        "reward": (numbers % 7).astype(np.float32),
        "number": numbers.astype(np.int32),
    }


class Pair:
    """A buffer and its oracle.

    Attributes:
        state: The buffer.
        oracle: Its oracle.
        sampler: Its sampler.
        make: The function that turns the numbers of rows into items.
        seen: The recently used ids `(slot, generation)`, live or not.
    """

    empty: Any = staticmethod(fbuf.init)
    operations: Any = fbuf
    """The functions that change the buffer, by their names in `fbuf`."""

    def __init__(
        self,
        shape: Sequence[Any],
        sampler: Sampler | None = None,
        autoreset: str = "same_step",
        item: Any = None,
        make: Callable[[Any], Any] = rows,
        new_priority: Callable[[Any], float] | None = None,
        **options: Any,
    ) -> None:
        """Begin without rows.

        Args:
            shape: The first three fields of a `Shape`.
            sampler: As for `fbuf.init`.
            autoreset: As for `fbuf.init`.
            item: As for `fbuf.init`. None is the row of the number 0.
            make: As the attribute.
            new_priority: As for `Oracle`.
            options: More arguments of `fbuf.init`.
        """
        envs, length, lockstep = shape[:3]
        self.sampler = sampler = sampler or fbuf.Uniform()
        self.make, self.next_of = make, options.get("next_of")
        self._new_priority = new_priority
        self.state: Any = self.empty(
            make(np.zeros((), np.int32)) if item is None else item,
            length * (envs or 1),
            num_envs=envs,
            lockstep=lockstep,
            autoreset=autoreset,
            sampler=sampler,
            **options,
        )
        self.oracle: Any = self.oracle_of(length, envs or 1, autoreset)
        self.last = [lane + 1 for lane in range(envs or 1)]  # the number of each lane's next row
        self.one_lane, self.whole_steps = envs is None, lockstep and envs is not None
        self.seen: list[tuple[int, int]] = []

    def oracle_of(self, length: int, envs: int, autoreset: str) -> Oracle:
        """Return an oracle without rows for the buffer."""
        tag, new_priority = int(self.state.ring.tag[0]), self._new_priority
        return Oracle(length, envs, autoreset, tag=tag, new_priority=new_priority)

    @property
    def keeps_priorities(self) -> bool:
        """Whether rows have priorities."""
        return self.sampler.keeps_priorities

    # Operations on both.

    def add(
        self,
        steps: int,
        rng: np.random.Generator,
        often: float = 0.0,
        bad: bool = False,
        plain: bool = False,
    ) -> None:
        """Add random rows, a share of `often` with ends; `plain` leaves out all options."""
        envs = self.oracle.envs
        shape, options, mask = (steps, envs), dict[str, Any](), None
        ends = np.zeros(shape, bool)
        if not plain:
            ends, by_itself = rng.random((2, *shape)) < [[[often]], [[0.5]]]
            options = {"terminated": ends & by_itself, "truncated": ends & ~by_itself}
            mask = rng.random(shape) < rng.choice([0.3, 0.8, 1.0])
            if self.whole_steps:
                mask[:] = mask[:, :1]
            options["mask"] = mask
            if self.keeps_priorities:
                values = [0.0, 1.0, 2.0, 3.0, 4.0, 0.25]
                values += [float("nan"), float("inf"), -1.0] * bad
                options["priority"] = rng.choice(values, shape).astype(np.float32)
        # The rows of a lane count up by the number of lanes.
        numbers = np.zeros(shape, int)
        for step, lane in np.argwhere(np.ones(shape) if mask is None else mask):
            numbers[step, lane] = self.last[lane]
            self.last[lane] += envs
        self.oracle.add(numbers, **options)
        if self.next_of:
            options["next_observation"] = self.make(self.after(numbers, ends))[self.next_of]
        given: Any = (self.make(numbers), options)
        if self.one_lane:
            given = jax.tree.map(lambda x: x[:, 0], given)
        items, options = given
        if self.whole_steps and mask is not None:
            options["mask"] = mask[:, 0]
        self.state = self.operations.add(self.state, items, **options, time_major=not self.one_lane)

    def after(self, numbers: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the successor of each row: the lane's next row, or -n for row n at an end."""
        return np.where(ends, -numbers, numbers + self.oracle.envs)

    def ids(
        self, rng: np.random.Generator, count: int = 3, odd: bool = False
    ) -> list[tuple[int, int]]:
        """Return ids of stored rows; with `odd` also stale ids, and ids of no row."""
        live = [(slot, self.oracle.at(slot).generation) for slot in self.oracle.stored()]
        self.seen = (self.seen + live)[-60:]
        capacity = self.oracle.capacity
        strange = [(-1, 0), (capacity, 0), (-7, 0), (2**31 - 1, 3), (capacity - 1, 0)]
        pools = [live, live, strange, self.seen[-30:]] if odd else [live]
        pools = [pool for pool in pools if pool]
        picked = [pools[n] for n in rng.integers(0, len(pools), count)] if pools else []
        ids = [pool[rng.integers(0, len(pool))] for pool in picked]
        return ids[:-1] + ids[:1] if rng.random() < 0.3 else ids  # some ids repeat

    def named(self, ids: Any) -> Any:
        """Return ids as a `fbuf.Ids`."""
        slot, generation = np.array(ids, np.int32).T
        return fbuf.Ids(jnp.asarray(slot), jnp.asarray(generation))

    def remove(self, rng: np.random.Generator, count: int = 3, odd: bool = False) -> None:
        """Remove some rows."""
        ids = self.ids(rng, count, odd)
        if ids:
            mask = rng.random(len(ids)) < 0.7
            self.oracle.remove(ids, mask)
            self.state = self.operations.remove(self.state, self.named(ids), mask=mask)

    def update(
        self, rng: np.random.Generator, count: int = 3, odd: bool = False, twice: bool = False
    ) -> None:
        """Give some rows new priorities; with `twice` each gets two, and the last one counts."""
        ids = self.ids(rng, count, odd) * (1 + twice)
        if ids and self.keeps_priorities:
            mask = (rng.random(len(ids)) < 0.7) | twice
            values = [0.0, 1.0, 3.0, 50.0] + [float("nan"), float("inf"), -1.0] * odd
            new = rng.choice(values, len(ids)).astype(np.float32)
            self.oracle.update_priority(ids, new.tolist(), mask)
            self.state = self.operations.update_priority(
                self.state, self.named(ids), new, mask=mask
            )

    def end(self, rng: np.random.Generator) -> None:
        """End the open episodes of some lanes."""
        lanes = rng.random(self.oracle.envs) < 0.5
        self.oracle.end_episode(lanes)
        mask = lanes[0] if self.one_lane else lanes
        self.state = self.operations.end_episode(self.state, mask=jnp.asarray(mask))

    def clear(self) -> None:
        """Forget all rows."""
        self.oracle.clear()
        self.state = self.operations.clear(self.state)

    def resize(self, length: int) -> list[int]:
        """Give the lanes another length; return the number of dropped rows of each lane."""
        old = self.oracle
        self.state = state = fbuf.resize(self.state, length * old.envs)
        self.oracle = self.oracle_of(length, old.envs, old.autoreset)
        for lane in range(old.envs):
            lap = int(state.ring.lap[lane % state.ring.heads])
            self.oracle.laps[lane] = lap - len(old.kept(lane)[-length:]) // length
        self.oracle.extend(old)
        self.seen = []
        pairs = zip(old.lanes, self.oracle.lanes, strict=True)
        return [len(before) - len(after) for before, after in pairs]

    def step(
        self, rng: np.random.Generator, sizes: Sequence[int], often: float, odd: bool = False
    ) -> str:
        """Do a random operation; return its name. `sizes` are the steps of an add.

        The first of `sizes` is that of an add without options.
        """
        kind = rng.choice(
            ["add", "plain", "remove", "update", "end", "clear"],
            p=[0.4, 0.1, 0.15, 0.12, 0.15, 0.08],
        )
        if kind == "add":
            self.add(int(rng.choice(sizes)), rng, often, bad=odd)
        elif kind == "plain":
            self.add(sizes[0], rng, plain=True)
        elif kind == "clear":
            self.clear()
            if rng.random() < 0.5:  # rows beside older rows
                self.add(sizes[0], rng, often)
                self.remove(rng, 3, odd)
        elif kind == "end":
            self.end(rng)
        else:
            getattr(self, kind)(rng, 3, odd)
        return str(kind)
