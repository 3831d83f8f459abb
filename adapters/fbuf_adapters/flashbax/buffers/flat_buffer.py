"""Pairs of consecutive steps, all equally likely."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, NamedTuple

import jax

from fbuf.adapter_api import check
from fbuf_adapters.flashbax.buffers import _arguments
from fbuf_adapters.flashbax.buffers._dataclasses import Replaceable
from fbuf_adapters.flashbax.buffers._made import Sizes, made
from fbuf_adapters.flashbax.buffers._oldest_first import OldestFirst
from fbuf_adapters.flashbax.buffers._window import Window
from fbuf_adapters.flashbax.buffers.trajectory_buffer import Experience, TrajectoryBufferState
from fbuf_adapters.flashbax.buffers.trajectory_buffer import TrajectoryBuffer as TrajectoryBuffer


class ExperiencePair(NamedTuple, Generic[Experience]):
    """A step, and the one after it, which may belong to the next episode; leaves `[B, ...]`."""

    first: Experience
    second: Experience


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransitionSample(Replaceable, Generic[Experience]):
    """A batch of pairs."""

    experience: ExperiencePair[Experience]


def flat_sizes(
    function: str,
    max_length: Any,
    min_length: Any,
    sample_batch_size: Any,
    add_sequences: Any,
    add_batch_size: Any,
) -> Sizes:
    """Check the arguments of a flat buffer."""
    lanes = 1
    if add_batch_size is not None:
        lanes = check.integer(function, "add_batch_size", add_batch_size)
    check.integer(function, "max_length", max_length, smallest=2 * lanes)  # a pair of each
    steps = _arguments.lane(function, "max_length", max_length, lanes)
    least = check.integer(function, "min_length", min_length) // lanes + 1
    if least > steps:
        raise ValueError(
            f"fbuf.{function}: min_length={min_length} pairs take {least} steps of each of {lanes} "
            f"environments, and the buffer keeps {steps}; make max_length larger"
        )
    axes = () if add_batch_size is None else ("add_batch_size",)
    if check.boolean(function, "add_sequences", add_sequences):
        axes = (*axes, "steps")
    return Sizes(
        environments=add_batch_size,
        steps=steps,
        least=max(least, 2),
        axes=axes,
        batch_size=check.integer(function, "sample_batch_size", sample_batch_size),
        view=Window(2),
        experience=pair,
    )


def make_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
) -> TrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws pairs of consecutive steps, all equally likely.

    The second step of a pair may belong to the next episode. Before there is a pair, a sample holds
    zeros.

    Args:
        max_length: The number of steps of all environments to keep.
        min_length: The number of pairs from which on `can_sample` is True, at least 1.
        sample_batch_size: The number of pairs of a sample, at least 1.
        add_sequences: Whether batches of `add` have an axis of steps.
        add_batch_size: The number of environments. None is one environment, and then batches have
            no axis of environments.

    Returns:
        The functions `init`, `add`, `sample` and `can_sample`. `add` takes leaves `[...]`,
        `[add_batch_size, ...]`, `[steps, ...]` or `[add_batch_size, steps, ...]`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an argument has another type.

    Cost: that of `make_trajectory_buffer`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_flat_buffer(100, 1, sample_batch_size=8, add_batch_size=2)
        >>> state = buffer.init({"observation": jnp.zeros(3)})
        >>> state = buffer.add(state, {"observation": jnp.zeros((2, 3))})
        >>> state = buffer.add(state, {"observation": jnp.ones((2, 3))})
        >>> pair = buffer.sample(state, jax.random.key(0)).experience
        >>> pair.first["observation"].shape, float(pair.second["observation"].min())
        ((8, 3), 1.0)
    """
    sizes = flat_sizes(
        "make_flat_buffer",
        *(max_length, min_length, sample_batch_size, add_sequences, add_batch_size),
    )
    return made(TrajectoryBuffer, TrajectoryBufferState, TransitionSample, sizes, OldestFirst(2))


def pair(steps: Any) -> ExperiencePair[Any]:
    """Take windows of two steps apart."""
    return ExperiencePair(
        first=jax.tree.map(lambda leaf: leaf[:, 0], steps),
        second=jax.tree.map(lambda leaf: leaf[:, 1], steps),
    )
