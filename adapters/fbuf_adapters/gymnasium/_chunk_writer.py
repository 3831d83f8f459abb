"""Adding chunks to a buffer: a state, a state over a mesh, or a store on the host."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import refuse_consumed
from fbuf.host import HostStore
from fbuf_adapters._fields import MAKE, blank_rows, check_rows, with_blank
from fbuf_adapters._left_off import LeftOff, known
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import NO_FINAL
from fbuf_adapters.gymnasium._spaces import Spec, map_leaves

SMALL = 128
"""A number of steps; fewer get an add of their own only if little is collected at a time."""


class ChunkWriter:
    """Adds chunks of `num_envs` environments to buffers made for them.

    It knows where it left the buffer. Behind rows that others have added since, or in another
    buffer, its next rows are no continuation: the open episodes are truncated first.

    Args:
        spec: The filled fields, see `Stepper.spec`.
        blank: The blank fields, see `blank_specs`.
        options: The arguments that `fbuf.init` needs beside the item.
        size: The most steps of a chunk. All chunks are padded to this length, to 128 or to 16. If
            `size` is less than 128, the least length is an eighth of it. So at most four programs
            add all chunks.
        owner: The collector, for errors.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        blank: dict[str, Any],
        options: dict[str, Any],
        size: int,
        owner: str,
    ) -> None:
        self._owner = owner
        version = Spec((), np.dtype(np.int32))
        more = {"next_observation": spec["observation"], "version": version}
        filled = map_leaves(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), {**spec, **more})
        self._fields = with_blank(owner, filled, blank)
        self._blank = blank
        self._options = options
        self._size = size
        self._left = LeftOff()
        small = min(size, SMALL)
        self._sizes = sorted({-(-small // 8), small, size})

    @property
    def item(self) -> dict[str, Any]:
        """One row, for `fbuf.init`."""
        more = ("next_observation", "version")
        return {name: spec for name, spec in self._fields.items() if name not in more}

    def check(self, function: str, buffer: Any) -> None:
        """Refuse a buffer that the chunks do not fit into, or that has been consumed."""
        where = f"{self._owner}.{function}"
        kind = _kind_of(where, buffer)
        state, num_envs = kind.state(buffer), kind.num_envs(buffer)
        check_rows(where, state, self._fields, self._options, num_envs, kind.make)
        kind.check(where, buffer)
        self._changed(kind, buffer)  # known by the time at which the chunk has come

    def keeps_next(self, buffer: Any) -> bool:
        """Return whether a checked buffer has next observations."""
        state = _kind_of(self._owner, buffer).state(buffer)
        return state.next_obs is not None or "next_observation" in state.storage.item

    def end_episode(self, buffer: Any) -> Any:
        """End all open episodes of a checked buffer, which is consumed."""
        return _kind_of(self._owner, buffer).end_episode(buffer, None)

    def add(self, buffer: Any, chunk: StepChunk, *, dummies: Any = None, envs: Any = None) -> Any:
        """Add a chunk to a checked buffer, which is consumed.

        Args:
            buffer: The buffer.
            chunk: The steps.
            dummies: bool `[num_envs]`: the environments whose first row is a dummy. A buffer knows
                them itself, unless the chunk before went into another buffer.
            envs: bool `[num_envs]`: the environments that made the steps, if not all of them.
        """
        kind = _kind_of(self._owner, buffer)
        if chunk.next_observation is None and self.keeps_next(buffer):
            raise CollectorError(NO_FINAL)
        given = self._given(kind.state(buffer), chunk, envs)
        num_envs = chunk.terminated.shape[1]
        with kind.lock(buffer):  # or another writer could come in between
            ended = known(self._changed(kind, buffer), wait=kind.waits)
            if np.any(chunk.fresh):
                fresh = np.broadcast_to(chunk.fresh, num_envs)
                ended = fresh if ended is None else ended | fresh
            if ended is not None:
                buffer = kind.end_episode(buffer, ended)
            if dummies is not None and dummies.any():
                buffer = kind.with_resets(buffer, np.array(dummies))
            buffer = kind.add(buffer, given)
            self._left.note(kind.state(buffer).ring.cursor)
        return buffer

    def _changed(self, kind: StateBuffer, buffer: Any) -> Any:
        """Return in which environments others have changed the newest rows since."""
        lanes: Any = kind.num_envs(buffer)
        return self._left.changed(kind.state(buffer).ring.cursor, lanes, kind.shards(buffer))

    def _given(self, state: Any, chunk: StepChunk, envs: Any) -> dict[str, Any]:
        """Return the arguments of `fbuf.add`, padded to one of a few sizes."""
        steps, num_envs = chunk.terminated.shape
        wanted = state.storage.item
        version = np.full(chunk.terminated.shape, chunk.version, np.int32)
        filled = {**vars(chunk), **chunk.extras, "version": version}
        given: dict[str, Any] = {
            "items": {name: filled[name] for name in wanted if name not in self._blank},
            "terminated": chunk.terminated,
            "truncated": chunk.truncated,
        }
        if state.next_obs is not None:
            given["next_observation"] = chunk.next_observation
        # One of a few sizes: short chunks need not cost as much as long ones.
        size = next(size for size in self._sizes if steps <= size)
        if steps < size:
            given = map_leaves(lambda array: _padded(array, size), given)
        blank = {name: spec for name, spec in self._blank.items() if name in wanted}
        given["items"] |= blank_rows(blank, (size, num_envs), np)
        whole = np.arange(size) < steps
        if not state.ring.lockstep:
            given["mask"] = whole[:, None] & (np.ones(num_envs, bool) if envs is None else envs)
        elif steps < self._size:
            given["mask"] = whole
        return given


def _padded(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Return an array with zeros behind it."""
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


class StateBuffer:
    """Changes a `fbuf.State`, which is consumed, and returns the new one.

    The other kinds of buffers inherit from this class. A store on the host changes in place.
    """

    make = MAKE
    """The call that makes one, for errors."""
    waits = False
    """An add waits for the device anyway."""

    def state(self, buffer: Any) -> Any:
        """Return the state that knows the item, the lanes and the next observations."""
        return buffer

    def num_envs(self, buffer: Any) -> int | None:
        """Return the number of environments that the buffer is for."""
        return self.state(buffer).ring.num_envs

    def shards(self, buffer: Any) -> int:
        """Return the number of shards, whose cursors lie one after the other."""
        return 1

    def lock(self, buffer: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which nobody else changes the buffer."""
        return contextlib.nullcontext()  # a state has one owner

    def check(self, where: str, buffer: Any) -> None:
        """Refuse a buffer that cannot be added to."""
        refuse_consumed("add", buffer)

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        """Add rows `[T, num_envs, ...]` of NumPy, by the arguments of `fbuf.add`."""
        return fbuf.add(buffer, **given, time_major=True)

    def end_episode(self, buffer: Any, envs: Any) -> Any:
        """End the open episodes of some environments; None is all."""
        return fbuf.end_episode(buffer, mask=envs)

    def with_resets(self, buffer: Any, envs: Any) -> Any:
        """Return the buffer with a dummy as the next row of these environments."""
        return _with_resets(buffer, envs)


class HostBuffer(StateBuffer):
    """Changes a `HostStore` in place, and returns it."""

    make = "HostStore(collector.item, capacity, **collector.options)"
    waits = True

    def state(self, buffer: Any) -> Any:
        return buffer.contents.index

    def lock(self, buffer: Any) -> contextlib.AbstractContextManager[Any]:
        return buffer.lock

    def check(self, where: str, buffer: Any) -> None:
        if buffer.contents.owned:
            raise ValueError(
                f"{where}: the store belongs to a buffer for PyTorch, which would not know of the "
                "rows; give the collector a store of its own"
            )

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        buffer.add(**given, time_major=True)
        return buffer

    def end_episode(self, buffer: Any, envs: Any) -> Any:
        buffer.end_episode(mask=envs)
        return buffer

    def with_resets(self, buffer: Any, envs: Any) -> Any:
        contents = buffer.contents
        contents.index = _with_resets(contents.index, envs)
        return buffer


class MeshBuffer(StateBuffer):
    """Changes a `fbuf.sharded.ShardedState` of one process."""

    make = "fbuf.sharded.init(collector.item, capacity, mesh=mesh, **collector.options)"

    def state(self, buffer: Any) -> Any:
        return buffer.blocks

    def num_envs(self, buffer: Any) -> int | None:
        return buffer.num_envs

    def shards(self, buffer: Any) -> int:
        return buffer.num_shards

    def check(self, where: str, buffer: Any) -> None:
        super().check(where, buffer)
        if not buffer.fault.is_fully_addressable:
            raise ValueError(
                f"{where}: the mesh has devices of other processes, and a collector has the "
                "environments of its own; collect into a buffer of each process"
            )

    def with_resets(self, buffer: Any, envs: Any) -> Any:
        along = jax.sharding.NamedSharding(buffer.mesh, buffer.spec)
        blocks = _with_resets(buffer.blocks, jax.device_put(envs, along))
        return dataclasses.replace(buffer, blocks=blocks)


def _with_resets(state: Any, resets: Any) -> Any:
    opened = dataclasses.replace(state.ring.open, resets=resets)
    return dataclasses.replace(state, ring=dataclasses.replace(state.ring, open=opened))


_KINDS: dict[type, StateBuffer] = {
    fbuf.State: StateBuffer(),
    fbuf.sharded.ShardedState: MeshBuffer(),
    HostStore: HostBuffer(),
}


def _kind_of(where: str, buffer: Any) -> StateBuffer:
    """Return the functions that change this buffer.

    Raises:
        TypeError: If it is no buffer.
    """
    for kind, functions in _KINDS.items():
        if isinstance(buffer, kind):
            return functions
    raise TypeError(
        f"{where}: state must be a fbuf.State, a fbuf.sharded.ShardedState or a HostStore, got "
        f"{type(buffer).__name__}; make it with {MAKE}"
    )
