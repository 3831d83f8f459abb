"""The figures of a buffer: its rows, its episodes, its draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fbuf.doctor import draws, priorities, rewards
from fbuf.doctor.draws import Draws
from fbuf.doctor.opened import Part
from fbuf.doctor.rewards import Asked, Episodes
from fbuf.doctor.stretches import Stretch
from fbuf.samplers.grouped import Grouped
from fbuf.samplers.protocol.nested import nested
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.samplers.protocol.queues import queue_of
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.ring import DUMMY, REMOVED, UNFINISHED
from fbuf.storage.stored_lanes import Lane, stored_lanes

UNORDERED = "rows lie in no order of time"


@dataclasses.dataclass(frozen=True)
class Found:
    """The content of a buffer.

    Attributes:
        parts: The buffer, or all shards of one over a mesh.
        lanes: The stored rows of each part.
        reward: The name and the number of the reward's leaf; None if there is none.
        rewards: The reward of each slot of each part; empty if there is none.
        figures: All figures, in types of JSON.
        episodes: The whole episodes.
        draws: The drawable rows; None if unknown, or if rows are not drawn.
        priorities: The stored priority of each row of `draws`; None if the sampler keeps none.
        why_not: The reasons for missing returns and draws, by these names.
        stretches: Consecutive rows of some environments; empty before the fields are read.
    """

    parts: Sequence[Part]
    lanes: Sequence[Sequence[Lane]]
    reward: tuple[str, int] | None
    rewards: Sequence[np.ndarray[Any, Any]]
    figures: dict[str, Any]
    episodes: Episodes
    draws: Draws | None
    priorities: np.ndarray[Any, Any] | None
    why_not: dict[str, str]
    stretches: Sequence[Stretch] = ()

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        return self.parts[0].state.sampler

    @property
    def over_mesh(self) -> bool:
        """Whether the buffer lies over a mesh, or is from a checkpoint of such a buffer."""
        return len(self.parts) > 1 or self.parts[0].over_mesh

    @property
    def flags(self) -> np.ndarray[Any, Any]:
        """uint8 `[rows]`; the flags of all stored rows that are not removed."""
        flags = np.concatenate([lane.flags for lanes in self.lanes for lane in lanes])
        return flags[flags & REMOVED == 0]

    def live(self, number: int) -> np.ndarray[Any, Any]:
        """Return the slots of the stored rows of a part that are not removed."""
        lanes = self.lanes[number]
        return np.concatenate([lane.slots[lane.flags & REMOVED == 0] for lane in lanes])

    def place(self, row: int) -> str:
        """Return the place of a row as text: its slot, counted on over the shards."""
        shard, slot = divmod(row, self.parts[0].state.capacity)
        ring = self.parts[0].state.ring
        of = f"shard {shard}, slot {slot}" if len(self.parts) > 1 else f"slot {slot}"
        if ring.num_envs is None:
            return of
        # Environments are counted on over the shards.
        return f"{of}, environment {shard * ring.lanes + slot % ring.lanes}"


def look(parts: Sequence[Part], reward: Asked) -> Found:
    """Return the content of a buffer.

    Args:
        parts: The buffer, or all shards of one over a mesh.
        reward: The field of the reward.

    Raises:
        ValueError: If there is no such field.
    """
    first, count = parts[0], len(parts)
    sampler, capacity = first.state.sampler, first.state.capacity
    lanes = [list(stored_lanes(part.state.ring)) for part in parts]
    why_not: dict[str, str] = {}
    field, values = rewards.reward_field(first.layout, reward), list[np.ndarray[Any, Any]]()
    if isinstance(field, str):
        why_not["returns"], field = field, None
    else:
        values = [
            rewards.values(part, field[1], each) for part, each in zip(parts, lanes, strict=True)
        ]
    if first.known and sampler.places:
        why_not["returns"] = why_not["episodes"] = UNORDERED
    of_slots = values or [None] * count
    whole = rewards.together(
        [
            rewards.episodes(lane, own)
            for each, own in zip(lanes, of_slots, strict=True)
            for lane in each
            if "episodes" not in why_not
        ]
    )
    unread = _unread(parts)
    drawn = of_rows = None
    if unread is not None:
        why_not["draws"] = (
            f"none: rows are read once; {unread:,} of {capacity * count:,} are unread"
        )
    elif not first.known:
        why_not["draws"] = "only fbuf.load knows: the sampler is one of your own"
    else:
        drawn = draws.together([draws.of_state(part.state, count > 1) for part in parts], capacity)
        if drawn is None:
            why_not["draws"] = "not known: they depend on all shards together"
        elif priorities.sampler_of(first) is not None:
            of_rows = np.concatenate([priorities.of_part(part) for part in parts])[drawn.slots]
    of_sampler = _of_sampler(parts)
    if drawn is not None and not drawn.likely.size and of_sampler.get("fresh"):
        why_not["draws"] = f"{of_sampler['fresh']:,} fresh rows first, and no other row"
    found = Found(parts, lanes, field, values, {}, whole, drawn, of_rows, why_not)
    found.figures.update(_figures(found, unread) | {"sampler figures": of_sampler})
    return found


def _unread(parts: Sequence[Part]) -> int | None:
    """Return the number of unread rows of a queue; None without a queue."""
    if not (parts[0].known and parts[0].state.sampler.is_queue):
        return None
    counts = [
        int(queue_of(part.state.sampler).unread(part.state.index, part.state.ring).sum())
        * part.state.ring.lanes_per_head
        for part in parts
    ]
    return sum(counts)


def _figures(found: Found, unread: int | None) -> dict[str, Any]:
    """Return the figures, in types of JSON."""
    first, capacity = found.parts[0], found.parts[0].state.capacity * len(found.parts)
    flags = np.concatenate([lane.flags for lanes in found.lanes for lane in lanes])
    removed, dummies = flags & REMOVED > 0, flags & DUMMY > 0
    returns, drawn = found.episodes.returns, found.draws
    bad = [int((~np.isfinite(of[found.live(at)])).sum()) for at, of in enumerate(found.rewards)]
    faults = [int(part.state.fault) for part in found.parts]
    oldest = max(lane.slots.size for lanes in found.lanes for lane in lanes)
    unordered = first.known and found.sampler.places
    return {
        "capacity": capacity,
        "rows": int((~removed).sum()),
        "fill": flags.size / capacity,
        "removed": int((removed & ~dummies).sum()),
        "dummies": int(dummies.sum()),
        "oldest": None if unordered else oldest,
        "rewards not finite": sum(bad) if found.rewards else None,
        "episodes": found.episodes.lengths.size,
        "with removed rows": found.episodes.thinned,
        "unfinished": int((flags & UNFINISHED > 0).sum()),
        "length": spread(found.episodes.lengths),
        "return": None if returns is None else spread(returns),
        "returns not finite": None if returns is None else int((~np.isfinite(returns)).sum()),
        "reward": None if found.reward is None else found.reward[0],
        "unread": unread,
        "drawable": None if drawn is None else drawn.likely.size,
        "likely": None if drawn is None else spread(drawn.likely),
        "effective sample size": None if drawn is None else drawn.effective,
        "faults": [flag.name for flag in Fault if any(fault & flag for fault in faults)],
    }


def _of_sampler(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the figures of the sampler, and the number of starts of each group."""
    if not parts[0].known:
        return {}
    sampler = parts[0].state.sampler
    each = [jax.device_get(_stats(part.state)) for part in parts]
    figures: dict[str, Any] = {name: [of[name].item() for of in each] for name in each[0]}
    for name, values in figures.items():
        of_all = sum
        if len(values) > 1 and isinstance(sampler, PlannedSampler):  # like fbuf.stats over a mesh
            of_all = max if name in sampler.largest_stats else of_all
            of_all = min if name in sampler.smallest_stats else of_all
        figures[name] = of_all(values)
    counts = [
        np.asarray(index.counts)[:-1]
        for part in parts
        for of, index in nested(part.state.sampler, part.state.index, part.state.ring)
        if isinstance(of, Grouped)
    ]
    if counts:
        figures["groups"] = [int(count) for count in np.sum(counts, axis=0)]
    return figures


@jax.jit
def _stats(state: State[Any]) -> dict[str, jax.Array]:
    return state.sampler.stats(state.index, state.ring)


def spread(values: np.ndarray[Any, Any]) -> tuple[float, float, float] | None:
    """Return the least, the median and the largest of the finite values."""
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    # The median may average two numbers, whose sum may overflow a float64.
    middle = 2 * np.median(values / 2)
    return float(values.min()), float(middle), float(values.max())
