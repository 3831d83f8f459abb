"""The functions of every buffer that draws, made of its classes, its sizes and its sampler."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import register_with_flax
from fbuf_adapters.flashbax.buffers import _arguments, _broadcast, _steps


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The checked arguments of a buffer, and how it draws.

    Attributes:
        environments: The number of environments; None for one without an axis of its own.
        steps: The steps of an environment to keep.
        least: The steps of an environment from which on batches are drawn.
        axes: The axes of a batch of `add`.
        batch_size: The number of windows, pairs or items of a sample.
        view: The view of a draw.
        experience: Takes what that view returns, and returns the `experience` of a sample.
    """

    environments: int | None
    steps: int
    least: int
    axes: tuple[str, ...]
    batch_size: int
    view: Any
    experience: Callable[[Any], Any]


def made(buffer: Any, state: Any, drawn: Any, sizes: Sizes, sampler: Any, **others: Any) -> Any:
    """Return the functions of a buffer.

    Args:
        buffer: The class of the result.
        state: The class of its states.
        drawn: The class of its samples.
        sizes: The checked arguments.
        sampler: The sampler.
        others: Functions that some buffers alone have.
    """
    return buffer(
        init=functools.partial(
            init,
            kind=state,
            sampler=sampler,
            steps=sizes.steps,
            environments=sizes.environments,
        ),
        add=functools.partial(add, axes=sizes.axes),
        sample=functools.partial(sample, kind=drawn, sizes=sizes),
        can_sample=functools.partial(can_sample, least=sizes.least),
        **others,
    )


def init(experience: Any, *, kind: Any, sampler: Any, steps: int, environments: int | None) -> Any:
    """Return an empty state of a class, for one step of one environment."""
    register_with_flax(kind)
    return kind(
        fbuf.init(
            experience,
            steps * (environments or 1),
            num_envs=environments,
            sampler=sampler,
            removable=False,  # flashbax has no function that removes
        )
    )


def add(state: Any, batch: Any, *, axes: tuple[str, ...]) -> Any:
    """Return the state with a batch of these axes in it."""
    buffer = state.buffer
    batch = _broadcast.as_stored(buffer.storage.item, batch, axes)
    _arguments.rows(buffer, batch, axes, buffer.ring.lane_length)
    if axes == ("batch", "steps"):  # items on their own: one lane takes all of them
        items = lambda leaf: leaf.reshape(math.prod(jnp.shape(leaf)[:2]), *jnp.shape(leaf)[2:])
        batch = jax.tree.map(items, batch)
    return dataclasses.replace(state, buffer=fbuf.add(buffer, batch, donate=False))


def sample(state: Any, rng_key: jax.Array, *, kind: Any, sizes: Sizes) -> Any:
    """Draw a batch, and return what samples of a class have of it."""
    batch = fbuf.sample(state.buffer, rng_key, sizes.batch_size, view=sizes.view)
    parts = {"indices": batch.ids, "probabilities": batch.probability}
    parts["experience"] = sizes.experience(batch.data)
    return kind(**{field.name: parts[field.name] for field in dataclasses.fields(kind)})


def can_sample(state: Any, *, least: int) -> jax.Array:
    """Return whether at least `least` steps are stored.

    The count alone decides, as in flashbax. So under `vmap` it is one number for all seeds of a
    program, and a `jax.lax.cond` that asks for it still takes one branch.
    """
    return _steps.of_each(lambda buffer: _steps.stored_steps(buffer) >= least, state.buffer)
