"""Windows of steps, all equally likely."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

import fbuf
from fbuf.adapter_api import check, warn
from fbuf_adapters.flashbax.buffers import _arguments, _steps
from fbuf_adapters.flashbax.buffers._dataclasses import Replaceable
from fbuf_adapters.flashbax.buffers._made import Sizes, made
from fbuf_adapters.flashbax.buffers._oldest_first import OldestFirst
from fbuf_adapters.flashbax.buffers._window import Window

Experience = TypeVar("Experience")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryBufferState(Replaceable, Generic[Experience]):
    """A buffer as a pytree.

    Attributes:
        buffer: The `fbuf.State`, for `fbuf.save`, `fbuf.stats` and the like.
    """

    buffer: fbuf.State[Experience]

    @property
    def experience(self) -> Experience:
        """The rows, leaves `[add_batch_size, max_length_time_axis, ...]`; zeros for no row.

        It is made anew, at a cost in proportion to the capacity, wherever a program uses its
        values. Its shapes are free inside `jit`.
        """
        return _steps.of_each(_steps.stored_rows, self.buffer)

    @property
    def current_index(self) -> jax.Array:
        """The step that is written next: int32 scalar."""
        return _steps.of_each(_steps.next_step, self.buffer)

    @property
    def is_full(self) -> jax.Array:
        """Whether every step holds rows: bool scalar."""
        return _steps.of_each(_steps.is_full, self.buffer)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryBufferSample(Replaceable, Generic[Experience]):
    """A batch.

    Attributes:
        experience: The drawn rows, leaves `[sample_batch_size, sample_sequence_length, ...]`.
    """

    experience: Experience


BufferState = TypeVar("BufferState", bound=TrajectoryBufferState[Any])
BufferSample = TypeVar("BufferSample", bound=TrajectoryBufferSample[Any])


@dataclasses.dataclass(frozen=True)
class TrajectoryBuffer(Replaceable, Generic[Experience, BufferState, BufferSample]):
    """The functions of a buffer. `buffer.replace(add=...)` puts another one in.

    Called from Python they consume nothing, so that `add` copies the buffer. Compile and donate as
    with flashbax: `buffer.replace(add=jax.jit(buffer.add, donate_argnums=0))`.

    Attributes:
        init: Takes one step of one environment, and returns an empty state.
        add: Takes a state and a batch, and returns the state with the batch in it.
        sample: Takes a state and a key, and returns a sample.
        can_sample: Takes a state, and returns whether enough steps are stored for a batch: a bool
            scalar, which no data changes.
    """

    init: Callable[[Experience], BufferState]
    add: Callable[[BufferState, Experience], BufferState]
    sample: Callable[[BufferState, jax.Array], BufferSample]
    can_sample: Callable[[BufferState], jax.Array]


def make_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
) -> TrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws windows of consecutive steps, all equally likely.

    A window goes on across the ends of episodes. Before there is one, a sample holds zeros.

    Args:
        add_batch_size: The number of environments, at least 1. `add` takes leaves
            `[add_batch_size, steps, ...]`, of up to `max_length_time_axis` steps.
        sample_batch_size: The number of windows of a sample, at least 1.
        sample_sequence_length: The number of steps of a window, at least 1.
        period: The number of steps from one window to the next, at least 1. They are counted from
            the oldest step, so that the windows are other ones after every `add`.
        min_length_time_axis: The number of steps of an environment from which on `can_sample` is
            True, at least 1. A window must fit: it is raised to `sample_sequence_length`.
        max_size: The number of steps of all environments to keep; give this one or the next.
        max_length_time_axis: The number of steps of an environment to keep.

    Returns:
        The functions `init`, `add`, `sample` and `can_sample`.

    Raises:
        ValueError: If an argument is out of range, or a window is longer than the buffer.
        TypeError: If an argument is no int.

    Cost: `add` O(B), `sample` O(B) reads, whatever is stored; an `add` that is not donated copies
    the buffer.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_trajectory_buffer(
        ...     add_batch_size=2, sample_batch_size=4, sample_sequence_length=3, period=1,
        ...     min_length_time_axis=3, max_length_time_axis=10)
        >>> state = buffer.init({"observation": jnp.zeros(5)})
        >>> state = buffer.add(state, {"observation": jnp.ones((2, 6, 5))})
        >>> bool(buffer.can_sample(state))
        True
        >>> buffer.sample(state, jax.random.key(0)).experience["observation"].shape
        (4, 3, 5)
    """
    function = "make_trajectory_buffer"
    environments = check.integer(function, "add_batch_size", add_batch_size)
    steps = _arguments.time_axis(function, max_length_time_axis, max_size, environments)
    sizes = window_sizes(
        *(function, environments, steps, sample_batch_size, sample_sequence_length, period),
        min_length_time_axis,
    )
    sampler = OldestFirst(sizes.view.length, period=period)
    return made(TrajectoryBuffer, TrajectoryBufferState, TrajectoryBufferSample, sizes, sampler)


def window_sizes(
    function: str,
    environments: int,
    steps: int,
    sample_batch_size: Any,
    length: Any,
    period: Any,
    least: Any,
) -> Sizes:
    """Check the arguments of a buffer of windows."""
    here = "max_length_time_axis"
    length = _arguments.at_most(function, "sample_sequence_length", length, here, steps)
    if check.integer(function, "period", period) > length:
        warn(
            f"fbuf.{function}: period={period} is larger than sample_sequence_length={length}, so "
            f"{period - length} of {period} steps are in no window"
        )
    least = _arguments.at_most(function, "min_length_time_axis", least, here, steps)
    return Sizes(
        environments=environments,
        steps=steps,
        least=max(length, least),
        axes=("add_batch_size", "steps"),
        batch_size=check.integer(function, "sample_batch_size", sample_batch_size),
        view=Window(length),
        experience=lambda steps: steps,
    )
