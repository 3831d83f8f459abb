"""The frame stack view: frames are stored once, and stacked when they are sampled."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _check, _ring, _rows, _storage
from fbuf._ring import REMOVED, TERMINATED, TRUNCATED, Ring
from fbuf._state import State
from fbuf.views import _fields
from fbuf.views._protocol import Reading
from fbuf.views._steps import check_lane


@dataclasses.dataclass(frozen=True)
class FrameStack:
    """Return each drawn row as it was added, with a field stacked with those of the rows before.

    The stack does not reach back beyond the first row of the episode, the oldest row, or a row that
    was removed: the first one that is there is repeated, as environments' own frame stacks do.

    Attributes:
        k: How many frames, the drawn row's own included; at least 1.
        field: The name of the field to stack, `"a.b"` for a field in a field.
        fields: As for `fbuf.Item`: which fields to gather, the stacked one among them.

    The field's leaves become `[B, ..., k]`, the oldest frame first; all others stay `[B, ...]`.

    Cost: O(B k) reads of that field; a frame is stored once instead of k times.

    Raises:
        ValueError: If `k` is out of range; when traced, if it is more than a lane has room for, if
            the items have no such field, or `fields` leaves it out.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"obs": jnp.int32(0)}, capacity=8, sampler=fbuf.Uniform(window=2))
        >>> state = fbuf.add(state, {"obs": jnp.array([5, 6, 7], jnp.int32)})
        >>> state = fbuf.remove(state, fbuf.Ids(jnp.int32([0]), jnp.int32([0])))
        >>> fbuf.sample(state, jax.random.key(0), 1, view=fbuf.FrameStack(3, "obs")).data["obs"]
        Array([[6, 6, 6]], dtype=int32)

    References:
        Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015.
    """

    k: int
    field: str = "observation"
    fields: _fields.Fields = None

    def __post_init__(self) -> None:
        _check.positive_int("FrameStack", "k", self.k, 2**16)
        _fields.check("FrameStack", self.fields)

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Read the rows, and the field of those before."""
        ring, storage = state.ring, state.storage
        check_lane("FrameStack", "k is", self.k, ring)
        wanted = self.fields or (self.field,)
        if not any(f"{self.field}.".startswith(f"{name}.") for name in wanted):
            raise ValueError(
                f"fbuf.FrameStack: fields leaves out {self.field!r}, which is to be stacked; put "
                "it among them, or take fbuf.Item"
            )
        reach, others = _reach(ring, slots, self.k)
        back = jnp.minimum(jnp.arange(self.k - 1, -1, -1, dtype=jnp.int32), reach[:, None])
        earlier = _ring.later(ring, slots[:, None], -back)
        frames = _fields.read("FrameStack", "field", storage, earlier, self.field)
        stacked = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, -1), frames)
        numbers = jax.tree.leaves(_storage.find("FrameStack", "field", storage, self.field))
        instead = dict(zip(numbers, jax.tree.leaves(stacked), strict=True))
        data = _fields.rows("FrameStack", storage, slots, self.fields, instead)
        return Reading(data, _rows.read(ring.flags, slots), others)


def _reach(ring: Ring, slots: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """How many rows before each one belong to its episode, at most `k - 1`, and their flags."""
    before = jnp.arange(1, k, dtype=jnp.int32)
    older = _ring.older(ring, slots)[:, None]
    earlier = _ring.later(ring, slots[:, None], -jnp.minimum(before, older))
    flags = _rows.read(ring.flags, earlier.reshape(-1)).reshape(earlier.shape)
    cut = (before > older) | (flags & (TERMINATED | TRUNCATED | REMOVED) > 0)
    return jnp.min(jnp.where(cut, before - 1, k - 1), axis=1, initial=k - 1), flags
