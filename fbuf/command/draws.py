"""How likely the rows of a checkpoint are to be drawn, and how old each is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.samplers.planned import PlannedSampler
from fbuf.samplers.prioritized import PriorityTotals
from fbuf.samplers.uniform import UniformTotals
from fbuf.state import State
from fbuf.storage.ring import REMOVED


@dataclasses.dataclass(frozen=True)
class Draws:
    """The rows that may be drawn.

    Attributes:
        likely: How likely one draw is to be each, times their number: 1 under uniform sampling.
        ages: How many rows ago its environment wrote each, that row included.
        mass: The part that falls to a shard is its mass over that of all shards. None if there is
            more to know.
    """

    likely: np.ndarray
    ages: np.ndarray
    mass: float | None

    @property
    def effective(self) -> float:
        """The effective sample size, see `fbuf.stats`."""
        return float(self.likely.size**2 / np.sum(self.likely**2)) if self.likely.size else 0.0


def of_state(state: State[Any]) -> Draws:
    """The draws of a buffer; its rows are not needed."""
    ring, sampler = state.ring, state.sampler

    @jax.jit
    def probability(index: Any, ring: Any) -> tuple[jax.Array, jax.Array]:
        slots = jnp.arange(ring.capacity, dtype=jnp.int32)
        there = ring.holds(slots) & (ring.flags & REMOVED == 0)
        likely = sampler.probability(index, ring, jnp.where(there, slots, 0))
        likely = jnp.where(there & sampler.can_sample(index, ring), likely, 0)
        return likely, ring.newer(slots) + 1

    likely, ages = map(np.asarray, probability(state.index, ring))
    drawn = likely > 0
    likely = likely[drawn].astype(np.float64)
    return Draws(likely * likely.size, ages[drawn], _mass(state))


def _mass(state: State[Any]) -> float | None:
    """What a shard has of the mass of all."""
    sampler = state.sampler
    if not isinstance(sampler, PlannedSampler):
        return None
    match mass := sampler.shard_totals(state.index, state.ring):
        case PriorityTotals():
            return float(mass.total)
        case UniformTotals():
            return float(mass.starts if mass.segments is None else mass.segments)
        case _:
            return None


def together(each: Sequence[Draws]) -> Draws | None:
    """The draws of all shards together; None if their masses do not say it."""
    masses = [of.mass for of in each if of.mass is not None]
    if len(masses) < len(each):
        return None
    count, mass = sum(of.likely.size for of in each), sum(masses)
    likely = [
        of.likely * (count / of.likely.size) * (own / mass)
        for of, own in zip(each, masses, strict=True)
        if of.likely.size
    ]
    return Draws(
        np.concatenate([*likely, np.zeros(0)]), np.concatenate([of.ages for of in each]), mass
    )
