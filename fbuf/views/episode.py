"""How far the episode of a row goes, however long it is.

A view that looks a fixed number of steps ahead reads so many rows. One that looks for the end of an
episode cannot say how many: it reads flags a chunk at a time, for the whole batch at once, until
every draw has found its end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage.ring import ENDS, REMOVED, Ring

CHUNK = 32
"""How many rows of each draw are looked at in a turn of the loop. The best of 8 to 128 on CPU, for
episodes of 15 to 1000 rows: with fewer there are more turns, with more, more rows behind the end.
"""

_Carry = tuple[jax.Array, jax.Array, jax.Array]


def remaining(ring: Ring, slots: jax.Array) -> jax.Array:
    """Count the stored rows of the episode after each of `[B]` rows.

    Counted to an end of either kind or the newest row, but not beyond a removed row or a dummy. 0
    for a slot that holds no row. O(B longest) reads of a byte, where `longest` is the largest of
    these numbers.

    Returns:
        int32 `[B]`.
    """
    bound = jnp.where(ring.older(slots) < 0, 0, ring.newer(slots))
    return _reach(ring, slots, bound, forward=True)


def elapsed(ring: Ring, slots: jax.Array) -> jax.Array:
    """How many rows before each of `[B]` rows belong to its episode: as `remaining`, backwards."""
    return _reach(ring, slots, jnp.maximum(ring.older(slots), 0), forward=False)


def _reach(ring: Ring, slots: jax.Array, bound: jax.Array, forward: bool) -> jax.Array:
    """How many steps it is to the last row of the episode, or to the first; at most `bound`."""
    way = 1 if forward else -1
    number = jnp.arange(CHUNK, dtype=jnp.int32)[None]

    def look(carry: _Carry) -> _Carry:
        step, at, reach = carry
        flags = ring.flags.at[ring.later(at[:, None], way * number)].get(mode="promise_in_bounds")
        # A row with one of `inside` is the last; with one of `outside` it is one too far.
        inside, outside = (ENDS, REMOVED) if forward else (0, ENDS | REMOVED)
        last = jnp.where(flags & inside > 0, step + number, bound[:, None])
        last = jnp.where(flags & outside > 0, step + number - 1, last)
        return step + CHUNK, ring.later(at, way * CHUNK), jnp.minimum(reach, last.min(1))

    # Going back, the row's own flags say nothing.
    first = 0 if forward else 1
    begin = (jnp.int32(first), ring.later(slots, way * first), bound)
    *_, reach = lax.while_loop(lambda carry: (carry[2] >= carry[0]).any(), look, begin)
    return jnp.maximum(reach, 0)
