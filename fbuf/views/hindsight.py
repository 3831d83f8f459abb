"""The hindsight view: an achievement of the agent becomes the goal of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits
from fbuf.storage import shown
from fbuf.storage.ids import ArrayT
from fbuf.storage.layout import Fields, Layout
from fbuf.storage.masks import select
from fbuf.storage.store import Item
from fbuf.views import goals
from fbuf.views.goals import GoalRows, Shares, Strategy
from fbuf.views.protocol import Reading, Request, View
from fbuf.views.reader import Reader
from fbuf.views.requests import Wanted


@pytree
class HindsightStep(Generic[Item, ArrayT]):
    """The data of `fbuf.Hindsight`.

    Attributes:
        item: The row, leaves `[B, ...]`. A relabelled row has a new goal, and the reward for that
            goal. With `copies`, the leaves of the goal and the reward are `[B, copies, ...]`.
        relabelled: bool `[B]`, or `[B, copies]`: which are relabelled. The others are as you added
            them.
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

    __repr__ = shown.batch_repr

    item: Item
    """The row, leaves `[B, ...]`."""
    relabelled: ArrayT
    """bool `[B]`, or `[B, copies]`: which are relabelled."""
    next_observation: Any = None
    """The observation after the row's step, as by `fbuf.Transition`."""


