"""The return-to-go view: the discounted rewards up to the end of the episode."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.storage.ring import ENDS
from fbuf.storage.store import Item
from fbuf.views.episode import CHUNK
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader


@pytree
class ReturnToGoStep(Generic[Item, ArrayT]):
    """The data of `fbuf.ReturnToGo`.

    Attributes:
        item: The row itself, as you added it; leaves `[B, ...]`.
        return_to_go: float32 `[B]`: `r[0] + gamma * r[1] + gamma**2 * r[2] + ...`, from the row to
            the last stored row of its episode.
        complete: bool `[B]`: the sum reaches the end of the episode. False if the episode is still
            open, or if a row before its end was removed.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init({"reward": 0.0}, capacity=8), {"reward": jnp.full(1, 3.0)})
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.ReturnToGo(gamma=0.5))
        >>> float(batch.data.return_to_go[0]), bool(batch.data.complete[0])
        (3.0, False)
    """

    __repr__ = shown.batch_repr

    item: Item
    """The row itself, as you added it."""
    return_to_go: ArrayT
    """float32 `[B]`: `r[0] + gamma * r[1] + gamma**2 * r[2] + ...`"""
    complete: ArrayT
    """bool `[B]`: the sum reaches the end of the episode."""


@dataclasses.dataclass(frozen=True)
class ReturnToGo(View[ReturnToGoStep[Any]]):
    """Sum up the rewards from each drawn row to the end of its episode.

    The sum stops after a row that is terminated or truncated; only then `complete` is True. It also
    stops at the newest row, and before a removed row or a dummy. The flags `Sample.terminated` and
    `.truncated` are those of the last row in the sum. An episode may have any length. Where
    `Sample.mask` is False, the sum is 0 and not complete.

    Attributes:
        gamma: The discount of a step, from 0 to 1.
        reward: The name of the reward among the item's fields (`"a.b"` for a field in a field). It
            must be one real number, of shape `[]` or `[1]`. It is summed up in float32.
        fields: As for `fbuf.Item`: the fields of the row to gather.

    Cost: O(B L) reads of a reward and a flag. L is the longest distance in the batch from a drawn
        row to the end of its episode.

    Raises:
        ValueError: If `gamma` is out of range. When traced, if the items have no such fields, or if
            the reward is not one real number.
        TypeError: If `gamma` is not a number, or if `fields` is not a tuple of names.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init({"reward": 0.0}, capacity=8, sampler=fbuf.Uniform(first_only=True))
        >>> ends = jnp.array([False, False, True])
        >>> state = fbuf.add(state, {"reward": jnp.array([1.0, 2.0, 4.0])}, truncated=ends)
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.ReturnToGo(gamma=0.5))
        >>> float(batch.data.return_to_go[0]), bool(batch.data.complete[0])
        (3.0, True)

    References:
        Chen et al., Decision Transformer, arXiv:2106.01345 (returns to go as an input);
        Oh et al., Self-Imitation Learning, arXiv:1806.05635 (as a target).
    """

    gamma: float
    _: dataclasses.KW_ONLY
    reward: str = "reward"
    fields: Fields = None

    def __post_init__(self) -> None:
        check.number("ReturnToGo", "gamma", self.gamma, 1)
        check.names("ReturnToGo", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Find the end of the episode, and request the rewards up to it."""
        count = reader.steps_to_end(slots)
        wanted = {
            "rewards": reader.ahead(
                slots, count, reader.number(self.reward, "reward", column=True)
            ),
            "rows": reader.rows(slots, self.fields),
        }
        flags = reader.flags(reader.ring.later(slots, count))
        return Request(wanted, (count, flags, reader.mask))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Sum up the rewards, backwards."""
        count, flags, mask = seen
        # Computed from Python floats: powers of a rounded gamma would be less exact.
        factor = jnp.asarray(float(self.gamma) ** np.arange(CHUNK), jnp.float32)
        beyond = jnp.float32(float(self.gamma) ** CHUNK)

        def add_chunk(total: jax.Array, number: jax.Array, reward: jax.Array) -> jax.Array:
            gained = reward.reshape(reward.shape[:2]).astype(jnp.float32)
            # An invalid step may hold NaN, and 0 * nan is not 0.
            gained = jnp.where(number[None] <= count[:, None], gained * factor[None], 0)
            return gained.sum(axis=1) + beyond * total

        nothing = jnp.zeros(count.shape, jnp.float32)
        total = rows["rewards"].fold_back(add_chunk, nothing)
        complete = flags & ENDS > 0
        if mask is not None:
            total, complete = select(mask, total), complete & mask
        return Reading(ReturnToGoStep(rows["rows"], total, complete), flags)
