"""The hindsight view: a later achievement of the agent becomes the goal of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Literal

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers import random_bits
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.storage.store import Item
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HindsightStep(Generic[Item, ArrayT]):
    """The data of `fbuf.Hindsight`.

    Attributes:
        item: The row, leaves `[B, ...]`. A relabelled row has a new goal, and the reward for that
            goal.
        relabelled: bool `[B]`: which rows are relabelled. The others are as you added them.
        next_observation: The observation after the row's step, as by `fbuf.Transition`; None for a
            buffer made without `next_of`.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> row = {"goal": jnp.int32(9), "achieved_goal": jnp.int32(4), "reward": 0.0}
        >>> state = fbuf.add(fbuf.init(row, capacity=8), row)
        >>> view = fbuf.Hindsight(lambda achieved, goal: achieved == goal, ratio=1.0)
        >>> data = fbuf.sample(state, jax.random.key(0), 1, view=view).data
        >>> int(data.item["goal"][0]), float(data.item["reward"][0]), bool(data.relabelled[0])
        (4, 1.0, True)
    """

    item: Item
    relabelled: ArrayT
    next_observation: Any = None


@dataclasses.dataclass(frozen=True)
class Hindsight(View[HindsightStep[Any]]):
    """Replace the goals of some drawn rows by later achievements in the same episode.

    Each draw is relabelled with probability `ratio`, independently of the others. Its new goal is
    the achievement of a row of the same episode, and its reward is computed anew. The buffer stays
    as it is: the next draw of the row may get another goal, or keep its own.

    Goals come from the stored part of the episode, and never from across a removed row or a dummy.
    An episode may have any length.

    `Sample.terminated` stays as stored. If reaching the goal ends an episode, take termination from
    the new reward. A relabelled row may reach its new goal, or no goal any more.

    Attributes:
        reward_fn: A pure JAX function `reward_fn(achieved, goal)` that returns the reward of one
            row. It gets the achievement of the row's step and the new goal, both unbatched, and
            returns one number. The number is cast to the dtype of the stored reward; a float is
            never cast to an integer. Define the function once: it is static under `jit`, and a
            lambda that is written anew at each call compiles anew.
        strategy: The rows of the episode that the new goal may come from, all equally likely. It
            is one of `"future"` (the drawn row and later ones), `"episode"` (all rows) and
            `"final"` (the last row).
        ratio: The probability of a draw to be relabelled, from 0 to 1. With 0.8 there are four new
            goals for each stored one.
        goal: The name of the goal among the item's fields (`"a.b"` for a field in a field). It may
            be a tree.
        achieved: The name of the field with the achievement of the row's step. It has the tree,
            shapes and dtypes of the goal.
        reward: The name of the reward. It must be one real number.
        next_of: As for `fbuf.Transition`. Only the goal of the item is relabelled: if an
            observation holds a copy of the goal, use that of the item instead.
        fields: As for `fbuf.Item`: the fields of the row to gather. Name the goal and the reward
            if you want them.

    Cost: O(B L) reads of a flag. L is the longest way in the batch from a drawn row to the end of
    its episode; with `"episode"` also to its first row. Two rows are read for each draw.

    Raises:
        ValueError: If `strategy` or `ratio` is out of range. When traced, if the items have no such
            fields, or if `goal` and `achieved` differ in tree, shapes or dtypes. When traced, if
            `reward_fn` does not return one number that the reward's dtype can hold.
        TypeError: If `reward_fn` cannot be called or hashed, or if `ratio` is not a number. If
            `next_of` is not a str, or if `fields` is not a tuple of names.

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

    is_random = True

    def __post_init__(self) -> None:
        _check_reward_fn(self.reward_fn)
        check.choice("Hindsight", "strategy", self.strategy, ("future", "final", "episode"))
        check.number("Hindsight", "ratio", self.ratio, 1)
        check.name_or_none("Hindsight", "next_of", self.next_of)
        check.names("Hindsight", "fields", self.fields)

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Choose the rows of the new goals."""
        assert key is not None
        self._check_fields(reader)
        _, achieved, _, _, own = self._leaves(reader.layout)
        whether, which = random_bits.split(key, 2)
        chance = random_bits.as_uniforms(reader.bits(whether, 1, slots.shape[0])[0])
        wanted: dict[str, Wanted] = {
            "own": reader.leaves(slots, own),
            "chosen": reader.leaves(self._choose(reader, slots, which), achieved),
        }
        flags, known = reader.flags(slots), None
        if self.next_of is not None or reader.next_of is not None:
            wanted["next"], known = reader.next_observation(slots, flags, self.next_of)
        return Request(wanted, (chance < self.ratio, flags, known))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put in the new goals, and their rewards."""
        relabelled, flags, known = seen
        goal, achieved, tree, reward, numbers = self._leaves(layout)
        leaves = dict(zip(numbers, rows["own"], strict=True))
        mine, new = [leaves[leaf] for leaf in achieved], rows["chosen"]
        judged = self._judge(tree, mine, new, leaves[reward].dtype)

        for leaf, value in zip([*goal, reward], [*new, judged], strict=True):
            leaves[leaf] = select(relabelled, value, leaves[leaf])
        item = jax.tree.map(leaves.get, layout.numbers("Hindsight", self.fields))
        return Reading(HindsightStep(item, relabelled, rows.get("next")), flags, known)

    def _check_fields(self, reader: Reader) -> None:
        """Refuse goals and achievements of different forms, and a reward that is no number."""
        goal = reader.specs(reader.numbers(self.goal, "goal"))
        achieved = reader.specs(reader.numbers(self.achieved, "achieved"))
        if jax.tree.flatten(goal) != jax.tree.flatten(achieved):
            raise ValueError(
                f"fbuf.Hindsight: achieved={self.achieved!r} must have the tree, shapes and dtypes "
                f"of goal={self.goal!r}, {goal}, got {achieved}; store what was achieved in the "
                "form of a goal"
            )
        reader.number(self.reward, "reward")

    def _leaves(self, layout: Layout) -> tuple[list[int], list[int], Any, int, list[int]]:
        """Return the leaves of goal and achievement, their tree, the reward, and all to read."""
        goal, tree = jax.tree.flatten(layout.find("Hindsight", "goal", self.goal))
        achieved = jax.tree.leaves(layout.find("Hindsight", "achieved", self.achieved))
        reward: Any = layout.find("Hindsight", "reward", self.reward)
        item = jax.tree.leaves(layout.numbers("Hindsight", self.fields))
        return goal, achieved, tree, reward, sorted({*goal, *achieved, reward, *item})

    def _choose(self, reader: Reader, slots: jax.Array, key: jax.Array) -> jax.Array:
        """Choose the slots of the new goals, int32 `[B]`."""
        steps = reader.steps_to_end(slots)
        if self.strategy != "final":
            before: jax.Array | int = 0
            if self.strategy == "episode":
                before = reader.steps_since_start(slots)
            bits = reader.bits(key, 2, slots.shape[0])
            steps = random_bits.below(bits, before + steps + 1) - before
        return reader.ring.later(slots, steps)

    def _judge(
        self, tree: Any, achieved: list[jax.Array], goal: list[jax.Array], dtype: Any
    ) -> jax.Array:
        """Return the rewards of `[B]` achievements, in the dtype of the stored rewards."""
        pair = jax.tree.unflatten(tree, achieved), jax.tree.unflatten(tree, goal)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), pair)
        found: Any = jax.eval_shape(self.reward_fn, *one)
        if not isinstance(found, jax.ShapeDtypeStruct) or found.shape != ():
            raise ValueError(
                "fbuf.Hindsight: reward_fn must return one number for one row, got "
                f"{found}; its arguments are {one[0]} and a goal of the same form"
            )
        if _kind(found.dtype) > _kind(dtype):
            raise ValueError(
                f"fbuf.Hindsight: reward_fn returns {found.dtype}, but the stored reward is "
                f"{dtype}, which cannot hold it; cast it in reward_fn, or make the buffer with a "
                f"reward of dtype {found.dtype}"
            )
        return jax.vmap(self.reward_fn)(*pair).astype(dtype)


def _check_reward_fn(reward_fn: Any) -> None:
    """Refuse an object that is no function, or that cannot be hashed."""
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
    """Return the kind of a dtype, which holds numbers of its kind and of lower ones."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return next((at for at, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))
