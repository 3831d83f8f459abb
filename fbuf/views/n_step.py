"""The n-step view: the discounted rewards of several steps, and what to bootstrap from."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _check, _storage
from fbuf._ring import TERMINATED
from fbuf._state import State
from fbuf.views import _fields, _reward
from fbuf.views._protocol import Reading
from fbuf.views._steps import check_lane, following


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NStepTransition:
    """What `fbuf.NStep` makes of a row. The target is `reward + discount * value(next)`.

    Attributes:
        item: The row itself, as it was added; leaves `[B, ...]`.
        reward: float32 `[B]`; `r[0] + gamma * r[1] + ... + gamma**(k-1) * r[k-1]`.
        next: What the last of the k rows led to; leaves `[B, ...]`.
        discount: float32 `[B]`; `gamma**k`, or 0 if the last of them terminated the episode.
        steps: int32 `[B]`; k, how many steps there were: n, or fewer at the end of an episode or
            at the newest row.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> rows = {"reward": jnp.ones(1), "next_observation": jnp.ones(1)}
        >>> state = fbuf.init(jax.tree.map(lambda x: x[0], rows), capacity=8)
        >>> view = fbuf.NStep(n=3, gamma=0.5)
        >>> batch = fbuf.sample(fbuf.add(state, rows), jax.random.key(0), 1, view=view)
        >>> int(batch.data.steps[0]), float(batch.data.discount[0])
        (1, 0.5)
    """

    item: Any
    reward: jax.Array
    next: Any
    discount: jax.Array
    steps: jax.Array


@dataclasses.dataclass(frozen=True)
class NStep:
    """Sum up rewards over the n steps from each drawn row, as far as its episode goes.

    The sum stops behind a row that is terminated or truncated, at the newest row, and before one
    that was removed; `discount` is by the steps that there were. To draw only rows from which all
    n steps are there use a sampler with `window=n`. `Sample.terminated` and `.truncated` are those
    of the last row summed up.

    Attributes:
        n: How many steps, at least 1.
        gamma: The discount of a step, from 0 to 1.
        reward: The name of the reward among the item's fields, `"a.b"` for a field in a field. It
            must be one number.
        next_observation: The name of the observation that a row's step led to. It is read from
            the last row, and so is right at the end of an episode of either kind.
        next_of: For a buffer made with `next_of`, that name: then what the last row led to is read
            as by `fbuf.Transition`, and `next_observation` means nothing.
        fields: As for `fbuf.Item`: which fields of the row itself to gather.

    Cost: O(B n) reads.

    Raises:
        ValueError: If `n` or `gamma` is out of range; when traced, if `n` is more than a lane has
            room for, the items have no such fields, or the reward is not one real number.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> item = {"reward": jnp.zeros(()), "next_observation": jnp.zeros(())}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Uniform(starts="first"))
        >>> rows = {"reward": jnp.ones(3), "next_observation": jnp.array([1.0, 2.0, 3.0])}
        >>> state = fbuf.add(state, rows, terminated=jnp.array([False, False, True]))
        >>> batch = fbuf.sample(state, jax.random.key(0), 1, view=fbuf.NStep(n=2, gamma=0.5))
        >>> float(batch.data.reward[0]), float(batch.data.next[0]), float(batch.data.discount[0])
        (1.5, 2.0, 0.25)

    References:
        Sutton, Learning to Predict by the Methods of Temporal Differences, Machine Learning 3,
        1988.
    """

    n: int
    gamma: float
    reward: str = "reward"
    next_observation: str = "next_observation"
    next_of: str | None = None
    fields: _fields.Fields = None

    def __post_init__(self) -> None:
        _check.positive_int("NStep", "n", self.n, 2**16)
        _fields.check("NStep", self.fields)
        _reward.check_gamma("NStep", self.gamma)

    def read(self, state: State[Any], slots: jax.Array, key: jax.Array) -> Reading:
        """Sum up the rewards, and read what the last step led to."""
        check_lane("NStep", "n is", self.n, state.ring)
        steps = following(state.ring, slots, self.n)
        leaf = _reward.leaf("NStep", state.storage, self.reward)
        reward = _storage.read_leaves(state.storage, steps.slots, [leaf])[0]
        factor = self.gamma ** jnp.arange(steps.slots.shape[1], dtype=jnp.float32)
        # Where there is no step there may be no number either: 0 * nan would not be 0.
        gained = jnp.where(steps.same, reward.astype(jnp.float32) * factor, 0)
        count = jnp.maximum(jnp.sum(steps.same, axis=1, dtype=jnp.int32), 1)
        last = count[:, None] - 1
        last_slot = jnp.take_along_axis(steps.slots, last, axis=1)[:, 0]
        flags = jnp.take_along_axis(steps.flags, last, axis=1)[:, 0]
        known = None
        if self.next_of is None:
            led_to = _fields.read(
                "NStep", "next_observation", state.storage, last_slot, self.next_observation
            )
        else:
            led_to, known = _fields.read_next("NStep", state, last_slot, flags, self.next_of)
        discount = jnp.where(flags & TERMINATED > 0, 0, self.gamma ** count.astype(jnp.float32))
        data = NStepTransition(
            item=_fields.rows("NStep", state.storage, slots, self.fields),
            reward=gained.sum(axis=1),
            next=led_to,
            discount=discount,
            steps=count,
        )
        return Reading(data, flags, known=known)
