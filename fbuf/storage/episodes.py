"""Episodes: the position of each row of a lane in its episode.

A lane is the rows of one environment, in the order of time. A few numbers a lane are kept to place
the next row. The flags of the rows hold the rest.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf._pytree import pytree
from fbuf.xla.filled import zeros

Autoreset = Literal["same_step", "next_step", "disabled"]
"""The behaviour of an environment at the end of an episode, in Gymnasium's words.

- `"same_step"`: the step that ends an episode also resets. The next row begins a new episode.
- `"disabled"`: you reset. To a buffer this is the same.
- `"next_step"`: the step after the end ignores its action and resets. Its row is a dummy, which
  belongs to no episode.
"""

_MANY = 2**30


@pytree
class Open:
    """The open episode of each lane.

    Attributes:
        position: int32 `[lanes]`; the number of its rows so far; stops counting at 2**30.
        intact: int32 `[lanes]`; the number of its rows since its newest removed row.
        resets: bool `[lanes]`; the next row is a dummy.
    """

    position: jax.Array
    intact: jax.Array
    resets: jax.Array


@pytree
class InEpisode:
    """The places of the rows of a chunk in their episodes; all `[steps, lanes]`.

    Attributes:
        position: int32; the number of the row in its episode, from 1; 0 for a dummy.
        intact: int32; the number of rows of the episode up to this one, behind any removed row.
        dummy: bool; the row is the dummy step of a reset.
        newer: int32; the number of rows of the chunk that come after the row in its lane.
    """

    position: jax.Array
    intact: jax.Array
    dummy: jax.Array
    newer: jax.Array


def none_open(lanes: int) -> Open:
    """Return lanes without rows: the next row of each is the first of an episode."""
    return Open(zeros(lanes, np.int32), zeros(lanes, np.int32), zeros(lanes, bool))


def follow(
    before: Open,
    ends: jax.Array,
    count: jax.Array | None,
    autoreset: Autoreset,
    dummy: jax.Array | None = None,
    cut: jax.Array | None = None,
) -> tuple[Open, InEpisode]:
    """Place a chunk of rows.

    Args:
        before: The open episodes before the chunk.
        ends: bool `[steps, lanes]`; the rows said to end an episode. A dummy ends nothing.
        count: int32 `[lanes]`; the number of steps of each lane, as the chunk may be padded. None
            is all steps.
        autoreset: See `Autoreset`.
        dummy: bool `[steps, lanes]`; which rows are dummies; None if that is not
            known.
        cut: bool `[steps, lanes]`; the rows whose episode began in earlier rows, which are gone.

    Returns:
        The open episodes after the chunk, and the places of its rows.
    """
    steps = ends.shape[0]
    number = jnp.arange(steps, dtype=jnp.int32)[:, None]
    resets = before.resets
    if dummy is None and autoreset == "next_step":
        # In a run of ends every second end belongs to a dummy, and does not count. So a row is a
        # dummy if an odd run of ends comes right before the row.
        run = number - 1 - _newest_before(~ends, jnp.where(before.resets, -2, -1))
        dummy = run % 2 == 1
    if dummy is None:
        dummy = jnp.zeros_like(ends)
    else:
        ends = ends & ~dummy
        resets = _last(ends, count, before.resets)
    # An episode begins behind the newest end before the row, or behind a dummy, the row included.
    begin = _newest_before(ends, -_MANY)
    if autoreset == "next_step":
        begin = jnp.maximum(begin, _newest(dummy, -_MANY))
    at_start = begin < 0  # the episode was open before the chunk
    position = jnp.where(at_start, before.position[None] + number + 1, number - begin)
    if cut is not None:  # the first row of such an episode is gone
        position = jnp.where(_newest(cut, -_MANY) > begin, _MANY, position)
    intact = jnp.where(at_start, before.intact[None] + number + 1, number - begin)
    after = Open(
        position=_last(jnp.where(ends, 0, jnp.minimum(position, _MANY)), count, before.position),
        intact=_last(jnp.where(ends, 0, jnp.minimum(intact, _MANY)), count, before.intact),
        resets=resets,
    )
    newer = jnp.broadcast_to((steps if count is None else count[None]) - 1 - number, ends.shape)
    return after, InEpisode(position, intact, dummy, newer)


def _last(steps: jax.Array, count: jax.Array | None, before: jax.Array) -> jax.Array:
    """Return the last of the first `count` steps, or `before` without one: `[lanes]`."""
    if count is None:
        return steps[-1]
    last = jnp.take_along_axis(steps, jnp.maximum(count - 1, 0)[None], axis=0)[0]
    return jnp.where(count > 0, last, before)


def _newest(marked: jax.Array, otherwise: jax.Array | int) -> jax.Array:
    """Return the newest marked step up to each step: `[steps, lanes]`."""
    number = jnp.arange(marked.shape[0], dtype=jnp.int32)[:, None]
    found = jnp.where(marked, number, otherwise)
    return found if marked.shape[0] == 1 else lax.cummax(found, axis=0)


def _newest_before(marked: jax.Array, otherwise: jax.Array | int) -> jax.Array:
    """Return the newest marked step before each step: `[steps, lanes]`."""
    first = jnp.broadcast_to(jnp.asarray(otherwise, jnp.int32), marked.shape[1:])[None]
    return jnp.concatenate([first, _newest(marked, otherwise)[:-1]])


class Spans(NamedTuple):
    """The episodes in some stored rows of a lane, the oldest first; on the host.

    Attributes:
        first: int64 `[episodes]`; the place of the first stored row of each episode. Place 0 is the
            oldest row of the lane.
        last: int64 `[episodes]`; the place of the last stored row of each episode.
        whole: bool `[episodes]`; whether the episode began with its first stored row.
        ended: bool `[episodes]`; whether the episode ended with its last stored row, and no later
            row is missing.
    """

    first: np.ndarray[Any, np.dtype[np.int64]]
    last: np.ndarray[Any, np.dtype[np.int64]]
    whole: np.ndarray[Any, np.dtype[np.bool_]]
    ended: np.ndarray[Any, np.dtype[np.bool_]]


def spans(
    ends: np.ndarray[Any, Any],
    outside: np.ndarray[Any, Any],
    cut: np.ndarray[Any, Any],
    unfinished: np.ndarray[Any, Any],
    overwritten: bool,
) -> Spans:
    """Return the episodes in the rows of a lane.

    Args:
        ends: bool `[rows]`; whether a row ended an episode. The oldest row comes first.
        outside: bool `[rows]`; whether a row is part of no episode, as a dummy is.
        cut: bool `[rows]`; whether the row's episode began in earlier rows, which are gone.
        unfinished: bool `[rows]`; whether the row's episode went on in later rows, which never
            came.
        overwritten: Whether earlier rows of the lane were overwritten.
    """
    before, after = np.append(True, (ends | outside)[:-1]), np.append(outside[1:], True)
    first = np.flatnonzero(~outside & before[: len(ends)])
    last = np.flatnonzero(~outside & (ends | after[-len(ends) :]))
    whole = ~cut[first] & ~(overwritten & (first == 0))
    return Spans(first, last, whole, ends[last] & ~unfinished[last])
