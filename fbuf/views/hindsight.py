"""The hindsight view: what the agent has reached anyway becomes the goal it had."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers import random_bits
from fbuf.views.protocol import Reading, View
from fbuf.views.reader import Fields, Reader, check_fields


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HindsightStep:
    """What `fbuf.Hindsight` makes of a row.

    Attributes:
        item: The row, leaves `[B, ...]`; where it is relabelled with another goal, and the reward
            for that one.
        relabelled: bool `[B]`; which rows are. The others are as they were added.
        next_observation: What the row's step led to, as by `fbuf.Transition`; None for a buffer
            made without `next_of`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> row = {"goal": jnp.int32(9), "achieved_goal": jnp.int32(4), "reward": 0.0}
        >>> state = fbuf.add(fbuf.init(row, capacity=8), row)
        >>> view = fbuf.Hindsight(lambda achieved, goal: achieved == goal, ratio=1.0)
        >>> data = fbuf.sample(state, jax.random.key(0), 1, view=view).data
        >>> int(data.item["goal"][0]), float(data.item["reward"][0]), bool(data.relabelled[0])
        (4, 1.0, True)
    """

    item: Any
    relabelled: jax.Array
    next_observation: Any = None


@dataclasses.dataclass(frozen=True)
class Hindsight(View):
    """Replace the goals of some of the drawn rows by what was achieved later in the episode.

    Each draw is relabelled with probability `ratio`, independently of the others. Its new goal is
    what a row of the same episode has achieved, and its reward is computed anew; nothing is written
    to the buffer, so the next draw of the row may get another goal, or keep its own.

    An episode counts as far as it is there: to its end or the newest row, back to its first row or
    the oldest one, and not across a row that was removed or a dummy. It may be of any length.

    `Sample.terminated` stays as stored. If reaching the goal ends an episode, a relabelled row
    that reaches its new goal ends one, and a row that reached its old one may not: take it from the
    reward instead.

    Attributes:
        reward_fn: `reward_fn(achieved, goal)` is the reward for one row: it gets what the row's
            step achieved and the new goal, both unbatched, and returns one number, which becomes
            the stored reward's dtype (a bool may, and an integer, but no float becomes an
            integer). It must be a pure JAX function. It is part of the view, which is static under
            jit: define it once, for a lambda written anew at each call compiles anew.
        strategy: Which rows the new goal may be from, all of them alike: `"future"`, the drawn row
            and those after it; `"episode"`, all of the episode; `"final"`, only the last one.
        ratio: How likely a draw is to be relabelled, from 0 to 1. 0.8 is four new goals for one
            stored.
        goal: The name of the goal among the item's fields, `"a.b"` for a field in a field. It may
            be a tree.
        achieved: The name of the field with what the row's own step achieved, that is, after it.
            Of the goal's tree, shapes and dtypes.
        reward: The name of the reward. It must be one real number.
        next_of: As for `fbuf.Transition`. Only the goal of the item is relabelled: where an
            observation holds a copy of it, take the one of the item.
        fields: As for `fbuf.Item`: which fields of the row to gather, the goal and the reward
            among them if they are wanted.

    Cost: O(B L) reads of a flag, where L is the number of rows from a drawn row to the end of its
    episode, the largest in the batch; with `"episode"` also to its first row. Two rows are read for
    each draw.

    Raises:
        ValueError: If `strategy` or `ratio` is none of those; when traced, if the items have no
            such fields, `goal` and `achieved` are not alike, or `reward_fn` returns something else
            than one number that the reward can hold.
        TypeError: If `reward_fn` cannot be called or hashed, `ratio` is no number, or `fields` no
            tuple of names.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> def reached(achieved, goal):
        ...     return jnp.where(jnp.all(achieved == goal), 0.0, -1.0)
        >>> item = {"goal": jnp.zeros(2), "achieved_goal": jnp.zeros(2), "reward": 0.0}
        >>> state = fbuf.init(item, capacity=100)
        >>> places = jnp.array([[0.0, 1.0], [1.0, 1.0], [1.0, 2.0]])
        >>> rows = {"goal": jnp.full((3, 2), 9.0), "achieved_goal": places, "reward": -jnp.ones(3)}
        >>> state = fbuf.add(state, rows, truncated=jnp.array([False, False, True]))
        >>> view = fbuf.Hindsight(reached, strategy="final", ratio=1.0)
        >>> item = fbuf.sample(state, jax.random.key(0), 64, view=view).data.item
        >>> item["goal"][0], sorted(set(item["reward"].tolist()))
        (Array([1., 2.], dtype=float32), [-1.0, 0.0])

    References:
        Andrychowicz et al., Hindsight Experience Replay, arXiv:1707.01495.
    """

    reward_fn: Callable[[Any, Any], Any]
    _: dataclasses.KW_ONLY
    strategy: Literal["future", "final", "episode"] = "future"
    ratio: float = 0.8
    goal: str = "goal"
    achieved: str = "achieved_goal"
    reward: str = "reward"
    next_of: str | None = None
    fields: Fields = None

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_reward_fn(self.reward_fn)
        check.choice("Hindsight", "strategy", self.strategy, ("future", "final", "episode"))
        check.number("Hindsight", "ratio", self.ratio, 1)
        check_fields("Hindsight", self.fields)

    def read(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Reading:
        """Choose goals, and judge what was achieved by them."""
        assert key is not None
        goal, achieved = self._goals(reader)
        reward = reader.number(self.reward, "reward")
        goals, tree = jax.tree.flatten(goal)
        reached = jax.tree.leaves(achieved)

        whether, which = jax.random.split(key)
        relabelled = random_bits.uniforms(whether, slots.shape) < self.ratio
        own = reader.leaves(slots, [*goals, *reached, reward])
        old, mine, stored = own[: len(goals)], own[len(goals) : -1], own[-1]
        new = reader.leaves(self._choose(reader, slots, which), reached)
        judged = self._judge(tree, mine, new, reader.storage.fields[reward].dtype)

        def choose(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(relabelled.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        instead = dict(zip(goals, map(choose, new, old), strict=True))
        instead[reward] = choose(judged, stored)
        item = reader.rows(slots, self.fields, instead)
        flags, next_observation, known = reader.flags(slots), None, None
        if self.next_of is not None or reader.next_of is not None:
            next_observation, known = reader.next_observation(slots, flags, self.next_of)
        return Reading(HindsightStep(item, relabelled, next_observation), flags, known)

    def _goals(self, reader: Reader) -> tuple[Any, Any]:
        """The fields `goal` and `achieved`, as trees of the numbers of their leaves."""
        goal = reader.numbers(self.goal, "goal")
        achieved = reader.numbers(self.achieved, "achieved")
        wanted, given = reader.specs(goal), reader.specs(achieved)
        if jax.tree.flatten(wanted) != jax.tree.flatten(given):
            raise ValueError(
                f"fbuf.Hindsight: achieved is {self.achieved!r}, which must be like the goal "
                f"{self.goal!r}, or it could not take its place: expected {wanted}, got {given}. "
                "Store what was achieved in the form of a goal"
            )
        return goal, achieved

    def _choose(self, reader: Reader, slots: jax.Array, key: jax.Array) -> jax.Array:
        """The slots that the new goals are from, int32 `[B]`."""
        steps = reader.steps_to_end(slots)
        if self.strategy != "final":
            before: jax.Array | int = 0
            if self.strategy == "episode":
                before = reader.steps_since_start(slots)
            steps = random_bits.ranks(key, slots.shape[0], before + steps + 1) - before
        return reader.ring.later(slots, steps)

    def _judge(
        self, tree: Any, achieved: list[jax.Array], goal: list[jax.Array], dtype: Any
    ) -> jax.Array:
        """The rewards for what was achieved by `[B]` rows, in the dtype of those stored."""
        pair = jax.tree.unflatten(tree, achieved), jax.tree.unflatten(tree, goal)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), pair)
        found: Any = jax.eval_shape(self.reward_fn, *one)
        if not isinstance(found, jax.ShapeDtypeStruct) or found.shape != ():
            raise ValueError(
                "fbuf.Hindsight: reward_fn must return one number for one row, got "
                f"{found}; it is given {one[0]} and a goal like it"
            )
        if _kind(found.dtype) > _kind(dtype):
            raise ValueError(
                f"fbuf.Hindsight: reward_fn returns {found.dtype}, which the stored reward, "
                f"{dtype}, cannot hold; convert it in reward_fn, or store a reward that can"
            )
        return jax.vmap(self.reward_fn)(*pair).astype(dtype)


def _check_reward_fn(reward_fn: Any) -> None:
    """Refuse what is no function, or cannot be part of a static argument."""
    if not callable(reward_fn):
        raise TypeError(
            f"fbuf.Hindsight: reward_fn must be a function (achieved, goal) -> reward, got "
            f"{reward_fn!r}"
        )
    try:
        hash(reward_fn)
    except TypeError:
        raise TypeError(
            f"fbuf.Hindsight: reward_fn must be hashable, got {reward_fn!r}; wrap it in a function"
        ) from None


def _kind(dtype: Any) -> int:
    """A dtype holds what is of its kind, or of a lower one."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return next((at for at, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))
