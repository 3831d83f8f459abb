"""Single items, in proportion to their priorities."""

from __future__ import annotations

from typing import Any

from fbuf_adapters.flashbax.buffers import prioritised_trajectory_buffer as prioritised
from fbuf_adapters.flashbax.buffers.item_buffer import item_sizes
from fbuf_adapters.flashbax.buffers.prioritised_trajectory_buffer import (
    PrioritisedTrajectoryBuffer,
    PrioritisedTrajectoryBufferSample,
)


def make_prioritised_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws items on their own in proportion to their priorities.

    Args:
        max_length: As for `make_item_buffer`.
        min_length: As for `make_item_buffer`.
        sample_batch_size: As for `make_item_buffer`.
        add_sequences: As for `make_item_buffer`.
        add_batches: As for `make_item_buffer`.
        priority_exponent: As for `make_prioritised_trajectory_buffer`.
        device: As for `make_prioritised_trajectory_buffer`.

    Returns:
        The functions of `make_prioritised_trajectory_buffer`, with the batches of
        `make_item_buffer`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument has another type.

    Cost: that of `make_prioritised_trajectory_buffer`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_prioritised_item_buffer(100, 2, sample_batch_size=8, add_batches=True)
        >>> state = buffer.init({"observation": jnp.zeros(3)})
        >>> state = buffer.add(state, {"observation": jnp.ones((5, 3))})
        >>> batch = buffer.sample(state, jax.random.key(0))
        >>> state = buffer.set_priorities(state, batch.indices, jnp.ones(8))
    """
    function = "make_prioritised_item_buffer"
    sizes = item_sizes(
        function, max_length, min_length, sample_batch_size, add_sequences, add_batches
    )
    sampler = prioritised.by_priority(function, priority_exponent, device)
    return prioritised.with_priorities(PrioritisedTrajectoryBufferSample, sizes, sampler)
