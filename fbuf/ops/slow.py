"""A timed check that steps do not slow down with the size of their buffers."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, cast

import jax
import jax.numpy as jnp

from fbuf.ops.buffers_in import buffers_in, with_buffers, with_others
from fbuf.ops.resize import empty_as
from fbuf.state import State

_SMALLER = 64
"""The factor by which the smaller buffer of the timing has less capacity."""

_SLOWER = 4
"""The most that a larger buffer may slow a step, as its rows lie in slower memory."""

_ROUNDS = 15
"""The calls to time with each buffer."""


def refuse_slow(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a step slows down with the size of its buffers."""
    runs = [_TimedStep(jitted, _resized((args, kwargs), smaller)) for smaller in (_SMALLER, 1)]
    for _ in range(_ROUNDS):  # by turns, so that other work of the machine slows down both
        for run in runs:
            run.call()
    # The minimum, as other work of the machine only adds time.
    small, large = (min(run.seconds) for run in runs)
    if large > _SLOWER * small:
        raise RuntimeError(
            f"fbuf.check_in_place: this step takes {large * 1e6:,.0f} us, and {small * 1e6:,.0f} "
            f"with buffers of a {_SMALLER}th of the capacity, though the program copies nothing "
            f"that can be seen. Use another version of JAX (this is {jax.__version__})"
        )


@dataclasses.dataclass
class _TimedStep:
    """A step, called repeatedly with the buffers that it returns.

    Attributes:
        jitted: The step.
        given: Its arguments, by position and by name.
        seconds: The time of each call, without the first.
    """

    jitted: Any
    given: tuple[tuple[Any, ...], dict[str, Any]]
    seconds: list[float] = dataclasses.field(default_factory=list)
    compiled: bool = False

    def call(self) -> None:
        """Run the step, and keep its buffers for the next call."""
        if not self.compiled:
            self.compiled = True
            self.call()
            self.seconds.clear()
        # Other donated arguments belong to the user.
        args, kwargs = jax.block_until_ready(with_others(jnp.copy, self.given))
        begun = time.perf_counter()
        result = jax.block_until_ready(self.jitted(*args, **kwargs))
        self.seconds.append(time.perf_counter() - begun)
        returned = iter(buffers_in(result))
        self.given = with_buffers(lambda _: next(returned), self.given)


def _resized(given: Any, smaller: int) -> Any:
    """Return the arguments of a step with empty buffers of a fraction of the capacity."""

    def empty(buffer: Any) -> Any:
        if not isinstance(buffer, State) or jnp.ndim(buffer.fault):
            raise ValueError(
                "fbuf.check_in_place: only steps of one buffer on one device can be timed; leave "
                "timed out"
            )
        state = cast(State[Any], buffer)
        step = state.ring.lanes * state.sampler.stride
        capacity = max(state.capacity // smaller // step, 1) * step
        return jax.jit(empty_as, static_argnums=1)(state, capacity)

    return with_buffers(empty, given)
