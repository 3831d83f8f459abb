"""Reads before writes, within one trace.

XLA writes an array in place only if it can see that every read of the old content comes first. A
write that depends on the read shows the order. An `add` depends on no batch, so the two must be
tied, or XLA copies the storage. Where a traced state was read, and is changed in the same trace,
`tied` ties them. It cannot see a state that goes in or out of a trace in between. Such a state goes
through the carry of a loop, or a function that is compiled by itself. There `fbuf.after` ties them.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any

import jax
import jax.core
from jax import lax

from fbuf.checks.warn import warn
from fbuf.sharded_state import StateT
from fbuf.xla.tie import tie


class _Reads:
    """The reads of traced states. The fault bits of a state identify it while they live."""

    def __init__(self) -> None:
        # A read may depend on its own fault bits; strong references would keep both for ever.
        self._of: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]]]] = {}

    def note(self, fault: jax.Array, read: jax.Array) -> None:
        """Note a read for as long as the state can be changed."""
        if not self.of(fault):
            key = id(fault)
            self._of[key] = weakref.ref(fault, lambda _: self._of.pop(key, None)), []
        self.of(fault).append(weakref.ref(read))

    def of(self, fault: Any) -> list[weakref.ref[Any]]:
        """Return the reads of a state."""
        state, reads = self._of.get(id(fault), (lambda: None, []))
        return reads if state() is fault else []


_reads = _Reads()


def note_read(state: Any, read: jax.Array) -> None:
    """Note that a state was read.

    Args:
        state: A `State`, or a `ShardedState`.
        read: An array that is known once the read is done, such as the slots of a batch.
    """
    if isinstance(state.fault, jax.core.Tracer):
        _reads.note(state.fault, read)
        # The negation keeps the read in the trace if the caller drops the batch and uses its data.
        # It costs nothing: XLA drops unused instructions.
        lax.neg(read)


def reads_to_wait_for(function: str, state: Any, ids: Any = None) -> list[jax.Array]:
    """List the reads of a state that come before its next change.

    Args:
        function: The operation, for the warning if a read is of another trace.
        state: As for `note_read`.
        ids: The rows to be changed. They come after the read that returned them.
    """
    named = getattr(ids, "slot", None)
    noted = (read() for read in _reads.of(state.fault))
    reads = [read for read in noted if named is None or read is not named]
    here: list[Any] = [read for read in reads if _trace_of(read) is _trace_of(state.fault)]
    if len(here) < len(reads):
        warn(
            f"fbuf.{function}: this state was sampled inside a function of its own (a branch, a "
            "loop, jax.vmap, a compiled function). XLA may then copy the whole storage at every "
            "step. Return the batch from there, and call state = fbuf.after(state, batch) before "
            f"fbuf.{function}; fbuf.check_in_place says whether it copies"
        )
    return here


def _trace_of(array: Any) -> Any:
    """Return the trace of an array; the array is a value in it, and in the traces within it."""
    return getattr(array, "_trace", None)


def tied(function: str, state: StateT, ids: Any = None) -> StateT:
    """Return the state, whose next change waits for the reads that this trace has made of it."""
    reads = reads_to_wait_for(function, state, ids)
    return waiting(state, reads) if reads else state


@functools.singledispatch
def waiting(state: Any, reads: Any) -> Any:
    """Return the state, whose next change waits for these arrays. Over a mesh it is another one."""
    # Every change waits for the fault. No other number of the state does: else the size of a buffer
    # would differ along a batch of buffers, like the reads.
    return dataclasses.replace(state, fault=tie(state.fault, reads))