@dataclasses.dataclass(frozen=True)
class Hindsight(View[HindsightStep[Any]]):
    """Replace the goals of some drawn rows by what the agent achieved.

    Each draw is relabelled with probability `ratio`, independently of the others. Its new goal is
    the achievement of a row, and its reward is recomputed. The buffer stays as it is: the next draw
    of the row may get another goal, or keep its own.

    Goals come from the stored part of the row's episode, and never from across a removed row or a
    dummy. Only `"random"` takes them from other episodes, too. An episode may have any length.

    `Sample.terminated` stays as stored. If reaching the goal ends an episode, take termination from
    the new reward. A relabelled row may reach its new goal, or no goal any more. Where
    `Sample.mask` is False, no row is relabelled, and the next observation is the row's own.

    With `copies=k` each row gets `k` goals, each chosen as if the row were drawn again. The goal
    and the reward have an axis for the copies behind that of the batch. All other arrays have one
    entry a row: `ids`, `weight`, `mask`, `terminated`, and the other fields. So take the mean of
    the loss over the copies, and multiply by the weight. Give `fbuf.update_priority` one priority a
    row.

    Attributes:
        reward_fn: A pure JAX function `reward_fn(achieved, goal)` that returns the reward of one
            row. It gets the achievement of the row's step and the new goal, both unbatched, and
            returns one number. The number is cast to the dtype of the stored reward; a float is
            never cast to an integer. Define the function once: it is static under `jit`, and a new
            lambda at each call compiles again.
        strategy: The possible rows of the new goal: a word, or a dict of words and their shares,
            such as `{"future": 0.7, "random": 0.3}`. With `"future"` they are the drawn row and
            later ones of its episode, with `"episode"` all rows of it, and with `"final"` its last
            row. With `"current"` it is the drawn row, and with `"random"` all rows of the buffer
            that are not removed. All are equally likely, unless there is a `discount`. Shares are
            at least 0, and are divided by their sum; each is right to 2**-32. The dict is kept as
            pairs, so that the view is hashable.
        ratio: The probability of a draw to be relabelled, from 0 to 1. With 0.8 there are four new
            goals for each stored one.
        discount: For `"future"`: the goal is taken `nearest + n` steps later, with probability
            `(1 - discount) * discount ** n`, or at the last stored row of the episode if that comes
            before. So the last row has the probability of all steps behind it as well. The
            probability of any set of rows is right to 2**-28. A static number from 0 to 1 - 2**-26.
            None: all rows are equally likely.
        nearest: For `"future"`: the fewest steps from the drawn row to the goal, from 0 to 65,536.
            Where the episode has no such row, the goal is of its last row. With 0 the goal may be
            the achievement of the row's own step. Take 1 if `achieved` names what was there before
            the step, such as the observation.
        copies: The number of goals for each row, at least 1. None is one, without an axis.
        goal: The name of the goal among the item's fields (`"a.b"` for a field in a field). It may
            be a tree.
        achieved: The name of the field with the achievement of the row's step. It has the tree,
            shapes and dtypes of the goal.
        reward: The name of the reward. It must be one real number, of shape `[]` or `[1]`.
        next_of: As for `fbuf.Transition`. Only the goal of the item is relabelled. If an
            observation holds a copy of the goal, use the item's goal instead.
        fields: As for `fbuf.Item`: the fields of the row to gather. Name the goal and the reward
            if you want them.

    Cost: O(B L) reads of a flag. L is the longest distance in the batch from a drawn row to the end
    of its episode; with `"episode"` also to its first row. With `"current"` and `"random"` it is 0.
    One row is read for each draw, and one for each goal. `"random"` draws again where a row was
    removed: O(B) reads while a twentieth of the rows is left. With fewer it may read all N flags
    once, a byte each. Over a mesh, each shard reads a row for each goal of `"random"`, and an
    `all_reduce` brings the achievements to all devices.

    Raises:
        ValueError: If `strategy`, `ratio`, `discount`, `nearest` or `copies` is out of range, or if
            no strategy has a share. Also if there is a `discount` or `nearest` without `"future"`.
            When traced, if the items have no such fields, or if `goal` and `achieved` differ in
            tree, shapes or dtypes. When traced, if `reward_fn` does not return one number that the
            reward's dtype can hold.
        TypeError: If `reward_fn` cannot be called or hashed, or if a number is none. If `strategy`
            is neither a word nor a dict. If `next_of` is not a str, or if `fields` is not a tuple
            of names.

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

        Half of the goals near the row, half from anywhere, and two of them for each row:

        >>> shares = {"future": 0.5, "random": 0.5}
        >>> view = fbuf.Hindsight(reached, strategy=shares, discount=0.9, ratio=1.0, copies=2)
        >>> item = fbuf.sample(state, jax.random.key(0), 64, view=view).data.item
        >>> item["goal"].shape, item["reward"].shape, item["achieved_goal"].shape
        ((64, 2, 2), (64, 2), (64, 2))

    References:
        Andrychowicz et al., Hindsight Experience Replay, arXiv:1707.01495.
        Eysenbach et al., Contrastive Learning as Goal-Conditioned Reinforcement Learning,
        arXiv:2206.07568 (goals at geometric distances).
        Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, arXiv:2410.20092 (the
        mixture of the current, a later, and a random state).
    """

    reward_fn: Callable[[Any, Any], Any]
    _: dataclasses.KW_ONLY
    strategy: Strategy | Mapping[Strategy, float] | Shares = "future"
    ratio: float = 0.8
    discount: float | None = None
    nearest: int = 0
    copies: int | None = None
    goal: str = "goal"
    achieved: str = "achieved_goal"
    reward: str = "reward"
    next_of: str | None = None
    fields: Fields = None

    is_random = True

    def __post_init__(self) -> None:
        _check_reward_fn(self.reward_fn)
        object.__setattr__(self, "strategy", goals.checked(self.strategy))
        check.number("Hindsight", "ratio", self.ratio, 1)
        goals.check_distances(self._strategy, self.discount, self.nearest)
        if self.copies is not None:
            check.integer("Hindsight", "copies", self.copies)
        check.name_or_none("Hindsight", "next_of", self.next_of)
        check.names("Hindsight", "fields", self.fields)

    def leaves_of_any(self, layout: Layout) -> tuple[int | None, tuple[int, ...]] | None:
        """Return the leaves of the achievement, if goals may come from any row."""
        if all(word != "random" for word, _ in self._shares):
            return None
        return self.copies, tuple(self._leaves(layout)[1])

    def request(self, reader: Reader, slots: jax.Array, key: jax.Array | None) -> Request:
        """Choose the rows of the new goals."""
        assert key is not None
        self._check_fields(reader)
        _, achieved, _, _, own = self._leaves(reader.layout)
        rows = GoalRows(self._shares, self.discount, self.nearest, self.copies)
        whether, which = random_bits.split(key, 2)
        chance = random_bits.as_uniforms(rows.words(reader, whether, 1, slots)[0])
        goal_slots, of_any = rows.choose(reader, slots, which)
        wanted: dict[str, Wanted] = {
            "own": reader.leaves(slots, own),
            "chosen": reader.leaves(goal_slots, achieved),
        }
        flags, known = reader.flags(slots), None
        elsewhere = None
        if reader.ring.shards > 1 and self.leaves_of_any(reader.layout) is not None:
            elsewhere = of_any, reader.anywhere()
        if self.next_of is not None or reader.next_of is not None:
            wanted["next"], known = reader.next_observation(slots, flags, self.next_of)
        relabelled, meant = chance < self.ratio, reader.mask
        if known is not None:
            meant = reader.meant(known)
        if meant is not None:
            relabelled &= rows.each(meant)
        return Request(wanted, (relabelled, flags, known, elsewhere))

    def build(self, layout: Layout, rows: dict[str, Any], seen: Any) -> Reading:
        """Put in the new goals, and their rewards."""
        relabelled, flags, known, elsewhere = seen
        goal, achieved, tree, reward, numbers = self._leaves(layout)
        leaves = dict(zip(numbers, rows["own"], strict=True))
        mine, new = [leaves[leaf] for leaf in achieved], rows["chosen"]
        if elsewhere is not None:
            of_any, anywhere = elsewhere
            new = [select(of_any, there, here) for there, here in zip(anywhere, new, strict=True)]
        judged = self._judge(tree, mine, new, leaves[reward].dtype)
        judged = judged.reshape(*judged.shape, *layout.fields[reward].shape)

        for leaf, value in zip([*goal, reward], [*new, judged], strict=True):
            stored = leaves[leaf] if self.copies is None else leaves[leaf][:, None]
            leaves[leaf] = select(relabelled, value, stored)
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
        reader.number(self.reward, "reward", column=True)

    def _leaves(self, layout: Layout) -> tuple[list[int], list[int], Any, int, list[int]]:
        """Return the leaves of goal and achievement, their tree, the reward, and all to read."""
        goal, tree = jax.tree.flatten(layout.find("Hindsight", "goal", self.goal))
        achieved = jax.tree.leaves(layout.find("Hindsight", "achieved", self.achieved))
        reward: Any = layout.find("Hindsight", "reward", self.reward)
        item = jax.tree.leaves(layout.numbers("Hindsight", self.fields))
        return goal, achieved, tree, reward, sorted({*goal, *achieved, reward, *item})

    @property
    def _strategy(self) -> Strategy | Shares:
        assert not isinstance(self.strategy, Mapping)
        return self.strategy

    @property
    def _shares(self) -> Shares:
        return goals.shares_of(self._strategy)

    def _judge(
        self, tree: Any, achieved: list[jax.Array], goal: list[jax.Array], dtype: Any
    ) -> jax.Array:
        """Return the rewards of `[B]` achievements for their goals, in the dtype of stored rewards.

        With copies, goals and rewards are `[B, copies, ...]`.
        """
        pair = jax.tree.unflatten(tree, achieved), jax.tree.unflatten(tree, goal)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), pair[0])
        found: Any = jax.eval_shape(self.reward_fn, one, one)
        if not isinstance(found, jax.ShapeDtypeStruct) or found.shape != ():
            raise ValueError(
                "fbuf.Hindsight: reward_fn must return one number for one row, got "
                f"{found}; its arguments are {one} and a goal of the same form"
            )
        if _kind(found.dtype) > _kind(dtype):
            raise ValueError(
                f"fbuf.Hindsight: reward_fn returns {found.dtype}, but the stored reward is "
                f"{dtype}, which cannot hold it; cast it in reward_fn, or make the buffer with a "
                f"reward of dtype {found.dtype}"
            )
        judge = self.reward_fn
        if self.copies is not None:
            judge = jax.vmap(judge, in_axes=(None, 0))
        return jax.vmap(judge)(*pair).astype(dtype)


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
    """Return the kind of a dtype as a rank; a dtype holds numbers of its own and lower kinds."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating)
    return next((at for at, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), len(kinds))
