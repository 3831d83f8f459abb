"""The frame stack view: frames are stored once, and stacked when they are drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.steps import preceding


@dataclasses.dataclass(frozen=True)
class FrameStack(View):
    """Return each drawn row with one field stacked: its own frame and those of the rows before.

    The stack does not reach beyond the first row of the episode, the oldest row, or a removed row.
    It repeats its first frame instead, as environments' own frame stacks do. Where `Sample.mask` is
    False, it repeats the row's own frame.

    Attributes:
        k: The number of frames, that of the drawn row included; at least 1.
        field: The name of the field to stack (`"a.b"` for a field in a field).
        fields: As for `fbuf.Item`: the fields to gather; the stacked one must be among them.

    The field's leaves become `[B, ..., k]`, the oldest frame first; all others stay `[B, ...]`.

    Cost: O(B k) reads of that field.

    Raises:
        ValueError: If `k` is out of range. When traced, if it is longer than a lane, if the items
            have no such field, or if `fields` leaves it out.
        TypeError: If `k` is not an int, `field` is not a str, or `fields` is not a tuple of names.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"observation": jnp.int32(0)}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Uniform(window=2))
        >>> state = fbuf.add(state, {"observation": jnp.array([5, 6, 7], jnp.int32)})
        >>> state = fbuf.remove(state, fbuf.Ids(jnp.int32([0]), jnp.int32([0])))
        >>> view = fbuf.FrameStack(3)
        >>> fbuf.sample(state, jax.random.key(0), 1, view=view).data["observation"]
        Array([[6, 6, 6]], dtype=int32)

    References:
        Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015.
    """

    k: int
    _: dataclasses.KW_ONLY
    field: str = "observation"
    fields: Fields = None

    def __post_init__(self) -> None:
        check.integer("FrameStack", "k", self.k, check.LONGEST)
        check.name("FrameStack", "field", self.field)
        check.names("FrameStack", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the rows, and the field of the rows before."""
        reader.check_lane("k is", self.k)
        wanted = self.fields or (self.field,)
        if not any(f"{self.field}.".startswith(f"{name}.") for name in wanted):
            raise ValueError(
                f"fbuf.FrameStack: fields leaves out {self.field!r}, the field to stack; add it "
                "to fields, or use fbuf.Item"
            )
        back = jnp.arange(self.k - 1, -1, -1, dtype=jnp.int32)[None]
        reach = preceding(reader, slots, self.k - 1)
        if reader.mask is not None:  # a masked draw repeats its own frame
            reach = select(reader.mask, reach)
        back = jnp.minimum(back, reach[:, None])
        stacked, others = self._leaves(reader.layout)
        wanted = {
            "frames": reader.leaves(reader.ring.later(slots[:, None], -back), stacked),
            "others": reader.leaves(slots, others),
        }
        return Request(wanted, reader.flags(slots))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put the stacks in the place of the field."""
        stacked, others = self._leaves(layout)
        frames = [jnp.moveaxis(leaf, 1, -1) for leaf in rows["frames"]]
        leaves = dict(zip(stacked + others, frames + rows["others"], strict=True))
        item = jax.tree.map(leaves.get, layout.numbers("FrameStack", self.fields))
        return Reading(item, seen)

    def _leaves(self, layout: Layout) -> tuple[list[int], list[int]]:
        """Return the numbers of the leaves to stack, and of all other leaves."""
        stacked = jax.tree.leaves(layout.find("FrameStack", "field", self.field))
        item = jax.tree.leaves(layout.numbers("FrameStack", self.fields))
        return stacked, [leaf for leaf in item if leaf not in stacked]
