"""The distance from a row to the ends of its episode, of any length.

A view of a fixed number of steps knows how many rows to read. The end of an episode is at an
unknown distance. So flags are read in chunks, for the whole batch at once, until every draw has its
end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage.ring import ENDS, REMOVED, Ring

CHUNK = 32
"""The rows of each draw to read in a turn of the loop. The best of 8 to 128 on CPU, for episodes of
15 to 1000 rows. Fewer rows need more turns, and more rows are read in vain behind the end.
"""

_Carry = tuple[jax.Array, jax.Array, jax.Array]


def remaining(ring: Ring, slots: jax.Array) -> jax.Array:
    """Count the stored rows of the episode after each of `[B]` rows.

    The count stops at an end of either kind, at the newest row, and before a removed row or a
    dummy. It is 0 for a slot that holds no row. O(B longest) reads of a byte, where `longest` is
    the largest count.

    Returns:
        int32 `[B]`.
    """
    bound = jnp.where(ring.older(slots) < 0, 0, ring.newer(slots))
    return _reach(ring, slots, bound, forward=True)


def elapsed(ring: Ring, slots: jax.Array) -> jax.Array:
    """Count the stored rows of the episode before each of `[B]` rows; see `remaining`."""
    return _reach(ring, slots, jnp.maximum(ring.older(slots), 0), forward=False)


def _reach(ring: Ring, slots: jax.Array, bound: jax.Array, forward: bool) -> jax.Array:
    """Count the steps to the last row of the episode, or to the first; at most `bound`."""
    way = 1 if forward else -1
    number = jnp.arange(CHUNK, dtype=jnp.int32)[None]

    def look(carry: _Carry) -> _Carry:
        step, at, reach = carry
        flags = ring.flags.at[ring.later(at[:, None], way * number)].get(mode="promise_in_bounds")
        # A row with a flag of `inside` is the last one; a row with a flag of `outside` is too far.
        inside, outside = (ENDS, REMOVED) if forward else (0, ENDS | REMOVED)
        last = jnp.where(flags & inside > 0, step + number, bound[:, None])
        last = jnp.where(flags & outside > 0, step + number - 1, last)
        return step + CHUNK, ring.later(at, way * CHUNK), jnp.minimum(reach, last.min(1))

    # Backwards, the row's own flags do not count.
    first = 0 if forward else 1
    begin = (jnp.int32(first), ring.later(slots, way * first), bound)
    *_, reach = lax.while_loop(lambda carry: (carry[2] >= carry[0]).any(), look, begin)
    return jnp.maximum(reach, 0)
