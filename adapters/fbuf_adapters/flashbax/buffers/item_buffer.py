"""Single items, all equally likely."""

from __future__ import annotations

from typing import Any

import fbuf
from fbuf.adapter_api import check
from fbuf_adapters.flashbax.buffers import _arguments
from fbuf_adapters.flashbax.buffers._made import Sizes, made
from fbuf_adapters.flashbax.buffers._oldest_first import OldestFirst
from fbuf_adapters.flashbax.buffers.trajectory_buffer import (
    TrajectoryBuffer,
    TrajectoryBufferSample,
    TrajectoryBufferState,
)


def make_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
) -> TrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws items on their own, all equally likely.

    Before there is an item, a sample holds zeros.

    Args:
        max_length: The number of items to keep.
        min_length: The number of items from which on `can_sample` is True, at least 1.
        sample_batch_size: The number of items of a sample, at least 1.
        add_sequences: Whether batches of `add` have an axis of steps.
        add_batches: Whether batches of `add` have a first axis, of any size.

    Returns:
        The functions `init`, `add`, `sample` and `can_sample`. `add` takes leaves `[...]`,
        `[batch, ...]`, `[steps, ...]` or `[batch, steps, ...]`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument has another type.

    Cost: that of `make_trajectory_buffer`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_item_buffer(100, 2, sample_batch_size=8, add_batches=True)
        >>> state = buffer.init({"observation": jnp.zeros(3)})
        >>> state = buffer.add(state, {"observation": jnp.ones((5, 3))})
        >>> buffer.sample(state, jax.random.key(0)).experience["observation"].shape
        (8, 3)
    """
    sizes = item_sizes(
        "make_item_buffer", max_length, min_length, sample_batch_size, add_sequences, add_batches
    )
    return made(
        TrajectoryBuffer, TrajectoryBufferState, TrajectoryBufferSample, sizes, OldestFirst()
    )


def item_sizes(
    function: str,
    max_length: Any,
    min_length: Any,
    sample_batch_size: Any,
    add_sequences: Any,
    add_batches: Any,
) -> Sizes:
    """Check the arguments of a buffer of items."""
    length = check.integer(function, "max_length", max_length)
    axes = ("batch",) if check.boolean(function, "add_batches", add_batches) else ()
    if check.boolean(function, "add_sequences", add_sequences):
        axes = (*axes, "steps")
    return Sizes(
        environments=None,
        steps=length,
        least=_arguments.at_most(function, "min_length", min_length, "max_length", length),
        axes=axes,
        batch_size=check.integer(function, "sample_batch_size", sample_batch_size),
        view=fbuf.Item(),
        experience=items,
    )


def items(data: Any) -> Any:
    """Return drawn items, which are what a draw returns."""
    return data
