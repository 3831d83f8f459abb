"""Sampling, then changing other rows, in one compiled step: the one order that must be said.

An update of priorities names the rows that were drawn, and so comes after their reading by itself.
An `add` names none, and ids from `fbuf.ids_at` may be of any rows. XLA then cannot see that rows
are read before they are overwritten, and copies the storage. `fbuf.after` says it; whoever leaves
it out is warned while tracing. Ids that come from outside the step, or of which a part was taken,
cannot be told from those of the batch: they bring no warning.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import jax.core

from fbuf.state import State
from fbuf.storage.ids import Ids


class _Noted:
    """Traced arrays, told apart by identity, for as long as they live."""

    def __init__(self) -> None:
        self._arrays: dict[int, weakref.ref[Any]] = {}

    def add(self, array: Any) -> None:
        """Take note of an array, if it is traced."""
        if isinstance(array, jax.core.Tracer):
            key = id(array)
            self._arrays[key] = weakref.ref(array, lambda _: self._arrays.pop(key, None))

    def __contains__(self, array: Any) -> bool:
        found = self._arrays.get(id(array))
        return found is not None and found() is array


_read = _Noted()
"""The fault bits of states that were read. They stand for a state: whatever comes after the reading
of a batch has others."""

_other = _Noted()
"""The slots of ids that do not wait for the reading of any batch."""


def sampled(state: State[Any]) -> None:
    """Take note that a traced state was read."""
    _read.add(state.fault)


def was_sampled(state: State[Any]) -> bool:
    """Whether a traced state was read, and nothing tells that this comes before what follows."""
    return state.fault in _read


def named_other_rows(ids: Ids) -> Ids:
    """The same ids, with a note that they may be of other rows than those that were drawn."""
    _other.add(ids.slot)
    return ids


def warn_if_sampled(function: str, state: State[Any]) -> None:
    """Warn if a state was read, before a change that names no rows."""
    if was_sampled(state):
        _warn(function, f"call fbuf.{function} before you sample", frames=6)


def warn_if_others(function: str, state: State[Any], ids: Any) -> None:
    """Warn if a state was read, before a change of rows that are not those of the batch."""
    if was_sampled(state) and isinstance(ids, Ids) and ids.slot in _other:
        _warn(function, "give it batch.ids", frames=7)


def _warn(function: str, otherwise: str, frames: int) -> None:
    """Warn at the line that called the verb, so many frames up."""
    warnings.warn(
        f"fbuf.{function}: this compiled step samples the state before it changes it, and XLA "
        "may then copy the whole storage at every step. Call state = fbuf.after(state, batch) "
        f"before fbuf.{function}, or {otherwise}",
        stacklevel=frames,
    )
