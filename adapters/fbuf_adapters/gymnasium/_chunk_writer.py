"""Adding chunks to a buffer: a state, a state over a mesh, or a store on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import Asked, Owner, owner_of
from fbuf_adapters._fields import MAKE, blank_rows, check_rows, with_blank
from fbuf_adapters._left_off import LeftOff, known
from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._info import NO_FINAL
from fbuf_adapters.gymnasium._spaces import Spec, map_leaves

SMALL = 128
"""A number of steps; fewer get an add of their own only if little is collected at a time."""

_KINDS = "a fbuf.State, a fbuf.sharded.ShardedState or a HostStore"


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
        """Refuse a buffer that does not fit the chunks, or that has been consumed."""
        owner = self._owner_of(buffer, function)
        owner.require("add")
        make = owner.make.format("collector.item, capacity", "**collector.options")
        where = owner.asked.where
        check_rows(where, owner.index, self._fields, self._options, owner.num_envs, make)
        if owner.over_mesh and not owner.index.fault.is_fully_addressable:
            raise ValueError(
                f"{where}: the mesh has devices of other processes, and a collector has the "
                "environments of its own; collect into a buffer of each process"
            )
        self._changed(owner)  # known by the time at which the chunk has come

    def keeps_next(self, buffer: Any) -> bool:
        """Return whether a checked buffer has next observations."""
        state = self._owner_of(buffer).index
        return state.next_obs is not None or "next_observation" in state.storage.item

    def end_episode(self, buffer: Any) -> Any:
        """End all open episodes of a checked buffer, which is consumed."""
        owner = self._owner_of(buffer)
        owner.change(fbuf.end_episode, mask=None)
        return owner.buffer

    def add(self, buffer: Any, chunk: StepChunk, *, dummies: Any = None, envs: Any = None) -> Any:
        """Add a chunk to a checked buffer, which is consumed.

        Args:
            buffer: The buffer.
            chunk: The steps.
            dummies: bool `[num_envs]`: the environments whose first row is a dummy. A buffer knows
                them itself, unless the chunk before went into another buffer.
            envs: bool `[num_envs]`: the environments that made the steps, if not all of them.
        """
        owner = self._owner_of(buffer)
        if chunk.next_observation is None and self.keeps_next(buffer):
            raise CollectorError(NO_FINAL)
        arguments = self._given(owner.index, chunk, envs)
        num_envs = chunk.terminated.shape[1]
        with owner.lock:  # or another writer could come in between
            ended = known(self._changed(owner), wait=owner.in_place)  # its add waits anyway
            if np.any(chunk.fresh):
                fresh = np.broadcast_to(chunk.fresh, num_envs)
                ended = fresh if ended is None else ended | fresh
            if ended is not None:
                owner.change(fbuf.end_episode, mask=ended)
            if dummies is not None and dummies.any():
                owner.replace_index(functools.partial(_with_resets, np.array(dummies)))
            owner.add(**arguments, time_major=True)
            self._left.note(owner.index.ring.cursor)
        return owner.buffer

    def _owner_of(self, buffer: Any, function: str = "collect") -> Owner:
        """Return the owner of a buffer."""
        asked = Asked(f"{self._owner}.{function}", _KINDS, f"make it with {MAKE}")
        return owner_of(buffer, asked)

    def _changed(self, owner: Owner) -> Any:
        """Return in which environments others have changed the newest rows since."""
        lanes: Any = owner.num_envs
        return self._left.changed(owner.index.ring.cursor, lanes, owner.num_shards)

    def _given(self, state: Any, chunk: StepChunk, envs: Any) -> dict[str, Any]:
        """Return the arguments of `fbuf.add`, padded to one of a few sizes."""
        steps, num_envs = chunk.terminated.shape
        wanted = state.storage.item
        version = np.full(chunk.terminated.shape, chunk.version, np.int32)
        filled = {**vars(chunk), **chunk.extras, "version": version}
        arguments: dict[str, Any] = {
            "items": {name: filled[name] for name in wanted if name not in self._blank},
            "terminated": chunk.terminated,
            "truncated": chunk.truncated,
        }
        if state.next_obs is not None:
            arguments["next_observation"] = chunk.next_observation
        # One of a few sizes: short chunks need not cost as much as long ones.
        size = next(size for size in self._sizes if steps <= size)
        if steps < size:
            arguments = map_leaves(lambda array: _padded(array, size), arguments)
        blank = {name: spec for name, spec in self._blank.items() if name in wanted}
        arguments["items"] |= blank_rows(blank, (size, num_envs), np)
        whole = np.arange(size) < steps
        if not state.ring.lockstep:
            arguments["mask"] = whole[:, None] & (np.ones(num_envs, bool) if envs is None else envs)
        elif steps < self._size:
            arguments["mask"] = whole
        return arguments


def _padded(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Return an array with zeros behind it."""
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _with_resets(envs: Any, state: Any) -> Any:
    """Return a state with a dummy as the next row of these environments."""
    opened = dataclasses.replace(state.ring.open, resets=envs)
    return dataclasses.replace(state, ring=dataclasses.replace(state.ring, open=opened))
