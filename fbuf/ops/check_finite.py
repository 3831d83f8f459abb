"""Looking for NaN and infinities in the stored rows, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.dispatch.call import refuse_consumed, require_state
from fbuf.dispatch.intact import one_buffer
from fbuf.state import State
from fbuf.storage.layout import Layout
from fbuf.storage.next_obs import NextObs
from fbuf.storage.ring import DUMMY, ENDS, REMOVED, Ring
from fbuf.storage.store import Storage

_CHUNK = 2**14
"""Rows that are read at a time."""

_NAMED = 5
"""The most fields in a message."""

Read = Callable[[Any, Sequence[int]], Sequence[Any]]
"""A function of int32 slots and numbers of leaves; it returns the leaves `[B, ...]`."""


class NotFiniteError(ValueError):
    """Stored rows hold NaN or an infinity; raised by `fbuf.check_finite`.

    Attributes:
        slots: The slots of those rows, int32 `[n]` of NumPy, for `fbuf.ids_at`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0}, capacity=4)
        >>> state = fbuf.add(state, {"reward": jnp.array([jnp.inf])})
        >>> try:
        ...     fbuf.check_finite(state)
        ... except fbuf.NotFiniteError as error:
        ...     print(error.slots)
        [0]
    """

    def __init__(self, message: str, slots: np.ndarray[Any, Any]) -> None:
        super().__init__(message, slots)
        self.slots = slots

    def __str__(self) -> str:
        """The error message."""
        return str(self.args[0])


def check_finite(state: State[Any]) -> None:
    """Raise if a stored row holds NaN or an infinity, and say which field, row and environment.

    One such number in a loss makes all weights NaN. Call it from the host loop now and then, and
    when a loss is not finite. The rows stay as they are: `fbuf.write` corrects them, and
    `fbuf.remove` leaves them out, if the buffer is `removable`. The check reads all floats and
    complex numbers of rows that can be drawn, and their kept next observations.

    Args:
        state: The buffer; never consumed.

    Raises:
        NotFiniteError: If a row holds one. The message names each field with the number of such
            rows. It names the environment, the slot and the age in steps of the newest such row.
            The attribute `slots` has the slots of all these rows.
        TypeError: If `state` is no buffer, or is traced.
        RuntimeError: If `state` has been consumed.

    Cost: O(N) time, with few rows in memory at a time; it waits for the result.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0}, capacity=8, num_envs=2)
        >>> state = fbuf.add(state, {"reward": jnp.array([1.0, jnp.nan])})
        >>> try:
        ...     fbuf.check_finite(state)
        ... except fbuf.NotFiniteError as error:
        ...     print(error)
        ...     state = fbuf.remove(state, fbuf.ids_at(state, error.slots))
        fbuf.check_finite: rows hold NaN or an infinity: 'reward' in 1 row, the newest of \
