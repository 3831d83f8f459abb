"""Pairs of consecutive steps, in proportion to their priorities."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic

import jax

from fbuf_adapters.flashbax.buffers import flat_buffer
from fbuf_adapters.flashbax.buffers import prioritised_trajectory_buffer as prioritised
from fbuf_adapters.flashbax.buffers.flat_buffer import TransitionSample
from fbuf_adapters.flashbax.buffers.prioritised_trajectory_buffer import (
    Indices,
    PrioritisedTrajectoryBuffer,
    Probabilities,
)
from fbuf_adapters.flashbax.buffers.trajectory_buffer import Experience


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrioritisedTransitionSample(TransitionSample[Experience], Generic[Experience]):
    """A batch of pairs; see `PrioritisedTrajectoryBufferSample`."""

    indices: Indices
    probabilities: Probabilities


def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws pairs of consecutive steps in proportion to their priorities.

    Args:
        max_length: As for `make_flat_buffer`.
        min_length: As for `make_flat_buffer`.
        sample_batch_size: As for `make_flat_buffer`.
        add_sequences: As for `make_flat_buffer`.
        add_batch_size: As for `make_flat_buffer`.
        priority_exponent: As for `make_prioritised_trajectory_buffer`.
        device: As for `make_prioritised_trajectory_buffer`.

    Returns:
        The functions of `make_prioritised_trajectory_buffer`, with the batches of
        `make_flat_buffer`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument has another type.

    Cost: that of `make_prioritised_trajectory_buffer`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_prioritised_flat_buffer(100, 1, sample_batch_size=8, add_batch_size=2)
        >>> state = buffer.init({"observation": jnp.zeros(3)})
        >>> state = buffer.add(state, {"observation": jnp.zeros((2, 3))})
        >>> state = buffer.add(state, {"observation": jnp.ones((2, 3))})
        >>> batch = buffer.sample(state, jax.random.key(0))
        >>> state = buffer.set_priorities(state, batch.indices, jnp.ones(8))
    """
    function = "make_prioritised_flat_buffer"
    sizes = flat_buffer.flat_sizes(
        function, max_length, min_length, sample_batch_size, add_sequences, add_batch_size
    )
    sampler = prioritised.by_priority(function, priority_exponent, device, window=2)
    return prioritised.with_priorities(PrioritisedTransitionSample, sizes, sampler)
