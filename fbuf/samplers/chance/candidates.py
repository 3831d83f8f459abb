"""Candidates for a batch: its draws are the first allowed ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fbuf.samplers.chance.weights import renormalised
from fbuf.samplers.protocol.sampler import Draw


class Taken(NamedTuple):
    """The candidates of a batch of `B` draws.

    Attributes:
        places: int32 `[B]`; the number of each draw's candidate; 0 for a draw without one.
        draws: int32 scalar; the number of draws with a candidate. They come first.
    """

    places: jax.Array
    draws: jax.Array


def first(allowed: jax.Array, count: int) -> Taken:
    """Take the first `count` candidates that are allowed, of bool `[C]`."""
    rank = jnp.cumsum(allowed, dtype=jnp.int32) - 1
    number = jnp.arange(allowed.shape[0], dtype=jnp.int32)
    places = jnp.zeros(count, jnp.int32)
    places = places.at[jnp.where(allowed, rank, count)].set(number, mode="drop")
    return Taken(places, jnp.minimum(rank[-1] + 1, count))


def of_draw(drawn: Draw, taken: Taken, by_batch: bool) -> Draw:
    """Return the taken draws; with `by_batch`, weights are divided by the largest of these."""
    parts = (drawn.slots, drawn.probability, drawn.weight, drawn.log_weight, drawn.mask)
    own = Draw(*(part[taken.places] for part in parts))
    position = jnp.arange(taken.places.shape[0], dtype=jnp.int32)
    return masked(own, position < taken.draws, by_batch, ())


def masked(drawn: Draw, there: jax.Array, by_batch: bool, axes: tuple[str, ...]) -> Draw:
    """Mask the draws with a False in `there`, bool `[m]`; the batch lies along `axes` of a mesh."""
    mask, weight = drawn.mask & there, drawn.weight
    if by_batch:
        weight = renormalised(drawn.log_weight, mask, axes)
    weight = jnp.where(mask, weight, 0)
    likely = jnp.where(mask, drawn.probability, 0)
    return Draw(drawn.slots, likely, weight, drawn.log_weight, mask)


def pick_of(picks: Any, taken: Taken) -> Any:
    """Return the picks of the taken candidates; picks have leaves `[..., C]`."""
    return jax.tree.map(lambda leaf: leaf[..., taken.places], picks)
