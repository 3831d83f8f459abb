"""The probability of a draw and the age of every row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.samplers.index import priority_index
from fbuf.samplers.limited import Limited
from fbuf.samplers.prioritized import Prioritized, PriorityTotals
from fbuf.samplers.protocol.nested import nested
from fbuf.samplers.protocol.planned import PlannedSampler
from fbuf.samplers.uniform import UniformTotals
from fbuf.state import State
from fbuf.storage.ring import REMOVED


@dataclasses.dataclass(frozen=True)
class Draws:
    """The drawable rows.

    Attributes:
        likely: The probability of each row in one draw, times the number of these rows: 1 under
            uniform sampling.
        ages: The age of each row: the rows that its environment has written since, that row
            included.
        slots: The slot of each row, shard by shard.
        mass: The share of a shard is its mass over the mass of all shards. None for a single
            buffer, or if masses do not give the shares.
        zero: The number of other rows that only their priority of 0 excludes.
    """

    likely: np.ndarray
    ages: np.ndarray
    slots: np.ndarray
    mass: float | None
    zero: int = 0

    @property
    def effective(self) -> float:
        """The effective sample size, see `fbuf.stats`."""
        return float(self.likely.size**2 / np.sum(self.likely**2)) if self.likely.size else 0.0


def of_state(state: State[Any], is_shard: bool) -> Draws:
    """Return the draws of a buffer or of one shard, without reading its rows."""
    likely, ages, count = map(jax.device_get, _of_slots(state))
    drawn = likely > 0
    likely = likely[drawn].astype(np.float64)
    mass = None
    if is_shard and isinstance(state.sampler, PlannedSampler):
        match state.sampler.shard_totals(state.index, state.ring):
            case PriorityTotals() as found:
                mass = float(found.total)
            case UniformTotals() as found:
                mass = float(found.starts if found.segments is None else found.segments)
            case _:
                pass
    zero = max(int(count) - likely.size, 0)
    return Draws(likely * likely.size, ages[drawn], np.flatnonzero(drawn), mass, zero)


@jax.jit
def _of_slots(state: State[Any]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the probability of a draw, 0 without a row, and the age of every slot; and a count.

    The count is that of the rows that are drawable if their priority is above 0.
    """
    index, ring, sampler = state.index, state.ring, state.sampler
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    there = ring.holds(slots) & (ring.flags & REMOVED == 0)
    likely = sampler.probability(index, ring, jnp.where(there, slots, 0))
    likely = jnp.where(there & sampler.can_sample(index, ring), likely, 0)
    count = jnp.int32(0)
    for of, inner in nested(sampler, index, ring):
        if isinstance(of, Prioritized):
            count = priority_index.count(inner, ring)
    if any(isinstance(of, Limited) for of, _ in nested(sampler, index, ring)):
        count = jnp.minimum(count, sampler.stats(index, ring)["live"])  # no retired row is drawn
    return likely, ring.newer(slots) + 1, count


def together(each: Sequence[Draws], capacity: int) -> Draws | None:
    """Return the draws of all shards; None if masses do not give the shares of the shards.

    Args:
        each: The draws of each shard.
        capacity: The capacity of a shard.
    """
    if len(each) == 1:
        return each[0]
    masses = [of.mass for of in each if of.mass is not None]
    if len(masses) < len(each):
        return None
    count, mass = sum(of.likely.size for of in each), sum(masses)
    likely = [
        of.likely * (count / of.likely.size) * (own / mass)
        for of, own in zip(each, masses, strict=True)
        if of.likely.size
    ]
    ages = np.concatenate([of.ages for of in each])
    slots = np.concatenate([of.slots + shard * capacity for shard, of in enumerate(each)])
    zero = sum(of.zero for of in each)
    return Draws(np.concatenate([*likely, np.zeros(0)]), ages, slots, mass, zero)
