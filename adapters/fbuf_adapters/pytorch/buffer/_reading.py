"""Reading rows by where they lie, and whole episodes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fbuf
from fbuf.adapter_api import stored_lanes
from fbuf_adapters.pytorch.batches._sizes import next_step
from fbuf_adapters.pytorch.buffer._backend import Backend
from fbuf_adapters.pytorch.buffer._contents import Contents
from fbuf_adapters.pytorch.crossing._containers import is_tensordict
from fbuf_adapters.pytorch.crossing._to_torch import to_torch

_MOST = 2**14
"""The most rows read at a time."""


def read_at(contents: Contents, where: str, index: Any) -> tuple[torch.Tensor, Any]:
    """Return the slots that an index means, and the rows there, flat; see `__getitem__`."""
    with contents.lock:
        backend = contents.made("__getitem__").backend
        try:
            slots = contents.calls.apart(lambda: _positions(backend.state, index))
        except IndexError as error:
            raise IndexError(f"{where} {error}") from None
        read = functools.partial(_read, backend, slots.reshape(-1))
        data, there = _as_tensors(contents.calls.apart(read))
    if not bool(there.all()):
        if not isinstance(index, slice) or contents.spec.lead:
            slot = int(slots.reshape(-1)[~there.cpu()][0])
            raise IndexError(f"{where} the row in slot {slot} was removed; read [:] or episodes()")
        slots, data = slots[there.cpu()], jax.tree.map(lambda leaf: leaf[there], data)
    return slots, data


def read_episodes(contents: Contents) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield the slots of each stored episode, and its rows."""
    with contents.lock:
        state = contents.made("episodes").backend.state
        found = contents.calls.apart(lambda: list(_episodes(state)))
    for slots, generations in found:
        with contents.lock:
            backend = contents.made("episodes").backend
            read = functools.partial(_read, backend, slots, generations)
            data, there = _as_tensors(contents.calls.apart(read))
        if bool(there.all()):
            yield torch.from_numpy(slots), data


def _positions(state: fbuf.State[Any], index: Any) -> torch.Tensor:
    """The slots that an index means: int64, of the shape that the index gives.

    The index is of the slots that hold rows, `[N]`; with environments of `[num_envs, N]`.
    """
    count, lanes = int(state.ring.count()), state.ring.num_envs
    if lanes is None and isinstance(index, int) and not isinstance(index, bool):
        if not -count <= index < count:
            raise IndexError(f"position {index} is out of range: the buffer holds {count} rows")
        return torch.tensor(range(count)[index])
    if lanes is None and isinstance(index, slice):
        found = range(count)[index]
        return torch.arange(found.start, found.stop, found.step) if found else torch.arange(0)
    slots = torch.arange(count)
    if isinstance(index, range | np.ndarray):
        index = torch.as_tensor(np.asarray(index))
    if isinstance(index, torch.Tensor):
        index = index.cpu()
    return (slots if lanes is None else slots.reshape(-1, lanes).T)[index]


def field(where: str, data: Any, names: tuple[str, ...]) -> Any:
    """A field of rows, or a field of one."""
    for number, name in enumerate(names):
        keys = list(data.keys()) if isinstance(data, dict) or is_tensordict(data) else []
        if name not in keys:
            asked = names[: number + 1] if number else name
            there = f"there are {', '.join(map(repr, keys))}" if keys else "it has no fields"
            raise KeyError(f"{where} no field is called {asked!r}; {there}")
        data = data[name]
    return data


def _read(
    backend: Backend, slots: Any, generations: Any = None
) -> list[tuple[fbuf.Batch[Any], int]]:
    """The rows of slots `[B]`, in parts, and how many of each were asked for.

    Without generations they are those that lie there now. Numbers of rows go up to a few steps, so
    that all share a few programs.
    """
    slots = np.asarray(slots, np.int32)
    parts: list[tuple[fbuf.Batch[Any], int]] = []
    for start in range(0, max(len(slots), 1), _MOST):
        here = slice(start, start + _MOST)
        count = len(slots[here])
        more = next_step(count) - count
        wanted: Any = np.pad(slots[here], (0, more), constant_values=-1)
        ids: Any = fbuf.ids_at(backend.state, wanted)
        if generations is not None:
            laps: Any = np.pad(np.asarray(generations)[here], (0, more))
            ids = fbuf.Ids(wanted, laps)
        parts.append((backend.read(ids), count))
    return parts


def _as_tensors(found: list[tuple[fbuf.Batch[Any], int]]) -> tuple[Any, torch.Tensor]:
    """Return the rows as tensors, leaves `[B, ...]`, and a mask of the rows that exist.

    Call it in the thread that uses the rows: the current stream of that thread waits for them.
    """
    parts: list[Any] = []
    for batch, count in found:
        both = to_torch((batch.data, batch.mask))
        parts.append(jax.tree.map(lambda leaf, n=count: leaf[:n], both))
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *part: torch.cat(part), *parts)


def _episodes(state: fbuf.State[Any]) -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
    """The slots and generations of each stored episode, in order; lane by lane, oldest first."""
    ring = state.ring
    generations = np.asarray(ring.generation_of(jnp.arange(ring.capacity, dtype=jnp.int32)))
    for lane in stored_lanes(ring):
        for slots in lane.unbroken():
            yield slots, generations[slots]
