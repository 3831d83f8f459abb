"""The stored priorities of rows."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.doctor.opened import Part
from fbuf.samplers.prioritized import Prioritized
from fbuf.samplers.protocol.nested import nested
from fbuf.trees import sum_tree


def sampler_of(part: Part) -> Prioritized | None:
    """Return the sampler with the priorities; None without one."""
    state = part.state
    kinds = (of for of, _ in nested(state.sampler, state.index, state.ring))
    return next((of for of in kinds if isinstance(of, Prioritized)), None)


def of_error(sampler: Prioritized, error: float) -> float:
    """Return the priority that a sampler stores for a TD error."""
    return float(np.float32(max(error + sampler.eps, sampler.floor) ** sampler.alpha))


def of_new(sampler: Prioritized) -> float:
    """Return the default priority of a row in a new buffer."""
    return float(np.float32(max(1.0, sampler.floor) ** sampler.alpha))


def of_part(part: Part) -> np.ndarray[Any, Any]:
    """Return the stored priority of each slot, after the power: float64 `[capacity]`."""
    state = part.state
    inside = nested(state.sampler, state.index, state.ring)
    index = next(index for of, index in inside if isinstance(of, Prioritized))
    return np.asarray(_values(index.tree, state.capacity), np.float64)


@functools.partial(jax.jit, static_argnums=1)
def _values(tree: Any, capacity: int) -> jax.Array:
    return jnp.abs(sum_tree.values(tree, jnp.arange(capacity, dtype=jnp.int32)))
