"""The input of a report: the parts of a buffer, from any object that has one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.dispatch.call import refuse_consumed
from fbuf.dispatch.intact import refuse_other_arrays
from fbuf.owner.owner import Asked, owner_of
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


KINDS = "a fbuf.State, a ShardedState, a HostStore or a buffer of fbuf_adapters"


@contextlib.contextmanager
def opened(buffer: Any, function: str) -> Generator[list[Part]]:
    """Open the parts of a buffer; inside the context nobody changes them.

    Args:
        buffer: The buffer, of any class that has an owner; see `owner_of`.
        function: The name of the caller, for messages.

    Raises:
        TypeError: If it is no buffer, or if it is traced.
        ValueError: If it is a batch of buffers.
        RuntimeError: If it has been consumed.
    """
    owner = owner_of(buffer, Asked(f"fbuf.{function}", KINDS))
    with owner.lock:
        _check_values(owner.index, function)
        states = owner.whole()
        for state in states:
            _check(state, function)
        parts = map(of_state, states)
        yield [dataclasses.replace(part, over_mesh=owner.over_mesh) for part in parts]


def _check(state: State[Any], function: str) -> None:
    """Refuse a batch of states, and a state that other code has changed."""
    shape = np.shape(state.fault)
    if shape:
        first = f"x[{', '.join('0' * len(shape))}]"
        raise ValueError(
            f"fbuf.{function}: state is a batch of buffers of shape {shape}; give one of them: "
            f"jax.tree.map(lambda x: {first}, state)"
        )
    refuse_other_arrays(function, state)


def _check_values(state: Any, function: str) -> None:
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
