"""The buffer that receives a data set."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.adapter_api import STANDS_IN, uninterrupted
from fbuf_adapters._left_off import LeftOff, known
from fbuf_adapters.datasets._buffers import Buffer
from fbuf_adapters.datasets._chunks import Chunk
from fbuf_adapters.datasets._errors import DatasetError


class Target(Buffer):
    """A buffer that takes whole episodes one after another.

    A `fbuf.State` is consumed by the first call that changes it, a `HostStore` is changed in place.

    Raises:
        TypeError: If the object is neither a state nor a store.
        DatasetError: If the buffer cannot take whole episodes one after another.
    """

    def __init__(self, where: str, into: Any) -> None:
        super().__init__(where, into, "add", "into", "leave it out for a new buffer")
        self._left = LeftOff()
        ring = self.index.ring
        instead = (
            "make the store without num_envs, and with autoreset='same_step'"
            if self.owner.in_place
            else "leave into out, with the same next_of, and add what you get: state = "
            "fbuf.extend(state, loaded) deals the episodes out to the environments"
        )
        if ring.num_envs is not None:
            raise DatasetError(
                f"{where}: the buffer has {ring.num_envs} environments, and a data set is one "
                f"episode after another; {instead}"
            )
        if ring.autoreset == "next_step":
            raise DatasetError(
                f"{where}: the buffer was made with autoreset='next_step', so it would take the "
                f"first row of each episode for a dummy; {instead}"
            )

    def check(self, where: str, rows: int, ends: int) -> None:
        """Refuse a data set that does not fit the buffer."""
        state = self.index
        room = int(fbuf.space(state)) if isinstance(state.sampler, fbuf.Fifo) else state.capacity
        if rows > room:
            raise DatasetError(
                f"{where}: the data set has {rows} rows, and the buffer has room for {room}; make "
                f"it with capacity={rows}, or more"
            )
        if state.next_obs is None:
            return
        keeps = state.next_obs.owner.shape[0] - state.ring.lanes
        if ends > keeps:
            raise DatasetError(
                f"{where}: the data set has {ends} episodes, and the buffer keeps {keeps} last "
                f"observations; make it with max_ends={ends}, or more"
            )

    def end_episode(self) -> None:
        """End the open episode, so that the next row begins one."""
        with self.owner.lock, uninterrupted():
            self.owner.change(fbuf.end_episode)
            self._left.note(self.index.ring.cursor)

    def add(self, chunk: Chunk) -> None:
        """Add rows. No signal may cut this in two.

        Another thread may add to a store between two chunks. Then the second is no continuation.
        """
        with self.owner.lock:
            cursor, lanes = self.index.ring.cursor, self.index.ring.lanes
            if known(self._left.changed(cursor, lanes), wait=True) is not None:
                self.owner.change(fbuf.end_episode)
            self.owner.add(chunk.items, **_given(chunk))
            self.owner.replace_index(functools.partial(_marked, chunk))
            self._left.note(self.index.ring.cursor)


def _given(chunk: Chunk) -> dict[str, Any]:
    """Return the arguments of `add` beside the items."""
    flags = chunk.flags
    given: dict[str, Any] = {"terminated": flags.terminated, "truncated": flags.truncated}
    if chunk.next_observation is not None:
        given["next_observation"] = chunk.next_observation
    return {**given, "mask": np.arange(len(flags.terminated)) < chunk.rows}


def _marked(chunk: Chunk, state: Any) -> Any:
    """Mark the unknown next observations of the newly added chunk."""
    ring, next_obs, flags = state.ring, state.next_obs, chunk.flags
    # Copies: JAX may read an array of NumPy after the call, and the next chunk is written to the
    # same array. (`fbuf.add` copies by itself.)
    if next_obs is not None and flags.unknown.any():
        kept_at = _forgotten(next_obs.kept_at, ring.cursor, flags.unknown.copy(), chunk.rows)
        next_obs = dataclasses.replace(next_obs, kept_at=kept_at)
    if flags.stands_in.any():
        all_flags = _flagged(ring.flags, ring.cursor, flags.stands_in.copy(), chunk.rows)
        ring = dataclasses.replace(ring, flags=all_flags)
    return dataclasses.replace(state, ring=ring, next_obs=next_obs)


@functools.partial(jax.jit, donate_argnums=0)
def _forgotten(kept_at: jax.Array, cursor: jax.Array, unknown: jax.Array, rows: Any) -> jax.Array:
    """Return `kept_at` without the unknown next observations.

    `fbuf.add` treats every next observation as known.

    Args:
        kept_at: As in `NextObs`.
        cursor: The cursor of the ring, after the rows were added.
        unknown: bool `[size]`.
        rows: The number of added rows, which come first.
    """
    slots = _slots_of(unknown, cursor, rows, kept_at.shape[0])
    return kept_at.at[slots].set(-1, mode="drop")


@functools.partial(jax.jit, donate_argnums=0)
def _flagged(flags: jax.Array, cursor: jax.Array, stands_in: jax.Array, rows: Any) -> jax.Array:
    """Return the flags of all rows, with `STANDS_IN` for placeholders; see `_forgotten`."""
    slots = _slots_of(stands_in, cursor, rows, flags.shape[0])
    return flags.at[slots].set(flags.at[slots].get(mode="clip") | STANDS_IN, mode="drop")


def _slots_of(some: jax.Array, cursor: jax.Array, rows: Any, capacity: int) -> jax.Array:
    """Return the slots of some of the newest rows, `capacity` for all others: int32 `[size]`."""
    rank = jnp.arange(some.shape[0], dtype=jnp.int32)
    return jnp.where(some, (cursor[0, 0] - rows + rank) % capacity, capacity)