environment 1, 0 steps before its newest row (slot 1)
        >>> fbuf.check_finite(state)
    """
    require_state("check_finite", state)
    if isinstance(state.fault, jax.core.Tracer):
        raise TypeError(
            "fbuf.check_finite: state is traced, and what is found is raised on the host; call it "
            "outside jit"
        )
    refuse_consumed("check_finite", state)
    one_buffer("check_finite", state)
    kept = state.next_obs
    aside = None if kept is None else functools.partial(_leaves, kept.rows)
    check_rows("fbuf.check_finite", state, functools.partial(_leaves, state.storage), aside)


def check_rows(function: str, state: State[Any], read: Read, aside: Read | None) -> None:
    """Raise as `check_finite` does.

    Args:
        function: The beginning of the message.
        state: The buffer; only the layout of its rows is read.
        read: Reads rows by their slots.
        aside: Reads the kept next observations; None if there are none.
    """
    flags, ages, there = map(jax.device_get, _of_ring(state.ring))
    can = there & (flags & (REMOVED | DUMMY) == 0)
    bad_slots = _bad(state.storage.layout, state.capacity, read, can)
    if aside is not None and (kept := state.next_obs) is not None:
        layout, owner = kept.rows.layout, jax.device_get(kept.owner)
        owned = _are_kept(kept, flags & ENDS > 0, state.ring.lanes) & can[np.maximum(owner, 0)]
        for name, bad in _bad(layout, len(owner), aside, owned).items():
            leaf = f"{kept.field}.{name[1:-1]}" if name else kept.field
            bad_slots[f"the next value of {leaf!r}"] = np.sort(owner[bad])
    if not bad_slots:
        return
    lanes = state.ring.lanes
    told: list[str] = []
    for name, slots in list(bad_slots.items())[:_NAMED]:
        newest = int(slots[np.argmin(ages[slots])])
        env = "" if state.ring.num_envs is None else f" of environment {newest % lanes},"
        told.append(
            f"{name} in {len(slots)} row{'s' if len(slots) > 1 else ''}, the newest{env} "
            f"{ages[newest]} steps before its newest row (slot {newest})"
        )
    more = f"; and {len(bad_slots) - _NAMED} more fields" if len(bad_slots) > _NAMED else ""
    raise NotFiniteError(
        f"{function}: rows hold NaN or an infinity: {'; '.join(told)}{more}",
        np.unique(np.concatenate([*bad_slots.values()])).astype(np.int32),
    )


def _bad(
    layout: Layout, rows: int, read: Read, there: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the places of stored rows with a bad number, for each leaf with such rows."""
    inexact = [n for n, f in enumerate(layout.fields) if jnp.issubdtype(f.dtype, jnp.inexact)]
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(layout.item)]
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    places = np.flatnonzero(there).astype(np.int32)
    for start in range(0, len(places) if inexact else 0, _CHUNK):
        part = places[start : start + _CHUNK]
        padded = np.concatenate([part, np.full(min(_CHUNK, rows) - len(part), part[0], np.int32)])
        bad = jax.device_get(_are_bad(read(padded, inexact)))[:, : len(part)]
        for number, of_leaf in zip(inexact, bad, strict=True):
            if of_leaf.any():
                found.setdefault(names[number], []).append(part[of_leaf])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _name(path: Any) -> str:
    """Return the name of a leaf, for messages."""
    return repr(jax.tree_util.keystr(path, simple=True, separator=".")) if path else ""


@jax.jit
def _are_bad(leaves: Sequence[Any]) -> jax.Array:
    """Return a mask of the rows with a bad number: bool `[leaves, B]`."""
    return jnp.stack([~jnp.isfinite(x).reshape(x.shape[0], -1).all(axis=1) for x in leaves])


@functools.partial(jax.jit, static_argnums=2)
def _read(storage: Storage[Any], slots: jax.Array, leaves: tuple[int, ...]) -> list[jax.Array]:
    return storage.read_leaves(slots, leaves)


def _leaves(storage: Storage[Any], slots: Any, leaves: Sequence[int]) -> list[jax.Array]:
    return _read(storage, jax.device_put(slots), tuple(leaves))


@jax.jit
def _of_ring(ring: Ring) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the flags of each slot, its steps before the newest row, and a mask of stored rows."""
    slots = jnp.arange(ring.capacity, dtype=jnp.int32)
    return ring.flags, ring.newer(slots), ring.holds(slots)


def _are_kept(kept: NextObs, ends: np.ndarray[Any, Any], lanes: int) -> np.ndarray[Any, Any]:
    """Return a mask of the kept next observations that belong to rows: bool `[lanes + ends]`."""
    owner, place = jax.device_get(kept.owner), np.arange(kept.owner.shape[0])
    slot = np.maximum(owner, 0)
    of_end = ends[slot] & (jax.device_get(kept.kept_at)[slot] == place)
    return (owner >= 0) & (of_end | (place < lanes))
