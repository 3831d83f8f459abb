"""The window view: each field at offsets of its own, for action chunks and dilated histories."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Literal

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.storage.store import Item
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted
from fbuf.views.steps import following, preceding

Offsets = tuple[tuple[str, tuple[int, ...]], ...]
"""The name of each field, and its offsets."""


@pytree
class WindowStep(Generic[Item, ArrayT]):
    """The data of `fbuf.Window`.

    Attributes:
        item: The row as you added it, leaves `[B, ...]`. A field with `n` offsets has leaves
            `[B, n, ...]`.
        valid: By the name of each field with offsets, bool `[B, n]`: the episode has such a step.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"action": jnp.int32(0)}, capacity=8)
        >>> state = fbuf.add(state, {"action": jnp.array([7], jnp.int32)})
        >>> view = fbuf.Window({"action": (0, 1)})
        >>> fbuf.sample(state, jax.random.key(0), 1, view=view).data.valid["action"]
        Array([[ True, False]], dtype=bool)
    """

    __repr__ = shown.batch_repr

    item: Item
    """The row as you added it, leaves `[B, ...]`."""
    valid: dict[str, ArrayT]
    """By the name of each field with offsets, bool `[B, n]`."""


@dataclasses.dataclass(frozen=True)
class Window(View[WindowStep[Any]]):
    """Return each drawn row, with some fields read at several steps around the row.

    An offset of 0 is the row itself, -3 is three steps before, and 2 two steps after. No offset
    reaches another episode, a removed row, or a row that is not stored. `pad` says what is there
    instead. All other fields are those of the row.

    Attributes:
        offsets: For each field its offsets, at least one, in any order: a dict such as
            `{"observation": (-3, 0), "action": range(16)}`. They are from -65,536 to 65,536, and
            span no more steps than a lane has. Names have dots between their parts (`"a.b"`). It
            is kept as pairs, so that the view is hashable.
        pad: `"repeat"` gives the nearest step of the episode, `"zero"` gives zeros.
        fields: As for `fbuf.Item`: the fields to gather; those with offsets must be among them.

    Learn from a step of a field where `valid` is True. Where `Sample.mask` is False, no step is
    valid, and `"repeat"` gives the row itself. A kept next observation (`next_of`) is no step:
    offsets end at the last row of the episode.

    Cost: O(B n) reads of a field with `n` offsets, and O(B span) bytes of flags.

    Raises:
        ValueError: If there are no offsets, or if one is out of range. When traced, if the items
            have no such field, or if two fields overlap. Also if `fields` leaves one out, or if
            offsets span more steps than a lane has.
        TypeError: If an argument has another type.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"observation": jnp.int32(0), "action": jnp.int32(0)}, capacity=8)
        >>> steps = jnp.array([5, 6, 7], jnp.int32)
        >>> state = fbuf.add(state, {"observation": steps, "action": 10 * steps})
        >>> view = fbuf.Window({"observation": (-2, 0), "action": range(3)})
        >>> data = fbuf.read(state, fbuf.newest_ids(state, 2), view=view).data
        >>> data.item["observation"]
        Array([[5, 6],
               [5, 7]], dtype=int32)
        >>> data.item["action"]
        Array([[60, 70, 70],
               [70, 70, 70]], dtype=int32)
        >>> data.valid["action"]
        Array([[ True,  True, False],
               [ True, False, False]], dtype=bool)

    References:
        Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware,
        arXiv:2304.13705 (action chunks).
        Chi et al., Diffusion Policy: Visuomotor Policy Learning via Action Diffusion,
        arXiv:2303.04137 (observation and action horizons).
    """

    offsets: Mapping[str, Iterable[int]] | Offsets
    _: dataclasses.KW_ONLY
    pad: Literal["repeat", "zero"] = "repeat"
    fields: Fields = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", _checked(self.offsets))
        check.choice("Window", "pad", self.pad, ("repeat", "zero"))
        check.names("Window", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request each field at its offsets within the episode."""
        every = [offset for _, offsets in self._pairs for offset in (0, *offsets)]
        reader.check_lane("offsets span", max(every) - min(every) + 1)
        steps = following(reader, slots, max(every) + 1)
        after = jnp.sum(steps.same_episode, axis=1, dtype=jnp.int32)[:, None] - 1
        before = preceding(reader, slots, -min(every))[:, None]
        if reader.mask is not None:  # a masked draw repeats its own row
            meant = reader.mask[:, None]
            before, after = select(meant, before), select(meant, after)
        windows, others = self._leaves(reader.layout)
        wanted: dict[str, Wanted] = {"others": reader.leaves(slots, others)}
        valid: dict[str, jax.Array] = {}
        for name, offsets in self._pairs:
            wished = jnp.array(offsets, jnp.int32)[None]
            found = jnp.clip(wished, -before, jnp.maximum(after, 0))
            valid[name] = found == wished
            if reader.mask is not None:
                valid[name] &= reader.mask[:, None]
            wanted[f"of {name}"] = reader.leaves(
                reader.ring.later(slots[:, None], found),
                windows[name],
                valid[name] if self.pad == "zero" else None,
            )
        return Request(wanted, (valid, steps.flags[:, 0]))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put the windows in the places of their fields."""
        valid, flags = seen
        windows, others = self._leaves(layout)
        leaves = dict(zip(others, rows["others"], strict=True))
        for name, numbers in windows.items():
            leaves |= zip(numbers, rows[f"of {name}"], strict=True)
        item = jax.tree.map(leaves.get, layout.numbers("Window", self.fields))
        return Reading(WindowStep(item, valid), flags)

    @property
    def _pairs(self) -> Offsets:
        assert isinstance(self.offsets, tuple)
        return self.offsets

    def _leaves(self, layout: Layout) -> tuple[dict[str, list[int]], list[int]]:
        """Return the numbers of the leaves of each window, and of all other leaves."""
        item = jax.tree.leaves(layout.numbers("Window", self.fields))
        windows: dict[str, list[int]] = {}
        taken: set[int] = set()
        for name, _ in self._pairs:
            of_field = jax.tree.leaves(layout.find("Window", "offsets", name))
            if not set(of_field) <= set(item):
                raise ValueError(
                    f"fbuf.Window: fields leaves out {name!r}, which has offsets; add it to "
                    "fields, or leave out its offsets"
                )
            if taken & set(of_field):
                raise ValueError(
                    f"fbuf.Window: offsets[{name!r}] overlaps with another field; name each field "
                    "once, or its parts"
                )
            taken |= set(of_field)
            windows[name] = of_field
        return windows, [leaf for leaf in item if leaf not in taken]


def _checked(given: Any) -> Offsets:
    """Return the offsets of each field, by name; refuse any other value."""
    pairs = given.items() if isinstance(given, Mapping) else given
    if not isinstance(given, Mapping | tuple) or not pairs:
        raise TypeError(
            "fbuf.Window: offsets must be a dict of fields and their offsets, such as "
            f'{{"action": range(16)}}, got {given!r}'
        )
    by_name: dict[str, tuple[int, ...]] = {}
    for name, offsets in pairs:
        check.name("Window", "offsets", name)
        if isinstance(offsets, str) or not isinstance(offsets, Iterable):
            raise TypeError(
                f"fbuf.Window: offsets[{name!r}] must be a sequence of ints, such as range(16) or "
                f"(-3, 0), got {offsets!r}"
            )
        each = f"offsets[{name!r}]"
        checked = [check.integer("Window", each, n, check.LONGEST, -check.LONGEST) for n in offsets]
        if not checked:
            raise ValueError(f"fbuf.Window: {each} must have at least one offset, got none")
        by_name[name] = tuple(checked)
    return tuple(sorted(by_name.items()))
