"""A state that comes from elsewhere: its steps, as the buffer counts them."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import TERMINATED, TRUNCATED
from fbuf_adapters.sb3._checks import WHERE
from fbuf_adapters.sb3._staging import Newest


class Loaded(NamedTuple):
    """The steps of a state.

    Attributes:
        newest: The newest step; None if there is none.
        ends: How many episodes ended at each step, the oldest first: pairs of the number of steps
            up to there, and of ends.
    """

    newest: Newest | None
    ends: collections.deque[tuple[int, int]]


def of(state: fbuf.State[Any], n_envs: int) -> Loaded:
    """Find the steps of a state. O(N)."""
    length = state.capacity // n_envs
    head, stored = (int(x[0]) // n_envs for x in (state.ring.head, state.ring.stored))
    if not stored:
        return Loaded(None, collections.deque())
    steps = stored if stored < length else length + head
    flags = np.roll(np.asarray(state.ring.flags).reshape(length, n_envs), -head, axis=0)[-stored:]
    ended = (flags & (TERMINATED | TRUNCATED) > 0).sum(axis=1)
    (at,) = ended.nonzero()
    ends = zip((steps - stored + 1 + at).tolist(), ended[at].tolist(), strict=True)
    ids = fbuf.newest_ids(state, 1)
    following = fbuf.read(state, ids, view=fbuf.Transition()).data.next_observation
    newest = Newest(
        steps,
        jax.tree.map(lambda leaf: np.array(leaf)[:, 0], following),
        flags[-1] & TERMINATED > 0,
        flags[-1] & TRUNCATED > 0,
    )
    return Loaded(newest, collections.deque(ends))


def check_all_there(state: fbuf.State[Any]) -> None:
    """Refuse a state with removed rows: an array of Stable-Baselines3 has no gaps."""
    if state.ring.removed is not None and (count := int(np.asarray(state.ring.removed))):
        raise ValueError(
            f"{WHERE}: {count} rows of this state were removed, and rows of this buffer stay; take "
            "a state from before fbuf.remove, or fbuf_adapters.pytorch.ReplayBuffer, whose rows "
            "can be removed"
        )
