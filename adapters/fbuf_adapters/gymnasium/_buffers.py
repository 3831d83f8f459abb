"""What a collector fills: a buffer, one over a mesh, or a store on the host."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import numpy as np

import fbuf
from fbuf.dispatch.call import refuse_consumed
from fbuf.host import HostStore

Envs = np.ndarray[Any, np.dtype[np.bool_]]


class Buffer(Protocol):
    """How one kind is changed. A state is consumed, and the new one returned; a store is itself."""

    make: str
    """How to make one, for errors."""

    def flags(self, buffer: Any) -> fbuf.State[Any]:
        """The state that knows the item, the environments and the next observations."""
        ...

    def num_envs(self, buffer: Any) -> int | None:
        """How many environments it is for."""
        ...

    def check(self, where: str, buffer: Any) -> None:
        """Refuse one that cannot be added to."""
        ...

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        """Add rows `[T, num_envs, ...]` of NumPy, given as to `fbuf.add`."""
        ...

    def end_episode(self, buffer: Any, envs: Envs | None = None) -> Any:
        """End the open episodes of some environments; None is all."""
        ...

    def with_resets(self, buffer: Any, envs: Envs) -> Any:
        """The buffer, to which the next row of these environments is a dummy."""
        ...


def kind_of(where: str, buffer: Any) -> Buffer:
    """How this buffer is changed.

    Raises:
        TypeError: If it is none.
    """
    for kind, handled in _KINDS.items():
        if isinstance(buffer, kind):
            return handled
    raise TypeError(
        f"{where}: state must be a fbuf.State, a fbuf.sharded.ShardedState or a HostStore, got "
        f"{type(buffer).__name__}; make it with {_Plain.make}"
    )


class _Plain:
    """A `fbuf.State`."""

    make = "fbuf.init(collector.item, capacity, **collector.options)"

    def flags(self, buffer: Any) -> Any:
        return buffer

    def num_envs(self, buffer: Any) -> int | None:
        return buffer.ring.num_envs

    def check(self, where: str, buffer: Any) -> None:
        refuse_consumed("add", buffer)

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        return fbuf.add(buffer, **given, time_major=True)

    def end_episode(self, buffer: Any, envs: Envs | None = None) -> Any:
        return fbuf.end_episode(buffer, mask=envs)

    def with_resets(self, buffer: Any, envs: Envs) -> Any:
        return _with_resets(buffer, np.array(envs))


class _Store:
    """A `HostStore`."""

    make = "HostStore(collector.item, capacity, **collector.options)"

    def flags(self, buffer: Any) -> Any:
        return buffer.contents.index

    def num_envs(self, buffer: Any) -> int | None:
        return buffer.contents.index.ring.num_envs

    def check(self, where: str, buffer: Any) -> None:
        if buffer.contents.owned:
            raise ValueError(
                f"{where}: the store belongs to a buffer for PyTorch, which would not know of the "
                "rows; give the collector a store of its own"
            )

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        buffer.add(**given, time_major=True)
        return buffer

    def end_episode(self, buffer: Any, envs: Envs | None = None) -> Any:
        buffer.end_episode(mask=envs)
        return buffer

    def with_resets(self, buffer: Any, envs: Envs) -> Any:
        contents = buffer.contents
        contents.index = _with_resets(contents.index, np.array(envs))
        return buffer


class _Mesh:
    """A `fbuf.sharded.ShardedState` of one process."""

    make = "fbuf.sharded.init(collector.item, capacity, mesh=mesh, **collector.options)"

    def flags(self, buffer: Any) -> Any:
        return buffer.blocks

    def num_envs(self, buffer: Any) -> int | None:
        return buffer.num_envs

    def check(self, where: str, buffer: Any) -> None:
        refuse_consumed("sharded.add", buffer)
        if not buffer.fault.is_fully_addressable:
            raise ValueError(
                f"{where}: the mesh has devices of other processes, and a collector has the "
                "environments of its own; collect into a buffer of each process"
            )

    def add(self, buffer: Any, given: dict[str, Any]) -> Any:
        return fbuf.sharded.add(buffer, **given, time_major=True)

    def end_episode(self, buffer: Any, envs: Envs | None = None) -> Any:
        return fbuf.sharded.end_episode(buffer, mask=envs)

    def with_resets(self, buffer: Any, envs: Envs) -> Any:
        along = jax.sharding.NamedSharding(buffer.mesh, buffer.spec)
        blocks = _with_resets(buffer.blocks, jax.device_put(np.array(envs), along))
        return dataclasses.replace(buffer, blocks=blocks)


def _with_resets(state: Any, resets: Any) -> Any:
    opened = dataclasses.replace(state.ring.open, resets=resets)
    return dataclasses.replace(state, ring=dataclasses.replace(state.ring, open=opened))


_KINDS: dict[type, Buffer] = {
    fbuf.State: _Plain(),
    fbuf.sharded.ShardedState: _Mesh(),
    HostStore: _Store(),
}
