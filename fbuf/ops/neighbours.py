"""Naming the rows before and after a row in its episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import operation_of_both
from fbuf.samplers.protocol.placing import refuse
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage.ids import Ids, ids_of, look_up
from fbuf.views.reader import Reader
from fbuf.views.steps import following, preceding

Steps = Sequence[int] | np.ndarray
"""Numbers of steps; negative ones lead to rows before."""


def is_steps(function: str, argument: str, value: Any) -> tuple[int, ...]:
    """Return steps as a tuple, which is hashable; refuse any other value."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"fbuf.{function}: {argument} is traced, but shapes depend on it; give ints, such as "
            "range(-4, 1)"
        )
    given = value.tolist() if isinstance(value, np.ndarray | jax.Array) else value
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            f"fbuf.{function}: {argument} must be a sequence of ints, such as range(-4, 1) or "
            f"(-1, 1), got {value!r}"
        )
    one = f"each of {argument}"
    found = tuple(
        check.integer(function, one, step, check.LONGEST, -check.LONGEST) for step in given
    )
    if not found:
        raise ValueError(f"fbuf.{function}: {argument} must have at least one number, got none")
    return value if isinstance(value, tuple) and value == found else found


@overload
def neighbours(state: State[Any], ids: Ids, steps: Steps) -> Ids: ...
@overload
def neighbours(state: ShardedState[Any], ids: ShardedIds, steps: Steps) -> ShardedIds: ...
@operation_of_both(static=("steps",), checks={"steps": is_steps})
def neighbours(state: State[Any], ids: Ids, steps: Steps) -> Ids:
    """Name the rows some steps before or after each row, in its episode.

    Use it for algorithms that spread data from a row to its neighbours. Prioritised sequence
    experience replay raises the priorities of the rows before a surprise. MuZero's reanalysis
    computes targets anew for the rows around a drawn one.

    Args:
        state: The buffer; never consumed.
        ids: Which rows, of any shape; they may repeat.
        steps: `K` numbers of steps, static, in any order: a range such as `range(-4, 1)`, a
            sequence, or an array of NumPy. Each is from -65,536 to 65,536; -1 is the row before, 0
            the row itself, and 1 the row after. They span no more steps than a lane has.

    Returns:
        Ids of the shape of `ids`, with one axis of `K` behind. An id names no row (slot -1) where
        the episode does not reach so far, or not yet. The dummies of resets belong to no episode.
        As for the views, no step passes a removed row. If an id names no row, or a row that is
        gone, its neighbours name no row either.

    Raises:
        ValueError: When traced, if `ids` is empty. Also if `steps` is empty, or has a number that
            is out of range.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if `steps` are no static ints.
        RuntimeError: If `state` has been consumed.

    Cost: O(B span) reads of a byte, where the span is that of 0 and all steps.

    Over a mesh: `ids` are as for `fbuf.update_priority`, and the result is laid out like them. It
    takes one `all_gather` of 12 bytes for each id, and one `reduce_scatter` of 8 bytes for each
    neighbour.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(()), capacity=8, sampler=fbuf.Prioritized(alpha=1.0))
        >>> state = fbuf.add(state, jnp.arange(5.0), terminated=jnp.arange(5) == 1)
        >>> around = fbuf.neighbours(state, fbuf.newest_ids(state, 2), range(-2, 1))
        >>> around.slot
        Array([[-1,  2,  3],
               [ 2,  3,  4]], dtype=int32)
        >>> priority = jnp.array([2.0, 8.0])[:, None] * 0.5 ** jnp.array([2, 1, 0])
        >>> state = fbuf.update_priority(state, around, priority)

    References:
        Brittain et al., Prioritized Sequence Experience Replay, arXiv:1905.12726;
        Schrittwieser et al., Online and Offline Reinforcement Learning by Planning with a Learned
        Model, arXiv:2104.06294 (Reanalyse).
    """
    refuse("neighbours", state.sampler)
    flat, shape = parse.ids("neighbours", ids)
    found = around("neighbours", state, flat, steps)
    read_before_write.note_read(state, found.slot)
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, len(steps)), found)


def around(function: str, state: State[Any], ids: Ids, steps: Steps) -> Ids:
    """Name the neighbours of the rows of `[B]` ids: `[B, K]`."""
    ring, wished = state.ring, jnp.array(tuple(steps), jnp.int32)[None]
    live = look_up(ring, ids).live
    slots = jnp.where(live, ids.slot, 0)
    first, last = min(0, *steps), max(0, *steps)
    reader = Reader(function, state)
    reader.check_lane("steps span", last - first + 1)
    same = following(reader, slots, last + 1).same_episode
    after = jnp.sum(same, axis=1, dtype=jnp.int32)[:, None] - 1
    before = preceding(reader, slots, -first)[:, None]
    there = jnp.clip(wished, -before, jnp.maximum(after, 0))
    return ids_of(ring, ring.later(slots[:, None], there), live[:, None] & (there == wished))
