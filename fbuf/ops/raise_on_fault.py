"""Reporting faults on the host."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import numpy as np

from fbuf.dispatch.call import refuse_consumed, require_state
from fbuf.sharded_state import ShardedSample, ShardedState
from fbuf.state import State
from fbuf.storage.faults import MEANING, Fault
from fbuf.storage.stored_lanes import stored_lanes

_OF_DRAWS = Fault.NOTHING_TO_DRAW
"""The faults that do not mean a bad value."""


def raise_on_fault(
    state: State[Any] | ShardedState[Any] | ShardedSample[Any], *, ignore: Fault = Fault.STALE_ID
) -> None:
    """Raise if compiled code has skipped a bad value since the last `fbuf.clear`.

    Call it from the host loop now and then: it waits until the state is computed. The buffer always
    stays usable: bad entries were skipped, and all other entries applied.

    Args:
        state: The buffer, or a `vmap`ped batch of buffers.
        ignore: Faults that do not raise. By default stale ids: a learner that lags behind its
            actors meets them all the time, and they do no harm. `Fault(0)` ignores none.

    Raises:
        RuntimeError: If any other fault bit is set. The message says what happened and what to do.
            The bit `NOTHING_TO_DRAW` is set while a full buffer has nothing to draw, also where its
            rows were removed or their priorities became 0. Batches that were masked before do no
            harm. Also if `state` was consumed.
        TypeError: If called inside `jit`, where values cannot be read.

    Over a mesh: it raises for a fault of any shard, after two collectives of some bytes. In several
    processes all must call it, and all raise. Give it a batch, too: it raises if processes drew the
    batch with different keys.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(3), capacity=8)
        >>> fbuf.raise_on_fault(state)
    """
    if not isinstance(state, ShardedState | ShardedSample):
        require_state("raise_on_fault", state, over_mesh=True)
    if isinstance(state.fault, jax.core.Tracer):
        raise TypeError(
            "fbuf.raise_on_fault: state is traced, and a compiled function cannot raise; call "
            "raise_on_fault on the host, with the state that the compiled function returned"
        )
    refuse_consumed("raise_on_fault", state)
    bits, more = faults_of(state, ignore)
    bits &= ~ignore
    if bits:
        reasons = "; ".join(text for bit, text in MEANING.items() if bit in bits) + more
        what = "the buffer skipped bad values" if bits & ~_OF_DRAWS else "there is nothing to draw"
        raise RuntimeError(f"fbuf.raise_on_fault: {what} ({bits!r}): {reasons}")


@functools.singledispatch
def faults_of(state: Any, ignore: Fault) -> tuple[Fault, str]:
    """Return the fault bits, and the end of the message. Over a mesh it is another function.

    Args:
        state: The buffer, or a `vmap`ped batch of buffers.
        ignore: Faults to ignore.
    """
    # Removed rows, and rows of priority 0, set no bit.
    bits = Fault(int(np.bitwise_or.reduce(jax.device_get(state.fault), axis=None)))
    bits &= ~Fault.NOTHING_TO_DRAW
    if Fault.NOTHING_TO_DRAW in ignore or not _draws_nothing(state):
        return bits, ""
    return bits | Fault.NOTHING_TO_DRAW, _lengths(state)


def _draws_nothing(state: State[Any]) -> bool:
    """Tell whether a full buffer, or any of several, has nothing to draw."""
    if not state.sampler.may_draw_nothing:
        return False
    nothing = _is_full_of_nothing
    for _ in range(state.fault.ndim):
        nothing = jax.vmap(nothing)
    return bool(jax.device_get(nothing(state)).any())


@jax.jit
def _is_full_of_nothing(state: State[Any]) -> jax.Array:
    return state.ring.has_come_around() & ~state.sampler.can_sample(state.index, state.ring)


def _lengths(state: State[Any]) -> str:
    """Return the lengths of the window and of the longest stored episode, as text. O(N)."""
    window = state.sampler.window
    if window == 1 or state.ring.cursor.ndim > 2:
        return f" (window={window})"
    ring = state.ring
    episodes = [lane.episodes for lane in stored_lanes(ring)]
    longest = max(int((each.last + 1 - each.first).max(initial=0)) for each in episodes)
    if longest >= window:
        return (
            f". The window is {window} steps, and the longest stored episode has {longest}: look "
            "at stride, first_only, and what you have removed"
        )
    return (
        f". The window is {window} steps, and the longest stored episode has {longest}; take a "
        'shorter window, or fbuf.Sequence(..., boundary="pad") over a sampler without a window. '
        'For windows that go on into the next episode, boundary="cross"'
    )
