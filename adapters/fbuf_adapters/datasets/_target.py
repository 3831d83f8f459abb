"""What a data set is added to: a buffer, or an object that adds in place."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.dispatch.call import refuse_consumed
from fbuf.host import HostStore
from fbuf.runtime.interrupts import uninterrupted
from fbuf.storage.ring import STANDS_IN
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import Array


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows to add, padded.

    Attributes:
        items: The item's tree, leaves `[size, ...]`.
        terminated: bool `[size]`.
        truncated: bool `[size]`.
        next_observation: A tree like the field `next_of`; None for targets without it.
        unknown: bool `[size]`; truncated rows whose next observation nobody knows.
        stands_in: bool `[size]`; terminated rows for whose next observation another one stands in.
        rows: How many of the first rows are meant.
    """

    items: Any
    terminated: Array
    truncated: Array
    next_observation: Any
    unknown: Array
    stands_in: Array
    rows: int


class Target(Protocol):
    """Where rows go."""

    @property
    def item(self) -> Any:
        """One row: a tree of `jax.ShapeDtypeStruct`."""
        ...

    @property
    def next_of(self) -> str | None:
        """The field whose next value is kept."""
        ...

    def check(self, where: str, rows: int, ends: int) -> None:
        """Refuse a data set that there is no room for."""
        ...

    def end_episode(self) -> None:
        """The next row begins an episode."""
        ...

    def add(self, chunk: Chunk) -> None:
        """Add rows. No signal may cut this in two."""
        ...

    @property
    def result(self) -> Any:
        """What the caller gets."""
        ...


def target_of(where: str, into: Any) -> Target:
    """The target that a caller's object is.

    Raises:
        TypeError: If it is none.
        DatasetError: If it cannot take whole episodes one after another.
    """
    if isinstance(into, fbuf.State):
        refuse_consumed("add", into)
        return _Buffer(where, into)
    if isinstance(into, HostStore):
        return _Store(where, into)
    raise TypeError(
        f"{where}: into must be a fbuf.State or a HostStore, got {type(into).__name__}; leave it "
        "out for a new buffer"
    )


class _Buffer:
    """A `fbuf.State`, which is consumed by the first call that changes it."""

    _instead = (
        "leave into out, with the same next_of, and add what you get: state = fbuf.extend(state, "
        "loaded) deals the episodes out to the environments"
    )

    def __init__(self, where: str, target: Any) -> None:
        self.result: Any = target
        ring = self._state.ring
        if ring.cursor.ndim != 2:
            raise DatasetError(f"{where}: the buffer is a batch of buffers; give one of them")
        if ring.num_envs is not None:
            raise DatasetError(
                f"{where}: the buffer has {ring.num_envs} environments, and a data set is one "
                f"episode after another; {self._instead}"
            )
        if ring.autoreset == "next_step":
            raise DatasetError(
                f"{where}: the buffer was made with autoreset='next_step', so it would take the "
                f"first row of each episode for a dummy; {self._instead}"
            )

    @property
    def item(self) -> Any:
        return self._state.storage.item

    @property
    def next_of(self) -> str | None:
        kept = self._state.next_obs
        return None if kept is None else kept.field

    def check(self, where: str, rows: int, ends: int) -> None:
        state = self._state
        room = state.capacity
        if isinstance(state.sampler, fbuf.Fifo):
            room = int(fbuf.space(state))
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
        with uninterrupted():
            self.result = fbuf.end_episode(self.result)

    def add(self, chunk: Chunk) -> None:
        state = self.result = fbuf.add(self.result, chunk.items, **_given(chunk))
        self.result = _marked(state, chunk)

    @property
    def _state(self) -> Any:
        """The flags and what belongs to them."""
        return self.result


class _Store(_Buffer):
    """A `HostStore`, which is changed in place."""

    _instead = "make the store without num_envs, and with autoreset='same_step'"

    def end_episode(self) -> None:
        self.result.end_episode()

    def add(self, chunk: Chunk) -> None:
        with self.result.lock:
            self.result.add(chunk.items, **_given(chunk))
            contents = self.result.contents
            contents.index = _marked(contents.index, chunk)

    @property
    def _state(self) -> Any:
        return self.result.contents.index


def _given(chunk: Chunk) -> dict[str, Any]:
    """What `add` is given beside the items."""
    given: dict[str, Any] = {"terminated": chunk.terminated, "truncated": chunk.truncated}
    if chunk.next_observation is not None:
        given["next_observation"] = chunk.next_observation
    return {**given, "mask": np.arange(len(chunk.terminated)) < chunk.rows}


def _marked(state: Any, chunk: Chunk) -> Any:
    """A buffer to which a chunk was added, with word of the next observations that nobody knows."""
    ring, next_obs = state.ring, state.next_obs
    # Copies: JAX may read an array of NumPy's after the call, and the next chunk is written to the
    # same one. (`fbuf.add` copies by itself.)
    if next_obs is not None and chunk.unknown.any():
        unknown = chunk.unknown.copy()
        kept_at = _forgotten(next_obs.kept_at, ring.cursor, unknown, chunk.rows)
        next_obs = dataclasses.replace(next_obs, kept_at=kept_at)
    if chunk.stands_in.any():
        flags = _flagged(ring.flags, ring.cursor, chunk.stands_in.copy(), chunk.rows)
        ring = dataclasses.replace(ring, flags=flags)
    return dataclasses.replace(state, ring=ring, next_obs=next_obs)


@functools.partial(jax.jit, donate_argnums=0)
def _forgotten(kept_at: jax.Array, cursor: jax.Array, unknown: jax.Array, rows: Any) -> jax.Array:
    """Where next observations are kept, without those that nobody knows.

    `fbuf.add` takes the next observation of each end that it is given for a known one.

    Args:
        kept_at: As in `NextObs`.
        cursor: Of the ring, after the rows were added.
        unknown: bool `[size]`.
        rows: How many of the first rows were added.
    """
    slots = _slots_of(unknown, cursor, rows, kept_at.shape[0])
    return kept_at.at[slots].set(-1, mode="drop")


@functools.partial(jax.jit, donate_argnums=0)
def _flagged(flags: jax.Array, cursor: jax.Array, stands_in: jax.Array, rows: Any) -> jax.Array:
    """The flags of all rows, of which some were added just now; as `_forgotten`."""
    slots = _slots_of(stands_in, cursor, rows, flags.shape[0])
    return flags.at[slots].set(flags.at[slots].get(mode="clip") | STANDS_IN, mode="drop")


def _slots_of(some: jax.Array, cursor: jax.Array, rows: Any, capacity: int) -> jax.Array:
    """The slots of some rows of the newest ones, `capacity` for all others: int32 `[size]`."""
    rank = jnp.arange(some.shape[0], dtype=jnp.int32)
    return jnp.where(some, (cursor[0, 0] - rows + rank) % capacity, capacity)
