"""One batch from several buffers, by shares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.adapter_api import check
from fbuf_adapters.flashbax.buffers._dataclasses import Replaceable
from fbuf_adapters.flashbax.buffers.trajectory_buffer import TrajectoryBuffer


@dataclasses.dataclass(frozen=True)
class Mixer(Replaceable):
    """The functions of a mixer.

    Attributes:
        sample: Takes the states of all buffers, in order, and a key; returns a sample.
        can_sample: Takes the states, and returns whether each has a batch to draw: a bool scalar.
    """

    sample: Callable[[Sequence[Any], jax.Array], Any]
    can_sample: Callable[[Sequence[Any]], jax.Array]


def make_mixer(
    buffers: Sequence[TrajectoryBuffer[Any, Any, Any]],
    sample_batch_size: int,
    proportions: Sequence[float],
) -> Mixer:
    """Make a mixer of buffers of one kind: a share of each sample is from each.

    The rows of a sample are in the order of the buffers: first all of the first one. So are
    `indices` and `probabilities`, which are those of the row's own buffer.

    Args:
        buffers: The buffers, all made by the same function.
        sample_batch_size: The number of rows of a mixed sample, at least 1. Each buffer's own
            `sample_batch_size` must be at least its share.
        proportions: The share of each buffer, at least 0; only their ratios count. Shares are
            rounded down to rows, and the first buffer gets the rest.

    Returns:
        The functions `sample` and `can_sample`.

    Raises:
        ValueError: If an argument is out of range. From `sample`, if the share of a buffer is
            larger than its own `sample_batch_size`, or if the number of states is another one.
        TypeError: If `buffers` are not all of one kind.

    Cost: that of a whole sample of each buffer.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_item_buffer(100, 1, sample_batch_size=8)
        >>> states = [buffer.add(buffer.init(jnp.float32(0)), jnp.float32(x)) for x in (1, 2)]
        >>> mixer = fbx.make_mixer([buffer, buffer], sample_batch_size=4, proportions=[3, 1])
        >>> mixer.sample(states, jax.random.key(0)).experience
        Array([1., 1., 1., 2.], dtype=float32)
    """
    function = "make_mixer"
    size = check.integer(function, "sample_batch_size", sample_batch_size)
    if not buffers or len({type(buffer) for buffer in buffers}) > 1:
        raise TypeError(
            f"fbuf.{function}: buffers must be one or more, all of one kind, got "
            f"{[type(buffer).__name__ for buffer in buffers]}"
        )
    for share in proportions:
        check.number(function, "proportions", share)
    if len(proportions) != len(buffers) or not sum(proportions) > 0:
        raise ValueError(
            f"fbuf.{function}: proportions must be one number a buffer, and not all 0, got "
            f"{list(proportions)} for {len(buffers)} buffers"
        )
    shares = [int(share / sum(proportions) * size) for share in proportions]
    shares[0] += size - sum(shares)
    return Mixer(
        sample=functools.partial(sample, buffers=tuple(buffers), shares=tuple(shares)),
        can_sample=functools.partial(can_sample, buffers=tuple(buffers)),
    )


def sample(
    states: Sequence[Any],
    key: jax.Array,
    *,
    buffers: tuple[TrajectoryBuffer[Any, Any, Any], ...],
    shares: tuple[int, ...],
) -> Any:
    """Draw a batch of each buffer, and return the first rows of each."""
    _one_a_buffer(states, buffers)
    parts: list[Any] = []
    keys = jax.random.split(key, len(states))
    for number, (buffer, state, share) in enumerate(zip(buffers, states, shares, strict=True)):
        batch = buffer.sample(state, keys[number])
        drawn = jax.tree.leaves(batch)[0].shape[0]
        if drawn < share:
            raise ValueError(
                f"fbuf.sample: {share} rows of a mixed sample are from buffer {number}, whose "
                f"sample_batch_size is {drawn}; make the buffer with a larger one"
            )
        parts.append(jax.tree.map(lambda leaf, share=share: leaf[:share], batch))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def can_sample(
    states: Sequence[Any], *, buffers: tuple[TrajectoryBuffer[Any, Any, Any], ...]
) -> jax.Array:
    """Return whether each buffer has a batch to draw."""
    _one_a_buffer(states, buffers)
    ready = [buffer.can_sample(state) for buffer, state in zip(buffers, states, strict=True)]
    return jnp.stack(ready).all(axis=0)


def _one_a_buffer(states: Sequence[Any], buffers: tuple[Any, ...]) -> None:
    if len(states) != len(buffers):
        raise ValueError(
            f"fbuf.sample: states must be one a buffer, got {len(states)} for {len(buffers)}"
        )
