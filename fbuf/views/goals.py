"""The choice of rows for new goals: the strategies and their shares."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers.chance import random_bits
from fbuf.samplers.chance.geometric import LARGEST_DISCOUNT, geometric, thresholds
from fbuf.views.any_row import any_rows
from fbuf.views.reader import Reader

Strategy = Literal["future", "final", "episode", "current", "random"]
"""The strategies: names for the possible rows of a goal."""

Shares = tuple[tuple[Strategy, float], ...]
"""Some strategies, and the share of each."""


def checked(given: Any) -> Strategy | Shares:
    """Return one strategy, or the shares of several as pairs; refuse any other value."""
    words: tuple[Strategy, ...] = get_args(Strategy)
    if not isinstance(given, Mapping | tuple):
        check.choice("Hindsight", "strategy", given, words)
        return given
    pairs: Any = tuple(given.items() if isinstance(given, Mapping) else given)
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            "fbuf.Hindsight: strategy must be one word, or a dict of words and their shares, such "
            f'as {{"future": 0.7, "random": 0.3}}, got {given!r}'
        )
    for word, share in pairs:
        check.choice("Hindsight", "each strategy", word, words)
        check.number("Hindsight", f"strategy[{word!r}]", share)
    shares: dict[Strategy, float] = dict(pairs)
    total = sum(shares.values())
    if not total:
        raise ValueError("fbuf.Hindsight: all shares of strategy are 0; give at least one of them")
    for word, share in shares.items():
        if 0 < share / total < 2.0**-32:
            raise ValueError(
                f"fbuf.Hindsight: strategy[{word!r}] is {share!r}, of {total!r} in all: no draw "
                "would ever take it; give 0, or a larger share"
            )
    return tuple((word, shares[word]) for word in words if word in shares)


def check_distances(strategy: Strategy | Shares, discount: Any, nearest: Any) -> None:
    """Check the options of "future", and refuse options without that strategy."""
    if discount is not None:
        check.number("Hindsight", "discount", discount, 1)
        if discount > LARGEST_DISCOUNT:
            raise ValueError(
                f"fbuf.Hindsight: discount must be at most 1 - 2**-26, got {discount!r}; for the "
                'last row of the episode use strategy="final", for later rows that are equally '
                "likely leave discount out"
            )
    check.integer("Hindsight", "nearest", nearest, check.LONGEST, 0)
    words = [word for word, _ in strategy] if isinstance(strategy, tuple) else [strategy]
    if (discount is not None or nearest) and "future" not in words:
        name, value = ("nearest", nearest) if discount is None else ("discount", discount)
        raise ValueError(
            f'fbuf.Hindsight: {name}={value!r} is for strategy "future", got {strategy!r}; leave '
            f"{name} out"
        )


def shares_of(strategy: Strategy | Shares) -> Shares:
    """Return the strategies with a share above 0, and their shares."""
    if isinstance(strategy, tuple):
        return tuple((word, share) for word, share in strategy if share)
    return ((strategy, 1.0),)


@dataclasses.dataclass(frozen=True)
class GoalRows:
    """The choice of rows for new goals.

    Attributes:
        shares: The strategies that have a share, at least one.
        discount: As of `fbuf.Hindsight`.
        nearest: As of `fbuf.Hindsight`.
        copies: The number of choices for each row; None is one, without an axis.
    """

    shares: Shares
    discount: float | None
    nearest: int
    copies: int | None

    def choose(
        self, reader: Reader, slots: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Choose the rows of the goals of rows at `[B]` slots.

        Returns:
            int32 slots, and bool: whether the goal is of strategy "random". `[B]` or `[B, copies]`
            each. Over several shards such a row may be in another one, so its slot is of no use.
        """
        which, inside, anywhere = (key, key, key)
        if len(self.shares) > 1:
            which, inside, anywhere = random_bits.split(key, 3)
        steps = self._steps(reader, slots, inside)
        words: list[Strategy] = [word for word, _ in self.shares]
        ways = [
            self._any_rows(reader, slots, anywhere)
            if word == "random"
            else reader.ring.later(self.each(slots), steps[word])
            for word in words
        ]
        chosen, of_any = ways[0], jnp.bool_(words[0] == "random")
        if len(ways) > 1:
            number = self._number(self.words(reader, which, 1, slots)[0])
            for at, way in enumerate(ways[1:], start=1):
                chosen = jnp.where(number == at, way, chosen)
                of_any = jnp.where(number == at, words[at] == "random", of_any)
        shape = self._shape(slots)
        return jnp.broadcast_to(chosen, shape), jnp.broadcast_to(of_any, shape)

    def words(self, reader: Reader, key: jax.Array, words: int, slots: jax.Array) -> jax.Array:
        """Return random bits for each choice: uint32 `[words, B]` or `[words, B, copies]`."""
        made = reader.bits(key, words * (self.copies or 1), slots.shape[0])
        if self.copies is None:
            return made
        return jnp.swapaxes(made.reshape(words, self.copies, -1), 1, 2)

    def each(self, rows: jax.Array) -> jax.Array:
        """Return `[B, ...]` rows with an axis for the copies, if there is one: `[B, 1, ...]`."""
        return rows if self.copies is None else rows[:, None]

    def _shape(self, slots: jax.Array) -> tuple[int, ...]:
        return slots.shape if self.copies is None else (*slots.shape, self.copies)

    def _number(self, word: jax.Array) -> jax.Array:
        """Return the number of a strategy for each random word; shares are exact to 2**-32."""
        ends = list(itertools.accumulate(share for _, share in self.shares))
        number = jnp.zeros(word.shape, jnp.int32)
        for end in ends[:-1]:
            limit = jnp.uint32(round(end / ends[-1] * 2**32))
            number += (word >= limit).astype(jnp.int32)
        return number

    def _steps(self, reader: Reader, slots: jax.Array, key: jax.Array) -> dict[Strategy, jax.Array]:
        """Choose the steps from a row to the goal of each strategy, within the episode."""
        names = {word for word, _ in self.shares}
        steps: dict[Strategy, jax.Array] = {"current": jnp.zeros_like(self.each(slots))}
        if names <= {"current", "random"}:
            return steps
        steps["final"] = end = self.each(reader.steps_to_end(slots))
        if names & {"future", "episode"}:
            digits = 2 if self.discount is None else len(thresholds(self.discount))
            # A choice is made by one strategy alone: all may use the same bits.
            words = self.words(reader, key, max(digits, 2), slots)
            if "future" in names:
                steps["future"] = self._later(words, end)
            if "episode" in names:
                before = self.each(reader.steps_since_start(slots))
                steps["episode"] = random_bits.below(words[:2], before + end + 1) - before
        return steps

    def _later(self, words: jax.Array, end: jax.Array) -> jax.Array:
        """Choose a number of steps, at most those to the end of the episode."""
        least = jnp.minimum(self.nearest, end)
        reach = end - least
        if self.discount is None:
            return least + random_bits.below(words[:2], reach + 1)
        return least + jnp.minimum(geometric(words, self.discount), reach)

    def _any_rows(self, reader: Reader, slots: jax.Array, key: jax.Array) -> jax.Array:
        """Choose any rows of the buffer; over several shards, the drawn rows are placeholders."""
        if reader.ring.shards > 1:
            return self.each(slots)

        def words(turn: jax.Array | int) -> jax.Array:
            return self.words(reader, random_bits.fold_in(key, turn), 2, slots)

        return reader.record(any_rows(reader.ring, words))
