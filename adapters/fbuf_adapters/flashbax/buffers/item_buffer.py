"""Single items, all equally likely."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import check
from fbuf_adapters.flashbax.buffers import _arguments, trajectory_buffer
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
    function = "make_item_buffer"
    length, least, batch_size, axes = item_sizes(
        function, max_length, min_length, sample_batch_size, add_sequences, add_batches
    )
    return TrajectoryBuffer(
        init=functools.partial(
            trajectory_buffer.init, sampler=OldestFirst(), steps=length, environments=None
        ),
        add=functools.partial(add, axes=axes),
        sample=functools.partial(sample, batch_size=batch_size),
        can_sample=functools.partial(trajectory_buffer.can_sample, least=least),
    )


def item_sizes(
    function: str,
    max_length: Any,
    min_length: Any,
    sample_batch_size: Any,
    add_sequences: Any,
    add_batches: Any,
) -> tuple[int, int, int, tuple[str, ...]]:
    """Return the items to keep, those to draw from, those of a sample, and the axes of a batch."""
    length = check.integer(function, "max_length", max_length)
    axes = ("batch",) if check.boolean(function, "add_batches", add_batches) else ()
    if check.boolean(function, "add_sequences", add_sequences):
        axes = (*axes, "steps")
    return (
        length,
        _arguments.at_most(function, "min_length", min_length, "max_length", length),
        check.integer(function, "sample_batch_size", sample_batch_size),
        axes,
    )


def add(state: Any, batch: Any, *, axes: tuple[str, ...]) -> Any:
    """Return the state with all items of a batch in it."""
    if len(axes) == 2:
        _arguments.rows(state.buffer, batch, axes, state.buffer.capacity)
        items = lambda leaf: leaf.reshape(math.prod(jnp.shape(leaf)[:2]), *jnp.shape(leaf)[2:])
        batch, axes = jax.tree.map(items, batch), ("batch",)
    return trajectory_buffer.add(state, batch, axes=axes)


def sample(
    state: TrajectoryBufferState[Any], rng_key: jax.Array, *, batch_size: int
) -> TrajectoryBufferSample[Any]:
    """Draw a batch."""
    batch = fbuf.sample(state.buffer, rng_key, batch_size)
    return TrajectoryBufferSample(experience=batch.data)
