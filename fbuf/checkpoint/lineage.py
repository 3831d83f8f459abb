"""Save ids: random numbers that identify the ancestor checkpoints of a buffer.

Each save gives the returned buffer a new id, and writes the id into the manifest. Every function
that changes a buffer keeps the id. So a buffer with the id of a checkpoint descends from the buffer
saved there. This process also remembers the ancestors of its ids. So a directory recognises a
buffer after saves to other directories, and after failed saves.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.state import State
from fbuf.xla.place import put_like

CURSOR = ".ring.cursor"
"""The path of the array with the id."""

NONE = 0
"""The id of a buffer without an ancestor checkpoint."""

_MOST = 2**16
"""The number of ids to remember."""

_parents: dict[int, int] = {}
"""The ids of this process, each with its parent id; the oldest first."""

_distrusted: set[int] = set()
"""The ids of checkpoints with a damaged file."""

_lock = threading.Lock()


def new_id(parent: int) -> int:
    """Return a new id for a buffer whose id was `parent`."""
    with _lock:
        given = parent
        while given in (NONE, parent) or given in _parents:
            given = secrets.randbelow(2**31 - 1) + 1
        _parents[given] = parent
        if len(_parents) > _MOST:
            del _parents[next(iter(_parents))]
    return given


def is_given(save_id: int) -> bool:
    """Return whether an id was made in this process."""
    return save_id in _parents


def ancestors(save_id: int) -> Iterator[int]:
    """Yield an id and its ancestors, up to that of a damaged checkpoint."""
    return itertools.takewhile(lambda given: given not in _distrusted, line(save_id))


def line(save_id: int) -> Iterator[int]:
    """Yield an id and all its ancestors; a damaged checkpoint is also of the same run."""
    seen: set[int] = {NONE}
    while save_id not in seen:
        yield save_id
        seen.add(save_id)
        save_id = _parents.get(save_id, NONE)


def distrust(save_id: int) -> None:
    """Let no buffer descend from a checkpoint with a damaged file."""
    _distrusted.add(save_id)
    _parents.pop(save_id, None)


def of_cursor(cursor: np.ndarray) -> int:
    """Return the id in the cursor of a ring, int32 `[rows, heads]`."""
    found = set(map(int, cursor[3]))
    return found.pop() if len(found) == 1 else NONE


def of_state(state: State[Any]) -> int:
    """Return the id of a buffer. No array of the buffer is kept."""
    return of_cursor(jax.device_get(jnp.copy(state.ring.cursor)))


def named(cursor: np.ndarray, save_id: int) -> np.ndarray:
    """Return the cursor of a ring with an id in it."""
    cursor = cursor.copy()
    cursor[3] = save_id
    return cursor


def with_id(state: State[Any], save_id: int) -> State[Any]:
    """Return the buffer with another id; it shares all other arrays."""
    before = state.ring.cursor
    cursor = put_like(before, named(jax.device_get(jnp.copy(before)), save_id))
    return dataclasses.replace(state, ring=dataclasses.replace(state.ring, cursor=cursor))
