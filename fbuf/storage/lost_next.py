"""Rows whose next observation is not known: views that need it mask them for good."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.storage.next_obs import NextObs
from fbuf.storage.ring import ENDS, REMOVED, Ring
from fbuf.storage.stored_lanes import stored_lanes


def lost(ring: Ring, next_obs: NextObs | None) -> tuple[int, int]:
    """Count the ends of episodes whose next observation is not known, and all ends.

    Removed rows do not count. O(N) time and memory, on the host.
    """
    if next_obs is None or ring.writes is not None:
        return 0, 0
    # Copies: a view of the buffer's own memory would prevent writes to the buffer.
    kept_at, owner = jax.device_get((jnp.copy(next_obs.kept_at), jnp.copy(next_obs.owner)))
    ended = [
        lane.slots[(lane.flags & ENDS > 0) & (lane.flags & REMOVED == 0)]
        for lane in stored_lanes(ring)
    ]
    slots = np.concatenate(ended)
    place = kept_at[slots]
    known = (place >= 0) & (owner[np.maximum(place, 0)] == slots)
    return int((~known).sum()), slots.size
