"""The n-step view: discounted rewards of several steps, and the observation behind them."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.ring import TERMINATED
from fbuf.storage.store import Item
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted
from fbuf.views.steps import following


@pytree
class NStepTransition(Generic[Item, ArrayT]):
    """The data of `fbuf.NStep`: `reward + discount * value(next_observation)` is a target.

    Attributes:
        item: The row itself, as you added it; leaves `[B, ...]`.
        reward: float32 `[B]`; `r[0] + gamma * r[1] + ... + gamma**(k-1) * r[k-1]`.
        next_observation: The observation after the last of the k steps; leaves `[B, ...]`.
        discount: float32 `[B]`: `gamma**k`, or 0 if the last of the k steps terminated the episode.
        steps: int32 `[B]`: k, the number of steps. It is n, or less at the end of an episode and at
            the newest row. A random n was drawn for each row by itself.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> rows = {"reward": jnp.ones(1), "next_observation": jnp.ones(1)}
        >>> state = fbuf.init(jax.tree.map(lambda x: x[0], rows), capacity=8)
        >>> view = fbuf.NStep(n=3, gamma=0.5)
        >>> batch = fbuf.sample(fbuf.add(state, rows), jax.random.key(0), 1, view=view)
        >>> int(batch.data.steps[0]), float(batch.data.discount[0])
        (1, 0.5)
    """

    __repr__ = shown.batch_repr

    item: Item
    """The row itself, as you added it."""
    reward: ArrayT
    """float32 `[B]`; `r[0] + gamma * r[1] + ... + gamma**(k-1) * r[k-1]`."""
    next_observation: Any
    """The observation after the last of the k steps."""
    discount: ArrayT
    """float32 `[B]`: `gamma**k`, or 0 if the last of the k steps terminated the episode."""
    steps: ArrayT
    """int32 `[B]`: k, the number of steps."""


@dataclasses.dataclass(frozen=True)
class NStep(View[NStepTransition[Any]]):
    """Sum up the rewards of up to n steps from each drawn row, within its episode.

    Where `Sample.mask` is False, the reward and the discount are 0, and the next observation is the
    row's own.

    The sum stops after a row that is terminated or truncated, at the newest row, and before a
    removed row. The `discount` is right for the number of steps in the sum. To draw only rows with
    all n steps, use a sampler with `window=n`. `Sample.terminated` and `.truncated` are those of
    the last row in the sum.

    With `n=(fewest, most)` each draw has its own n. All numbers from `fewest` to `most` are equally
    likely, independent of the row. So a row that is drawn again may get another n. Take a sampler
    with `window=most` for rows that have all steps. The view is then random: `fbuf.read` needs a
    key, and `fbuf.rollout`, `fbuf.rows` and `fbuf.pop` refuse it.

    Attributes:
        n: The number of steps, at least 1. Or a pair of ints, the fewest and the most steps.
        gamma: The discount of a step, from 0 to 1.
        reward: The name of the reward among the item's fields (`"a.b"` for a field in a field). It
            must be one real number, of shape `[]` or `[1]`.
        next_observation: For a buffer made without `next_of`: the name of the field with the next
            observation. It is read from the last row. With `next_of` it means nothing: the next
            observation is read as by `fbuf.Transition`.
        next_of: As for `fbuf.Transition`.
        fields: As for `fbuf.Item`: the fields of the row to gather.

    Cost: O(B n) reads, of the largest n.

    Raises:
        ValueError: If `n` or `gamma` is out of range, or if `n` is no pair. When traced, if `n` is
            longer than a lane, if the items have no such fields, or if the reward is not one real
            number.
        TypeError: If `n` has anything but ints, or if `gamma` is not a number. If `next_of` is not
            a str, or if `fields` is not a tuple of names.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"reward": jnp.zeros(()), "next_observation": jnp.zeros(())}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Uniform(first_only=True))
        >>> rows = {"reward": jnp.ones(3), "next_observation": jnp.array([1.0, 2.0, 3.0])}
        >>> state = fbuf.add(state, rows, terminated=jnp.array([False, False, True]))
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.NStep(n=2, gamma=0.5))
        >>> made = batch.data
        >>> float(made.reward[0]), float(made.next_observation[0]), float(made.discount[0])
        (1.5, 2.0, 0.25)
        >>> some = fbuf.sample(state, jax.random.key(0), 99, view=fbuf.NStep(n=(1, 3), gamma=0.5))
        >>> sorted(set(zip(some.data.steps.tolist(), some.data.discount.tolist())))
        [(1, 0.5), (2, 0.25), (3, 0.0)]

    References:
        Sutton, Learning to Predict by the Methods of Temporal Differences, Machine Learning 3,
        1988.
    """

    n: int | tuple[int, int]
    _: dataclasses.KW_ONLY
    gamma: float
    reward: str = "reward"
    next_observation: str = "next_observation"
    next_of: str | None = None
    fields: Fields = None

    def __post_init__(self) -> None:
        _check_steps(self.n)
        check.number("NStep", "gamma", self.gamma, 1)
        check.name_or_none("NStep", "next_of", self.next_of)
        check.names("NStep", "fields", self.fields)

    # A property where other classes have a value: it follows from the arguments.
    @property
    def is_random(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether n is drawn for each row."""
        return isinstance(self.n, tuple)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Request the rewards, and the observation after the last step."""
        most = self.n[1] if isinstance(self.n, tuple) else self.n
        reader.check_lane("n is", most)
        steps = following(reader, slots, most)
        wanted: dict[str, Wanted] = {
            "rewards": reader.leaves(
                steps.slots, [reader.number(self.reward, "reward", column=True)]
            )
        }
        same_episode = steps.same_episode
        if reader.mask is not None:
            same_episode &= reader.mask[:, None]
        if isinstance(self.n, tuple):
            assert key is not None
            number = jnp.arange(most, dtype=jnp.int32)[None]
            same_episode &= number < _drawn(reader, key, self.n, slots.shape[0])[:, None]
        count = jnp.maximum(jnp.sum(same_episode, axis=1, dtype=jnp.int32), 1)
        last = count[:, None] - 1
        last_slot = jnp.take_along_axis(steps.slots, last, axis=1)[:, 0]
        flags = jnp.take_along_axis(steps.flags, last, axis=1)[:, 0]
        known = None
        if self.next_of is None and reader.next_of is None:
            wanted["next"] = reader.field(last_slot, self.next_observation, "next_observation")
        else:
            wanted["next"], known = reader.next_observation(last_slot, flags, self.next_of, slots)
            meant = reader.meant(known)
            same_episode &= meant[:, None]
            count = jnp.where(meant, count, 1)
        wanted["rows"] = reader.rows(slots, self.fields)
        return Request(wanted, (same_episode, count, flags, known))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Sum up the rewards."""
        same_episode, count, flags, known = seen
        (reward,) = rows["rewards"]
        gamma = float(self.gamma)  # a NumPy number would make it float64 under x64
        factor = gamma ** jnp.arange(reward.shape[1], dtype=jnp.float32)
        # An invalid step may hold NaN, and 0 * nan is not 0.
        reward = reward.reshape(same_episode.shape).astype(jnp.float32)
        gained = jnp.where(same_episode, reward * factor[None], 0)
        # The sum of a masked draw lacks even its own step.
        nothing = ~same_episode[:, 0] | (flags & TERMINATED > 0)
        discount = jnp.where(nothing, 0, gamma ** count.astype(jnp.float32))
        data = NStepTransition(
            item=rows["rows"],
            reward=gained.sum(axis=1),
            next_observation=rows["next"],
            discount=discount,
            steps=count,
        )
        return Reading(data, flags, known)


def _drawn(reader: Reader, key: jax.Array, n: tuple[int, int], batch_size: int) -> jax.Array:
    """Draw n for each row: int32 `[B]`, from the fewest to the most, all equally likely."""
    fewest, most = n
    return fewest + random_bits.below(reader.bits(key, 2, batch_size), jnp.int32(most - fewest + 1))


def _check_steps(n: Any) -> None:
    """Refuse a value that is neither a number of steps nor a pair of such numbers."""
    if not isinstance(n, tuple | list):
        check.integer("NStep", "n", n, check.LONGEST)
        return
    pair: Any = n
    if isinstance(n, list) or len(pair) != 2:
        raise ValueError(
            f"fbuf.NStep: n must be an int, or a pair of the fewest and the most steps, such as "
            f"(1, 5), got {pair!r}"
        )
    fewest = check.integer("NStep", "n[0]", pair[0], check.LONGEST)
    check.integer("NStep", "n[1]", pair[1], check.LONGEST, smallest=fewest)
