"""Windows of steps, each step once, in the order in which they were added."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic

import jax

import fbuf
from fbuf.adapter_api import check
from fbuf_adapters.flashbax.buffers import _arguments, _made, _steps
from fbuf_adapters.flashbax.buffers._dataclasses import Replaceable
from fbuf_adapters.flashbax.buffers.trajectory_buffer import Experience


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryQueueState(Replaceable, Generic[Experience]):
    """A queue as a pytree.

    Attributes:
        buffer: The `fbuf.State`, for `fbuf.save`, `fbuf.stats` and the like.
    """

    buffer: fbuf.State[Experience]

    @property
    def experience(self) -> Experience:
        """The rows, leaves `[add_batch_size, max_length_time_axis, ...]`; zeros for no row.

        It is made anew, at a cost in proportion to the capacity, wherever a program uses its
        values.
        """
        return _steps.of_each(_steps.stored_rows, self.buffer)

    @property
    def write_index(self) -> jax.Array:
        """The step that is written next: int32 scalar."""
        return _steps.of_each(_steps.next_step, self.buffer)

    @property
    def read_index(self) -> jax.Array:
        """The step that is read next: int32 scalar."""

        def read(buffer: fbuf.State[Any]) -> jax.Array:
            return (_steps.next_step(buffer) - fbuf.unread(buffer)) % buffer.ring.lane_length

        return _steps.of_each(read, self.buffer)

    @property
    def is_full(self) -> jax.Array:
        """Whether no step can be added before one is read: bool scalar."""
        return _steps.of_each(lambda buffer: fbuf.space(buffer) == 0, self.buffer)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryQueueSample(Replaceable, Generic[Experience]):
    """A batch.

    Attributes:
        experience: The rows, leaves `[add_batch_size, sample_sequence_length, ...]`.
    """

    experience: Experience


@dataclasses.dataclass(frozen=True)
class TrajectoryQueue(Replaceable, Generic[Experience]):
    """The functions of a queue; see `TrajectoryBuffer`.

    Attributes:
        init: Takes one step of one environment, and returns an empty state.
        add: Takes a state and a batch, and returns the state with the batch in it.
        sample: Takes a state, and returns the state without the oldest steps, and a sample.
        can_sample: Takes a state, and returns whether a sample is whole: a bool scalar.
        can_add: Takes a state, and returns whether there is room for a batch: a bool scalar.
    """

    init: Callable[[Experience], TrajectoryQueueState[Experience]]
    add: Callable[[TrajectoryQueueState[Experience], Experience], TrajectoryQueueState[Experience]]
    sample: Callable[
        [TrajectoryQueueState[Experience]],
        tuple[TrajectoryQueueState[Experience], TrajectoryQueueSample[Experience]],
    ]
    can_sample: Callable[[TrajectoryQueueState[Experience]], jax.Array]
    can_add: Callable[[TrajectoryQueueState[Experience]], jax.Array]


def make_trajectory_queue(
    max_length_time_axis: int | None,
    add_batch_size: int,
    add_sequence_length: int,
    sample_sequence_length: int,
    max_size: int | None = None,
) -> TrajectoryQueue[Any]:
    """Make a queue: every step is read once, the oldest first.

    A full queue takes the first steps of a batch that fit, and `fbuf.raise_on_fault(state.buffer)`
    says that others were left out. Without enough unread steps, `sample` reads none and returns
    zeros.

    Args:
        max_length_time_axis: The number of steps of an environment to keep; None if you give
            `max_size`.
        add_batch_size: The number of environments. `add` takes leaves
            `[add_batch_size, steps, ...]`.
        add_sequence_length: The number of steps that must fit for `can_add`.
        sample_sequence_length: The number of steps of a sample.
        max_size: The number of steps of all environments to keep, instead of
            `max_length_time_axis`.

    Returns:
        The functions `init`, `add`, `sample`, `can_sample` and `can_add`.

    Raises:
        ValueError: If an argument is out of range, or a batch or a sample is longer than the queue.
        TypeError: If an argument is no int.

    Cost: O(B), whatever is stored; a call that is not donated copies the queue.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> queue = fbx.make_trajectory_queue(
        ...     10, add_batch_size=1, add_sequence_length=4, sample_sequence_length=2)
        >>> state = queue.init(jnp.float32(0))
        >>> state = queue.add(state, jnp.arange(4.0)[None])
        >>> state, batch = queue.sample(state)
        >>> batch.experience, bool(queue.can_sample(state))
        (Array([[0., 1.]], dtype=float32), True)
    """
    function = "make_trajectory_queue"
    environments = check.integer(function, "add_batch_size", add_batch_size)
    if max_size is not None:
        max_length_time_axis = None  # flashbax asks for both, and takes this one
    steps = _arguments.time_axis(function, max_length_time_axis, max_size, environments)
    lengths = {"add_sequence_length": add_sequence_length}
    lengths["sample_sequence_length"] = sample_sequence_length
    added, read = (
        _arguments.at_most(function, name, value, "max_length_time_axis", steps)
        for name, value in lengths.items()
    )
    return TrajectoryQueue(
        init=functools.partial(
            _made.init,
            kind=TrajectoryQueueState,
            sampler=fbuf.Fifo(),
            steps=steps,
            environments=environments,
        ),
        add=functools.partial(_made.add, axes=("add_batch_size", "steps")),
        sample=functools.partial(sample, length=read),
        can_sample=functools.partial(can_sample, length=read),
        can_add=functools.partial(can_add, length=added),
    )


def sample(
    state: TrajectoryQueueState[Any], *, length: int
) -> tuple[TrajectoryQueueState[Any], TrajectoryQueueSample[Any]]:
    """Read the oldest `length` steps, if that many are unread."""
    whole = fbuf.unread(state.buffer) >= length
    buffer, batch = fbuf.pop(state.buffer, length, mask=whole, donate=False)
    return TrajectoryQueueState(buffer=buffer), TrajectoryQueueSample(experience=batch.data)


def can_sample(state: TrajectoryQueueState[Any], *, length: int) -> jax.Array:
    """Return whether at least `length` steps are unread."""
    return _steps.of_each(lambda buffer: fbuf.unread(buffer) >= length, state.buffer)


def can_add(state: TrajectoryQueueState[Any], *, length: int) -> jax.Array:
    """Return whether there is room for `length` steps."""
    return _steps.of_each(lambda buffer: fbuf.space(buffer) >= length, state.buffer)
