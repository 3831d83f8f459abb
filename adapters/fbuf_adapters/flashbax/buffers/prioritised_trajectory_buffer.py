"""Windows of steps, in proportion to their priorities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic

import jax
import jax.numpy as jnp

import fbuf
from fbuf.adapter_api import check, warn
from fbuf_adapters.flashbax.buffers import _arguments
from fbuf_adapters.flashbax.buffers._made import Sizes, made
from fbuf_adapters.flashbax.buffers._sum_tree import SumTreeState
from fbuf_adapters.flashbax.buffers.trajectory_buffer import (
    BufferSample,
    BufferState,
    Experience,
    TrajectoryBuffer,
    TrajectoryBufferSample,
    TrajectoryBufferState,
    window_sizes,
)

Indices = fbuf.Ids
Priorities = jax.Array
Probabilities = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrioritisedTrajectoryBufferState(TrajectoryBufferState[Experience], Generic[Experience]):
    """A buffer with priorities, as a pytree.

    The sum tree is `buffer.index`, which only `fbuf` reads. `fbuf.probability(state.buffer, ids)`
    and `fbuf.stats(state.buffer)` ask it.
    """

    @property
    def sum_tree_state(self) -> SumTreeState:
        """The priorities by flashbax's fields, to read; `nodes` takes O(N)."""
        return SumTreeState(self.buffer)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrioritisedTrajectoryBufferSample(TrajectoryBufferSample[Experience], Generic[Experience]):
    """A batch, with what `set_priorities` and importance weights need.

    Attributes:
        experience: The drawn rows, leaves `[sample_batch_size, sample_sequence_length, ...]`.
        indices: The `fbuf.Ids` of the first steps, a pytree of arrays `[sample_batch_size]`. They
            name these rows for ever: once a row is overwritten, its id names no row.
        probabilities: float32 `[sample_batch_size]`: how likely one draw is to be this window; 0
            where there is nothing to draw.
    """

    indices: Indices
    probabilities: Probabilities


@dataclasses.dataclass(frozen=True)
class PrioritisedTrajectoryBuffer(TrajectoryBuffer[Experience, BufferState, BufferSample]):
    """The functions of a buffer with priorities; see `TrajectoryBuffer`.

    Attributes:
        set_priorities: Takes a state, the `indices` of a sample, and priorities, and returns the
            state with these priorities.
    """

    set_priorities: Callable[[BufferState, Indices, Priorities], BufferState]


def make_prioritised_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer[Any, Any, Any]:
    """Make a buffer that draws windows of consecutive steps in proportion to their priorities.

    A window has the priority `p ** priority_exponent`, and the largest ever stored until it gets
    one. A window of priority 0 is never drawn. Draws are independent of each other. A sample that
    finds nothing to draw holds zeros, with probabilities of 0 and indices that `set_priorities`
    leaves out.

    Args:
        add_batch_size: As for `make_trajectory_buffer`.
        sample_batch_size: As for `make_trajectory_buffer`.
        sample_sequence_length: As for `make_trajectory_buffer`.
        period: The number of steps from one window to the next, at least 1, counted from the first
            step ever added.
        min_length_time_axis: As for `make_trajectory_buffer`.
        max_size: As for `make_trajectory_buffer`.
        max_length_time_axis: As for `make_trajectory_buffer`. It is rounded down to a multiple of
            `period`, with a warning.
        priority_exponent: The power of priorities, from 0 to 1.
        device: Not used: the program is compiled for the platform that it runs on.

    Returns:
        The functions `init`, `add`, `sample`, `can_sample` and `set_priorities`. `can_sample` asks
        for the steps alone, not for priorities. `set_priorities` takes priorities of at least 0. If
        an index repeats, its last priority counts. It leaves out NaN, infinite and negative ones,
        and windows that were overwritten since; `fbuf.raise_on_fault(state.buffer)` says so.

    Raises:
        ValueError: If an argument is out of range, or a window is longer than the buffer.
        TypeError: If an argument has another type.

    Cost: O(B log N), whatever is stored; an `add` that is not donated copies the buffer.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fbuf_adapters import flashbax as fbx
        >>> buffer = fbx.make_prioritised_trajectory_buffer(
        ...     add_batch_size=2, sample_batch_size=4, sample_sequence_length=3, period=1,
        ...     min_length_time_axis=3, max_length_time_axis=10)
        >>> state = buffer.init({"observation": jnp.zeros(5)})
        >>> state = buffer.add(state, {"observation": jnp.ones((2, 6, 5))})
        >>> batch = buffer.sample(state, jax.random.key(0))
        >>> batch.probabilities
        Array([0.125, 0.125, 0.125, 0.125], dtype=float32)
        >>> state = buffer.set_priorities(state, batch.indices, jnp.arange(4.0))
    """
    function = "make_prioritised_trajectory_buffer"
    environments = check.integer(function, "add_batch_size", add_batch_size)
    steps = _arguments.time_axis(function, max_length_time_axis, max_size, environments)
    steps = whole_periods(function, steps, check.integer(function, "period", period))
    sizes = window_sizes(
        *(function, environments, steps, sample_batch_size, sample_sequence_length, period),
        min_length_time_axis,
    )
    sampler = by_priority(function, priority_exponent, device, sizes.view.length, period)
    return with_priorities(PrioritisedTrajectoryBufferSample, sizes, sampler)


def with_priorities(drawn: Any, sizes: Sizes, sampler: fbuf.Prioritized) -> Any:
    """Return the functions of a buffer with priorities; `drawn` is the class of its samples."""
    return made(
        *(PrioritisedTrajectoryBuffer, PrioritisedTrajectoryBufferState, drawn, sizes, sampler),
        set_priorities=set_priorities,
    )


def whole_periods(function: str, steps: int, period: int) -> int:
    """Return the largest multiple of `period` in a number of steps; warn if it is another."""
    whole = steps // period * period
    if whole == 0:
        raise ValueError(
            f"fbuf.{function}: period must be at most max_length_time_axis, which is {steps}, got "
            f"{period}"
        )
    if whole < steps:
        warn(
            f"fbuf.{function}: max_length_time_axis={steps} is no multiple of period={period}, so "
            f"the buffer keeps {whole} steps of each environment"
        )
    return whole


def by_priority(
    function: str, priority_exponent: Any, device: Any, window: int = 1, period: int = 1
) -> fbuf.Prioritized:
    """Return the sampler of flashbax's priorities."""
    check.choice(function, "device", device, ("cpu", "gpu", "tpu"))
    return fbuf.Prioritized(
        _arguments.exponent(function, priority_exponent),
        eps=0.0,
        new_priority="largest_ever",
        window=window,
        stride=period,
    )


def set_priorities(state: Any, indices: Any, priorities: Any) -> Any:
    """Return the state with new priorities of some windows."""
    if not isinstance(indices, fbuf.Ids):
        raise TypeError(
            "fbuf.set_priorities: indices must be those of a sample, which name rows for ever, got "
            f"{type(indices).__name__}; for the slots of an array of your own give "
            "fbuf.ids_at(state.buffer, slots), where slot = step * add_batch_size + environment"
        )
    power, given = state.buffer.sampler.alpha, jnp.asarray(priorities)
    # The power as flashbax takes it, to the last bit. A bad priority stays a bad one.
    stored = jnp.where(given > 0, given**power, given)
    buffer = fbuf.update_priority(state.buffer, indices, stored, alpha=1.0, donate=False)
    return dataclasses.replace(state, buffer=buffer)
