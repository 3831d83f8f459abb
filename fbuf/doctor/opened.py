"""The parts that a report looks at, of any object that has a buffer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.dispatch.call import refuse_consumed
from fbuf.dispatch.intact import refuse_other_arrays
from fbuf.mesh.shards import shards_here
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage import deferred, store
from fbuf.storage.layout import Layout
from fbuf.storage.store import Storage

Read = Callable[[np.ndarray[Any, Any], Sequence[int]], Sequence[Any]]
"""A function of int32 slots `[B]` and numbers of leaves. It returns the leaves, `[B, ...]` each."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A buffer, or one shard of a buffer over a mesh.

    Attributes:
        state: The buffer without its rows.
        layout: The leaves of a row.
        read: Reads rows.
        kept: Reads what `next_of` keeps, by place; None where nothing is kept, or where its rows
            are not at hand.
        known: Whether the class of the sampler is known; if not, there is no index.
        over_mesh: Whether it is a shard, though it be the only one.
    """

    state: State[Any]
    layout: Layout
    read: Read
    kept: Read | None = None
    known: bool = True
    over_mesh: bool = False


@functools.singledispatch
def opened(buffer: Any, function: str) -> AbstractContextManager[list[Part]]:
    """Return the parts of a buffer; inside the context nobody changes them.

    Classes that hold a buffer register a function of their own.

    Args:
        buffer: The buffer.
        function: The name of the caller, for messages.

    Raises:
        TypeError: If nothing is registered for the class of the buffer, or if it is traced.
        ValueError: If it is a batch of buffers.
        RuntimeError: If it has been consumed.
    """
    found = f"got {type(buffer).__name__}"
    instead = "make one with fbuf.init"
    if isinstance(buffer, tuple):
        instead = "give the state alone, as in state, batch = fbuf.draw(...)"
    elif isinstance(buffer, str | os.PathLike):
        instead = "of a checkpoint give fbuf.load(path).state, or run fbuf doctor PATH"
    elif isinstance(getattr(buffer, "state", None), State | ShardedState):
        instead = "give its state, as in collector.state"
    raise TypeError(
        f"fbuf.{function}: state must be a fbuf.State, a ShardedState, a HostStore or a buffer of "
        f"fbuf_adapters, {found}; {instead}"
    )


@opened.register
@contextlib.contextmanager
def _(buffer: State, function: str) -> Generator[list[Part]]:  # pyright: ignore[reportMissingTypeArgument]
    check(buffer, function)
    refuse_other_arrays(function, buffer)
    yield [of_state(buffer)]


@opened.register
@contextlib.contextmanager
def _(buffer: ShardedState, function: str) -> Generator[list[Part]]:  # pyright: ignore[reportMissingTypeArgument]
    check_values(buffer, function)
    if not buffer.fault.is_fully_addressable:
        raise ValueError(
            f"fbuf.{function}: state lies on devices of several processes, and one of them sees "
            "its own shards alone; call fbuf.save, and then run fbuf doctor PATH"
        )
    shards = [of_state(shard) for _, shard in shards_here(buffer)]
    yield [dataclasses.replace(shard, over_mesh=True) for shard in shards]


def check(state: State[Any], function: str) -> None:
    """Refuse a state that has no values, and a batch of states."""
    check_values(state, function)
    shape = np.shape(state.fault)
    if shape:
        first = f"x[{', '.join('0' * len(shape))}]"
        raise ValueError(
            f"fbuf.{function}: state is a batch of buffers of shape {shape}; give one of them: "
            f"jax.tree.map(lambda x: {first}, state)"
        )


def check_values(state: Any, function: str) -> None:
    """Refuse a state that has no values."""
    if isinstance(state.fault, jax.core.Tracer):
        raise TypeError(
            f"fbuf.{function}: state is traced, and its values are not known yet; call it outside "
            "jit, with the state that the compiled function returns"
        )
    if not isinstance(state.fault, jax.Array | np.ndarray):
        raise TypeError(
            f"fbuf.{function}: state holds {type(state.fault).__name__} in place of arrays; give "
            "the buffer itself"
        )
    refuse_consumed(function, state)


def of_state(state: State[Any]) -> Part:
    """Return a buffer whose rows it holds itself."""
    storage, kept = state.storage, state.next_obs
    of_kept = None if kept is None else functools.partial(_leaves, kept.rows)
    # Programs that look at the index alone get no rows.
    index: Any = deferred.without_rows(state)
    return Part(index, storage.layout, functools.partial(_leaves, storage), of_kept)


@functools.partial(jax.jit, static_argnums=2)
def _read(storage: Storage[Any], slots: jax.Array, leaves: tuple[int, ...]) -> list[jax.Array]:
    return storage.read_leaves(slots, leaves)


def _leaves(
    storage: Storage[Any], slots: np.ndarray[Any, Any], leaves: Sequence[int]
) -> list[jax.Array]:
    of_device: Any = storage.words
    if isinstance(of_device, jax.Array):
        return _read(storage, jax.device_put(slots), tuple(leaves))
    # Rows on the host stay there, but for these.
    layout, word = storage.layout, storage.words.dtype
    first, last = store.columns(layout, word, leaves)
    words = jnp.asarray(storage.words[slots][:, first:last])
    wide = [jnp.asarray(storage.wide[at][slots]) for at in store.wide_of(layout, leaves)]
    return store.unpacked(layout, leaves, words, wide, slots.shape)
