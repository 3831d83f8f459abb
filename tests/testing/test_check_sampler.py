"""The check of samplers: those of fbuf and of users pass it, and each kind of mistake is found."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.own import Hot, Newest, Tempered

import fbuf
from fbuf import testing
from fbuf.samplers import Draw, Sampler, random_bits
from fbuf.testing import frequencies
from fbuf.testing.case import SHAPES

EXACT = {"alpha": 1.0, "eps": 0.0}
QUICK = {"shapes": [(None, 12)], "seeds": [0, 1], "in_place": False}
"""One shape alone: each has programs of its own."""


def evenly(slots):
    return dict.fromkeys(slots, 1 / max(len(slots), 1))


def in_proportion(values):
    total = sum(values.values())
    return {slot: value / total for slot, value in values.items() if value > 0}


def uniform(oracle):
    return evenly(oracle.stored())


def windows(oracle):
    return evenly([slot for slot in oracle.stored() if len(oracle.ahead(slot, 3)) == 3])


def by_priority(oracle):
    return in_proportion({slot: oracle.at(slot).priority for slot in oracle.stored()})


def largest(oracle):
    return max((oracle.at(slot).priority for slot in oracle.stored()), default=0) or 1.0


def by_group(oracle):
    """The default rows have three groups, by the field `action`."""
    groups = [[s for s in oracle.stored() if oracle.at(s).number % 3 == g] for g in range(3)]
    groups = [group for group in groups if group]
    return {slot: 1 / len(groups) / len(group) for group in groups for slot in group}


def newest(oracle):
    return evenly([slot for slot in oracle.stored() if oracle.age(slot) < 2])


def hot(oracle):
    """Half of the draws are of any slot, and are masked where the row was removed."""
    filled, stored = len(oracle.there(0)), oracle.stored()
    warm = [slot for slot in stored if (oracle.at(slot).priority or 0) > 1]
    share = 0.5 if warm else 0.0
    law = dict.fromkeys(stored, (1 - share) / max(filled, 1))
    return {slot: p + (share / len(warm) if slot in warm else 0) for slot, p in law.items()}


CASES = {
    "windows": (fbuf.Uniform(window=3), {"law": windows}),
    "priorities": (fbuf.Prioritized(**EXACT), {"law": by_priority, "new_priority": largest}),
    "uniform": (fbuf.Uniform(), {"law": uniform}),
    "stratified": (fbuf.Prioritized(draws="stratified"), {}),
    "epochs": (fbuf.Shuffled(), {"law": uniform}),
    "mixture": (fbuf.Mixture(0.5, prioritized=0.5, recent=0.0), {}),
    "groups": (fbuf.Grouped("action", 3), {"law": by_group}),
    "fresh": (fbuf.FreshFirst(fbuf.Prioritized()), {}),
    "limited": (fbuf.Limited(max_uses=3), {}),
    "hot": (Hot(), {"law": hot, "shapes": [(None, 12)]}),
    "newest": (Newest(steps=2), {"law": newest}),
    "tempered": (Tempered(fbuf.Prioritized()), {"in_place": False}),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CASES)
def test_samplers_of_fbuf_and_of_users(name):
    sampler, options = CASES[name]
    if number := list(CASES).index(name):  # the first one has all shapes
        options = {"shapes": [SHAPES[number % 3]], "seeds": [0, 1], **options}
    testing.check_sampler(sampler, **options)


@pytest.mark.parametrize("sampler", [fbuf.Fifo(), fbuf.Reservoir()])
def test_samplers_that_the_check_is_not_for(sampler):
    with pytest.raises(ValueError, match="which this check is not for"):
        testing.check_sampler(sampler)


@dataclasses.dataclass(frozen=True)
class Weighted(Sampler):
    """Draw in proportion to the last priority; it reads every row. Subclasses make mistakes."""

    keeps_priorities: ClassVar[bool] = True

    def init(self, ring):
        return jnp.zeros(ring.capacity)

    def add(self, index, ring, span):
        new = jnp.ones(span.slots.shape) if span.priority is None else span.priority
        new = jnp.where(span.drawable, new, 0)
        return index.at[span.slots].set(new, mode="drop"), jnp.zeros(span.slots.shape, jnp.uint32)

    def take_over(self, index, ring, slots, origin):
        old = origin.index[jnp.minimum(origin.slots, origin.index.size - 1)]
        return index.at[slots].set(old, mode="drop"), jnp.zeros(slots.shape, jnp.uint32)

    def update_priority(self, index, ring, slots, given):
        slots = jnp.where(fbuf.samplers.last_of_each(slots), slots, ring.capacity)
        changed = index.at[slots].set(given.priority, mode="drop")
        return changed, jnp.zeros(slots.shape, jnp.uint32)

    def remove(self, index, ring, slots):
        return index.at[slots].set(0, mode="drop")

    def can_sample(self, index, ring):
        return self.total(index, ring) > 0

    def draw(self, index, ring, ask):
        total, sums = self.total(index, ring), jnp.cumsum(self.weights(index, ring))
        targets = random_bits.uniforms(ask.key, (ask.batch_size,)) * total
        slots = (sums[None] <= targets[:, None]).sum(1, dtype=jnp.int32)
        slots = jnp.minimum(slots, ring.capacity - 1)
        mask = jnp.broadcast_to(total > 0, slots.shape)
        likely = jnp.where(mask, self.probability(index, ring, slots), 0)
        one = mask.astype(jnp.float32)
        return Draw(slots, likely, one, jnp.zeros_like(one), mask)

    def probability(self, index, ring, slots):
        return self.weights(index, ring)[slots] / jnp.maximum(self.total(index, ring), 1e-9)

    def weights(self, index, ring):
        """Return what each slot weighs: nothing behind the last row."""
        return jnp.where(ring.holds(jnp.arange(ring.capacity, dtype=jnp.int32)), index, 0)

    def total(self, index, ring):
        return self.weights(index, ring).sum()


class Skewed(Weighted):
    """The first rows come more often than they should."""

    def draw(self, index, ring, ask):
        twice = super().draw(index, ring, ask._replace(batch_size=2 * ask.batch_size))
        one, other = (jax.tree.map(lambda x, n=n: x[n::2], twice) for n in (0, 1))
        return jax.tree.map(lambda x, y: jnp.where(one.slots < other.slots, x, y), one, other)


class Misjudged(Weighted):
    """Probabilities are those of other draws."""

    def probability(self, index, ring, slots):
        return jnp.full(slots.shape, 0.01)


class Unsure(Weighted):
    """A batch has other probabilities than its rows."""

    def draw(self, index, ring, ask):
        drawn = super().draw(index, ring, ask)
        return dataclasses.replace(drawn, probability=drawn.probability / 2)


class KeepsRemoved(Weighted):
    """Rows that were removed are drawn."""

    def remove(self, index, ring, slots):
        return index


class KeepsOld(Weighted):
    """A new row has the priority of the row that it overwrote."""

    def add(self, index, ring, span):
        new, faults = super().add(index, ring, span)
        return jnp.where(index > 0, index, new), faults


class FirstCounts(Weighted):
    """Where a slot repeats, its priorities are summed."""

    def update_priority(self, index, ring, slots, given):
        changed = index.at[slots].set(0, mode="drop").at[slots].add(given.priority, mode="drop")
        return changed, jnp.zeros(slots.shape, jnp.uint32)


class Behind(Weighted):
    """Slots that hold no row are drawn."""

    def init(self, ring):
        return jnp.ones(ring.capacity)

    def weights(self, index, ring):
        return index


class Outside(Weighted):
    """Masked slots are out of range."""

    def draw(self, index, ring, ask):
        drawn = super().draw(index, ring, ask)
        return dataclasses.replace(drawn, slots=jnp.where(drawn.mask, drawn.slots, -1))


class Wide(Weighted):
    """Slots are of another dtype."""

    def draw(self, index, ring, ask):
        drawn = super().draw(index, ring, ask)
        return dataclasses.replace(drawn, mask=drawn.weight)


class Refuses(Weighted):
    """It says that there is nothing to draw, and draws."""

    def can_sample(self, index, ring):
        return jnp.zeros((), bool)


class Heavy(Weighted):
    """Weights are above 1."""

    def draw(self, index, ring, ask):
        drawn = super().draw(index, ring, ask)
        return dataclasses.replace(drawn, weight=drawn.weight * 3)


class Inverted(Weighted):
    """A likelier row counts more, not less."""

    def draw(self, index, ring, ask):
        drawn = super().draw(index, ring, ask)
        most = jnp.maximum(drawn.probability.max(), 1e-9)
        return dataclasses.replace(drawn, weight=drawn.probability / most)


class Faulty(Weighted):
    """It finds faults where there are none."""

    def add(self, index, ring, span):
        index, faults = super().add(index, ring, span)
        return index, faults | jnp.uint32(fbuf.Fault.BAD_PRIORITY)


class Raises(Weighted):
    """It cannot be traced."""

    def add(self, index, ring, span):
        if index.sum() > 0:
            return super().add(index, ring, span)
        return index, jnp.zeros(span.slots.shape, jnp.uint32)


@dataclasses.dataclass(frozen=True)
class Listed(Weighted):
    """No static argument of JAX."""

    shares: Any = dataclasses.field(default_factory=list)


class Repeats(fbuf.Shuffled):
    """An epoch has the same rows again and again."""

    def draw(self, index, ring, ask):
        epoch, _ = ask.step
        drawn = super().draw(index, ring, ask._replace(step=(epoch, jnp.int32(0))))
        return drawn


class Copies(Hot):
    """A choice between two whole indices."""

    def add(self, index, ring, span):
        changed, faults = super().add(index, ring, span)
        there = ring.count() > 0
        return jax.tree.map(lambda new, old: jnp.where(there, new, old), changed, index), faults


LAW = {"law": by_priority, "new_priority": lambda oracle: 1.0}
MISTAKES = {
    Skewed: ({}, "rows are not drawn as often as fbuf.probability says"),
    Misjudged: (LAW, "has the probability 0.01.*, and the law says"),
    Unsure: ({}, "was drawn with batch.probability"),
    KeepsRemoved: ({}, "was drawn, and its row was removed"),
    KeepsOld: (LAW, "has the probability .*, and the law says"),
    FirstCounts: (LAW, "has the probability .*, and the law says"),
    Behind: ({}, "was drawn, and it holds no row"),
    Outside: ({}, "slots of its Draw must be in range"),
    Wide: ({}, r"mask of its Draw must be bool\[16\], and is float32\[16\]"),
    Refuses: ({}, "fbuf.can_sample says that there is no row to draw"),
    Heavy: ({}, "weights must lie between 0 and 1"),
    Inverted: ({}, "a row that is likelier than another has a larger weight"),
    Faulty: ({}, "have set <Fault.BAD_PRIORITY: 1>"),
    Raises: ({}, "raises TracerBoolConversionError"),
    Listed: ({}, "hash.* raises TypeError: unhashable"),
    Repeats: ({}, "a row comes twice in an epoch"),
    Copies: ({"in_place": True}, "a step copies an array of the buffer.* By a select"),
}
QUICKLY = (Skewed, KeepsRemoved, KeepsOld, Copies, Listed)


@pytest.mark.sweep
def test_the_sampler_without_a_mistake():
    testing.check_sampler(Weighted(), **LAW, in_place=False)


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICKLY else pytest.param(kind, marks=pytest.mark.sweep) for kind in MISTAKES],
)
def test_a_mistake_is_found(kind):
    options, sentence = MISTAKES[kind]
    with pytest.raises(AssertionError, match=f"(?s)^fbuf.testing.check_sampler: .*{sentence}"):
        testing.check_sampler(kind(), **{**QUICK, **options})


def test_a_message_says_how_to_repeat_it():
    options = {"law": newest, **QUICK}
    with pytest.raises(AssertionError) as one:
        testing.check_sampler(fbuf.Uniform(), **options)
    text = str(one.value)
    assert "It came after the operations " in text
    shape = "shapes=[Shape(num_envs=None, length=12, lockstep=True, autoreset='same_step')]"
    assert f"{shape} and seeds=[0]." in text
    with pytest.raises(AssertionError) as again:
        testing.check_sampler(fbuf.Uniform(), **{**options, "seeds": [0]})
    assert str(again.value) == text


def test_a_sampler_that_no_shape_suits():
    with pytest.raises(AssertionError, match=r"fbuf\.init refuses every shape"):
        testing.check_sampler(fbuf.Uniform(window=20), **QUICK)


def test_counts_that_fit_and_others():
    rng, likely = np.random.default_rng(0), np.array([0.5, 0.3, 0.2, 0.0])
    for _ in range(20):
        counts = rng.multinomial(10_000, likely)
        assert frequencies.deviation(counts, likely) < frequencies.MOST
        other = rng.multinomial(10_000, [0.45, 0.35, 0.2, 0.0])
        assert frequencies.deviation(other, likely) > frequencies.MOST
    assert frequencies.deviation(np.array([5, 3, 2, 1]), likely) == float("inf")
    assert frequencies.deviation(np.array([7]), np.array([1.0])) == 0
    many = np.full(2000, 1 / 2000)  # each alone is too rare to be counted
    assert frequencies.deviation(rng.multinomial(4000, many), many) < frequencies.MOST
